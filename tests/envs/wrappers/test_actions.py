import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import Box, Dict, Discrete, MultiDiscrete, Vectorize, wrappers
from stoix_like.envs.spaces import bounds
from stoix_like.envs.wrappers.actions import CountFromZero
from support.compiled import run
from support.countable_envs import KEY, Counter, play, ramp, taken

SPACE = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))


def test_actions_are_rescaled_to_the_bounds():
    env = wrappers.RescaleActions(ramp(action_space=SPACE))
    assert (env.action_space.low, env.action_space.high) == (-1.0, 1.0)
    # [-1, -1] -> [-2, 0], [1, 1] -> [2, 10], [0, 0.5] -> [0, 7.5]
    rewards = [float(t.reward) for t in play(env, [[-1.0, -1.0], [1.0, 1.0], [0.0, 0.5]])[1:]]
    np.testing.assert_allclose(rewards, [-2.0, 12.0, 7.5])


def test_recorded_actions_are_rescaled_back_and_a_single_value_is_the_middle():
    space = Box(np.array([-2.0, 3.0], np.float32), np.array([2.0, 3.0], np.float32), (2,))
    env = wrappers.RescaleActions(ramp(action_space=space))
    np.testing.assert_array_equal(env.outer_action(np.array([[1.0, 3.0]], np.float32)), [[0.5, 0.0]])


def test_no_action_within_minus_one_and_one_leaves_the_bounds():
    low, width = (jnp.exp(8.0 * jax.random.normal(key, (1000,))) for key in jax.random.split(KEY))
    space = Box(np.asarray(low), np.asarray(low + width), low.shape)
    env = wrappers.RescaleActions(ramp(action_space=space))
    for end, bound in ((-1.0, space.low), (1.0, space.high)):
        inner = env.inner_action(jnp.full((1, 1000), end))[0]
        assert ((inner >= space.low) & (inner <= space.high)).all()
        np.testing.assert_allclose(inner, bound, rtol=1e-6, atol=1e-6 * np.max(space.high))


def test_actions_are_clipped():
    timesteps = play(wrappers.ClipActions(ramp(action_space=SPACE)), [[-5.0, -5.0], [5.0, 5.0]])
    rewards = [float(t.reward) for t in timesteps]
    np.testing.assert_allclose(rewards, [0.0, -2.0, 7.0])


@pytest.mark.parametrize("space", [Discrete(2), Box(0.0, np.inf, (1,))])
def test_actions_without_bounds_cannot_be_rescaled(space):
    with pytest.raises(ValueError, match="is not a bounded Box"):
        wrappers.RescaleActions(ramp(action_space=space))


@pytest.mark.parametrize(
    ("space", "action", "inner"),
    [
        (Discrete(3, start=-1), 2, 1),
        (MultiDiscrete((2, 3), start=(4, 0)), [1, 2], [5, 2]),
        # In the order of jax: arm, lever.
        (Dict({"lever": Discrete(2, start=7), "arm": Box(-1.0, 1.0, (1,))}), [0.5, 1.0], [0.5, 8.0]),
    ],
)
def test_actions_are_counted_from_zero(space, action, inner):
    env = wrappers.join_actions(ramp(action_space=space))
    assert isinstance(env, CountFromZero)
    found = run(env.inner_action, jnp.asarray([action]))
    assert found.dtype == env.action_space.dtype
    np.testing.assert_array_equal(found, [inner])
    np.testing.assert_array_equal(env.outer_action(np.asarray([inner])), [action])
    low, high = (env.action_space.low, env.action_space.high) if isinstance(space, Dict) else bounds(env.action_space)
    drawn = np.asarray(run(jax.vmap(env.action_space.sample), jax.random.split(KEY, 100)))
    assert (drawn >= low).all()
    assert (drawn <= high).all()
    assert np.min(low) == (-1 if isinstance(space, Dict) else 0)


def test_native_action_undoes_action_wrappers():
    inner = ramp(action_space=SPACE)
    env = wrappers.RecordEpisode(wrappers.ClipActions(wrappers.RescaleActions(wrappers.TimeLimit(inner, 9))))
    assert env.unwrapped is inner
    # [0, 0.5] -> [0, 7.5]; [-3, 3] is clipped to [-1, 1] -> [-2, 10]
    for action, native in (([0.0, 0.5], [0.0, 7.5]), ([-3.0, 3.0], [-2.0, 10.0])):
        np.testing.assert_allclose(env.native_action(jnp.asarray([action])), [native])
        assert float(play(env, [action])[-1].reward) == sum(native)
    np.testing.assert_array_equal(inner.native_action(jnp.ones((1, 2))), jnp.ones((1, 2)))


def test_sticky_actions_repeat_the_action_that_was_taken():
    actions = list(range(1, 8))
    assert taken(play(wrappers.StickyActions(Vectorize(Counter()), 0.0), actions)) == actions
    # The first action is taken, and repeated for ever.
    assert taken(play(wrappers.StickyActions(Vectorize(Counter()), 1.0), actions)) == [1] * 7
    # Only actions above the number of steps are legal: 3 is repeated after 1 and 2 steps, but not after 3.
    masked = wrappers.StickyActions(Vectorize(Counter(masked=True)), 1.0)
    assert taken(play(masked, [3, 5, 6, 7, 8])) == [3, 3, 3, 7, 7]


def test_sticky_actions_repeat_with_the_given_probability_and_not_across_episodes():
    env = wrappers.StickyActions(Vectorize(Counter()), 0.25)
    keys = jax.random.split(KEY, 4000)
    state, _ = run(env.reset, keys)
    state, _ = run(env.step, keys, state, jnp.full((4000,), 3))
    _, timestep = run(env.step, keys, state, jnp.full((4000,), 5))
    # The deviation of the fraction is sqrt(0.25 * 0.75 / 4000) = 0.007.
    np.testing.assert_allclose((timestep.reward == 3).mean(), 0.25, atol=0.03)
    state, _ = run(env.reset, keys)
    assert (run(env.step, keys, state, jnp.full((4000,), 5))[1].reward == 5).all()


def test_repeated_actions_sum_rewards_and_stop_at_the_end_of_an_episode():
    timesteps = play(wrappers.RepeatActions(Vectorize(Counter(ends_after=5)), 3), [2, 4])
    # Three steps of 2, then two of 4, the second of which terminates.
    assert [float(t.reward) for t in timesteps[1:]] == [6.0, 8.0]
    assert [bool(t.terminated) for t in timesteps[1:]] == [False, True]
    assert [int(t.next_observation.agent_view[0]) for t in timesteps[1:]] == [3, 5]
    # Action 2 is legal after 0 and 1 steps, so that it is taken twice.
    masked = play(wrappers.RepeatActions(Vectorize(Counter(masked=True)), 3), [2])
    assert float(masked[1].reward) == 4.0


def test_random_starts_take_up_to_k_random_legal_actions():
    env = wrappers.RandomStarts(Vectorize(Counter(masked=True)), 3)
    keys = jax.random.split(KEY, 400)
    state, timestep = run(env.reset, keys)
    counts, last = np.asarray(timestep.observation.agent_view).T
    np.testing.assert_array_equal(counts, state)
    np.testing.assert_allclose(np.bincount(counts.astype(int)) / 400, 0.25, atol=0.08)
    # In a state after c steps, the last action was legal after c - 1: it is at least c.
    assert (last[counts > 0] >= counts[counts > 0]).all()
    assert len(set(last[counts > 0])) > 5
    assert (timestep.reward == 0).all()
    assert not (timestep.terminated | timestep.truncated).any()
    np.testing.assert_array_equal(timestep.observation.agent_view, timestep.next_observation.agent_view)


def test_random_starts_stop_before_the_end_and_are_not_counted():
    env = wrappers.RandomStarts(Vectorize(Counter(ends_after=2)), 50)
    env = wrappers.RecordEpisode(wrappers.TimeLimit(env, 1))
    keys = jax.random.split(KEY, 100)
    state, first = run(env.reset, keys)
    # With up to 50 steps, all but a few starts would have gone beyond the end; the last state before it has one step.
    assert first.observation.agent_view[:, 0].max() == 1
    assert (first.episode.episode_return == 0).all()
    _, timestep = run(env.step, keys, state, jnp.full((100,), 7))
    np.testing.assert_array_equal(timestep.terminated | timestep.truncated, True)
    np.testing.assert_array_equal(timestep.episode.episode_length, 1)
    np.testing.assert_array_equal(timestep.episode.episode_return, 7.0)
