"""Tests of each wrapper on a small deterministic environment."""

import jax
import jax.numpy as jnp
import nested
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Dict, Discrete, MultiDiscrete, Vectorize, wrappers
from stoix_like.envs.environment import Environment, restart, transition
from stoix_like.errors import ConfigError

KEY = jax.random.key(0)


class Ramp(Environment):
    """Every pixel `[2, 2]` is the number of steps taken; the reward is the sum of the action."""

    observation_space = Box(np.array([[0.0, 1.0], [2.0, 3.0]]), 9.0, (2, 2))

    def __init__(self, ends_after=100, action_space=None):
        self.ends_after = ends_after
        self.action_space = action_space or Box(-1.0, 1.0, (2,))

    def view(self, count):
        return Observation(jnp.full((2, 2), count, jnp.float32))

    def reset(self, key):
        del key
        count = jnp.zeros((), jnp.int32)
        return count, restart(self.view(count))

    def step(self, key, state, action):
        del key
        count = state + 1
        return count, transition(self.view(count), jnp.sum(action), count >= self.ends_after, count >= 6)


def ramp(**options):
    return Vectorize(Ramp(**options))


def play(env, actions):
    """Return the first time step of a single environment, and those after each action."""
    keys = KEY[None]
    state, timestep = env.reset(keys)
    timesteps = [timestep]
    for action in actions:
        state, timestep = env.step(keys, state, jnp.asarray(action)[None])
        timesteps.append(timestep)
    return [jax.tree.map(lambda leaf: leaf[0], timestep) for timestep in timesteps]


ZERO = np.zeros(2, np.float32)


def test_restart_and_transition_set_the_flags():
    first, *_, last = play(ramp(ends_after=6), [ZERO] * 6)
    assert (float(first.reward), bool(first.terminated), bool(first.truncated)) == (0.0, False, False)
    np.testing.assert_array_equal(first.observation.agent_view, first.next_observation.agent_view)
    assert not first.episode.finished
    # Step 6 both terminates and truncates: termination takes precedence.
    assert (bool(last.terminated), bool(last.truncated)) == (True, False)


def test_time_limit_truncates_the_episode():
    flags = [(bool(t.terminated), bool(t.truncated)) for t in play(wrappers.TimeLimit(ramp(), 3), [ZERO] * 3)]
    assert flags == [(False, False)] * 3 + [(False, True)]


def test_time_limit_respects_termination_and_other_limits():
    assert [bool(t.truncated) for t in play(wrappers.TimeLimit(ramp(ends_after=3), 3), [ZERO] * 3)] == [False] * 4
    assert bool(play(wrappers.TimeLimit(ramp(), 50), [ZERO] * 6)[-1].truncated)


def test_actions_are_rescaled_to_the_bounds():
    space = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
    env = wrappers.RescaleActions(ramp(action_space=space))
    assert (env.action_space.low, env.action_space.high) == (-1.0, 1.0)
    # [-1, -1] -> [-2, 0], [1, 1] -> [2, 10], [0, 0.5] -> [0, 7.5]
    rewards = [float(t.reward) for t in play(env, [[-1.0, -1.0], [1.0, 1.0], [0.0, 0.5]])[1:]]
    np.testing.assert_allclose(rewards, [-2.0, 12.0, 7.5])


def test_actions_are_clipped():
    space = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
    rewards = [
        float(t.reward) for t in play(wrappers.ClipActions(ramp(action_space=space)), [[-5.0, -5.0], [5.0, 5.0]])
    ]
    np.testing.assert_allclose(rewards, [0.0, -2.0, 7.0])


@pytest.mark.parametrize("wrapper", [wrappers.RescaleActions, wrappers.ClipActions])
def test_action_wrappers_reject_discrete_actions(wrapper):
    with pytest.raises(ValueError, match="Discrete"):
        wrapper(ramp(action_space=Discrete(2)))


def test_rescale_actions_rejects_unbounded_actions():
    with pytest.raises(ValueError, match="bounded"):
        wrappers.RescaleActions(ramp(action_space=Box(0.0, np.inf, (1,))))


def test_flatten_observation_flattens_views_and_bounds():
    env = wrappers.FlattenObservation(ramp())
    assert env.observation_space.shape == (4,)
    np.testing.assert_array_equal(env.observation_space.low, [0.0, 1.0, 2.0, 3.0])
    for t in play(env, [ZERO]):
        assert t.observation.agent_view.shape == t.next_observation.agent_view.shape == (4,)


def test_frames_are_stacked_on_the_last_axis():
    env = wrappers.StackFrames(ramp(), 3)
    assert env.observation_space.shape == (2, 6)
    np.testing.assert_array_equal(env.observation_space.low[1], [2, 3, 2, 3, 2, 3])
    views = [t.next_observation.agent_view for t in play(env, [ZERO] * 3)]
    # The oldest frame first; the reset fills the stack.
    for view, frames in zip(views, [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)], strict=True):
        np.testing.assert_array_equal(view, np.tile(np.repeat(frames, 2), (2, 1)))


def test_count_steps_sets_the_step_count():
    counts = [(int(t.observation.step_count), int(t.next_observation.step_count)) for t in play(_counted(), [ZERO] * 2)]
    assert counts == [(0, 0), (1, 1), (2, 2)]


def _counted():
    return wrappers.CountSteps(ramp())


def test_episode_metrics_use_unscaled_rewards():
    env = wrappers.ClipReward(wrappers.ScaleReward(wrappers.RecordEpisode(ramp(ends_after=3)), 10.0), 15.0)
    actions = np.array([[0.5, 0.5], [1.0, 1.0], [-1.0, -1.0]], np.float32)
    timesteps = play(env, actions)[1:]
    np.testing.assert_allclose([float(t.reward) for t in timesteps], [10.0, 15.0, -15.0])
    np.testing.assert_allclose([float(t.episode.episode_return) for t in timesteps], [1.0, 3.0, 1.0])
    assert [int(t.episode.episode_length) for t in timesteps] == [1, 2, 3]
    assert [bool(t.episode.finished) for t in timesteps] == [False, False, True]


def test_vectorize_does_not_reset():
    env = ramp(ends_after=1)
    state, timestep = env.reset(jax.random.split(KEY, 2))
    assert timestep.reward.shape == timestep.episode.finished.shape == (2,)
    for count in (1, 2):
        state, timestep = env.step(jax.random.split(KEY, 2), state, jnp.zeros((2, 2)))
        np.testing.assert_array_equal(timestep.observation.agent_view[:, 0, 0], [count, count])
    assert env.start_rollout(KEY, state) is state


def test_native_action_undoes_action_wrappers():
    space = Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32), (2,))
    inner = ramp(action_space=space)
    env = wrappers.RecordEpisode(wrappers.ClipActions(wrappers.RescaleActions(wrappers.TimeLimit(inner, 9))))
    assert env.unwrapped is inner
    # [0, 0.5] -> [0, 7.5]; [-3, 3] is clipped to [-1, 1] -> [-2, 10]
    for action, native in (([0.0, 0.5], [0.0, 7.5]), ([-3.0, 3.0], [-2.0, 10.0])):
        np.testing.assert_allclose(env.native_action(jnp.asarray([action])), [native])
        assert float(play(env, [action])[-1].reward) == sum(native)
    np.testing.assert_array_equal(inner.native_action(jnp.ones((1, 2))), jnp.ones((1, 2)))


def test_native_state_removes_wrapper_state():
    counted = wrappers.CountSteps(wrappers.StackFrames(wrappers.FlattenObservation(wrappers.TimeLimit(ramp(), 9)), 2))
    env = wrappers.ScaleReward(wrappers.RecordEpisode(counted), 2.0)
    state, _ = env.reset(KEY[None])
    for _ in range(3):
        state, _ = env.step(KEY[None], state, jnp.asarray(ZERO)[None])
    np.testing.assert_array_equal(env.native_state(state), [3])


class TestDictionaries:
    """On `nested.Nested`, whose image is 0 or 255 everywhere, and whose three features are -1 or 1."""

    @staticmethod
    def envs():
        return nested.make("discrete", {}, {})

    def test_flattened_views_are_floats_sorted_by_name(self):
        plain, env = self.envs(), wrappers.FlattenObservation(self.envs())
        keys = jax.random.split(KEY, 8)
        view, flat = plain.reset(keys)[1].observation.agent_view, env.reset(keys)[1]
        assert flat.observation.agent_view.dtype == jnp.float32
        features, pixels = np.split(flat.observation.agent_view, [3], axis=-1)
        np.testing.assert_array_equal(features, view["inner"]["features"])
        np.testing.assert_array_equal(pixels, view["pixels"].reshape(8, 36) / np.float32(255))
        assert len(np.unique(pixels)) == len(np.unique(features)) == 2
        space = env.observation_space
        np.testing.assert_array_equal(space.low, [-1.0] * 3 + [0.0] * 36)
        np.testing.assert_array_equal(space.high, [1.0] * 39)
        assert (space.shape, space.dtype) == ((39,), jnp.float32)
        np.testing.assert_array_equal(flat.next_observation.agent_view, flat.observation.agent_view)

    def test_discrete_entries_are_flattened(self):
        env = self.envs()
        env.observation_space = Dict({"a": Discrete(4), "b": MultiDiscrete((2, 3))})
        space = wrappers.FlattenObservation(env).observation_space
        np.testing.assert_array_equal(space.high, [3.0, 1.0, 2.0])
        np.testing.assert_array_equal(space.low, [0.0] * 3)

    def test_stacks_refuse_dictionaries(self):
        with pytest.raises(ConfigError, match=r"env\.frame_stack=4 stacks arrays, but .* inner\.features, pixels: set"):
            wrappers.StackFrames(self.envs(), 4)

    def test_scalars_are_refused_where_vectors_are_needed(self):
        env = self.envs()
        env.observation_space = Box(0.0, 1.0, ())
        with pytest.raises(ConfigError, match=r"env\.frame_stack=4 stacks along .* scalar: set env\.flatten_obs"):
            wrappers.StackFrames(env, 4)
        env.observation_space = Discrete(4)
        with pytest.raises(ConfigError, match=r"Discrete\(n=4.* is not a Box: observe a one-hot vector"):
            wrappers.FlattenObservation(env)

    def test_other_wrappers_leave_views_unchanged(self):
        env = wrappers.RecordEpisode(wrappers.CountSteps(wrappers.TimeLimit(self.envs(), 1)))
        state, first = env.reset(KEY[None])
        step = env.step(KEY[None], state, jnp.zeros((1,), jnp.int32))[1]
        assert (int(first.observation.step_count[0]), int(step.observation.step_count[0])) == (0, 1)
        assert bool(step.truncated[0])
        expected = self.envs().step(KEY[None], self.envs().reset(KEY[None])[0], jnp.zeros((1,), jnp.int32))[1]
        jax.tree.map(np.testing.assert_array_equal, step.observation.agent_view, expected.observation.agent_view)


class Counter(Environment):
    """The view holds the number of steps and the last action; the reward is the action."""

    observation_space = Box(-100.0, 100.0, (2,))
    action_space = Discrete(10)

    def __init__(self, ends_after=100, masked=False):
        self.ends_after, self.masked = ends_after, masked

    def observe(self, count, action):
        # With a mask, only actions above the number of steps are legal.
        return Observation(jnp.array([count, action], jnp.float32), jnp.arange(10) > count if self.masked else None)

    def reset(self, key):
        del key
        return jnp.zeros((), jnp.int32), restart(self.observe(0, 0))

    def step(self, key, state, action):
        del key
        return state + 1, transition(self.observe(state + 1, action), action, state + 1 >= self.ends_after, False)


def taken(timesteps):
    return [int(t.observation.agent_view[1]) for t in timesteps[1:]]


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
    state, _ = env.reset(keys)
    state, _ = env.step(keys, state, jnp.full((4000,), 3))
    _, timestep = env.step(keys, state, jnp.full((4000,), 5))
    # The deviation of the fraction is sqrt(0.25 * 0.75 / 4000) = 0.007.
    np.testing.assert_allclose((timestep.reward == 3).mean(), 0.25, atol=0.03)
    state, _ = env.reset(keys)
    assert (env.step(keys, state, jnp.full((4000,), 5))[1].reward == 5).all()


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
    state, timestep = env.reset(keys)
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
    state, first = env.reset(keys)
    # With up to 50 steps, all but a few starts would have gone beyond the end; the last state before it has one step.
    assert first.observation.agent_view[:, 0].max() == 1
    assert (first.episode.episode_return == 0).all()
    _, timestep = env.step(keys, state, jnp.full((100,), 7))
    np.testing.assert_array_equal(timestep.terminated | timestep.truncated, True)
    np.testing.assert_array_equal(timestep.episode.episode_length, 1)
    np.testing.assert_array_equal(timestep.episode.episode_return, 7.0)


def test_observations_and_their_bounds_are_clipped():
    env = wrappers.ClipObservation(Vectorize(Counter()), 2.5)
    timesteps = play(env, [1, 9, 2])
    assert [t.observation.agent_view.tolist() for t in timesteps] == [[0, 0], [1, 1], [2, 2.5], [2.5, 2]]
    assert timesteps[3].next_observation.agent_view.tolist() == [2.5, 2]
    assert (env.observation_space.low, env.observation_space.high) == (-2.5, 2.5)


def test_selected_entries_of_observations_are_kept():
    env = wrappers.SelectEntries(Vectorize(Counter()), (1,))
    timesteps = play(env, [1, 9])
    assert [t.observation.agent_view.tolist() for t in timesteps] == [[0], [1], [9]]
    assert timesteps[2].next_observation.agent_view.tolist() == [9]
    assert (env.observation_space.shape, env.observation_space.low.tolist()) == ((1,), [-100])
    for indices in ((), (0, 0), (2,), (-1,)):
        with pytest.raises(ConfigError, match=r"env.observation_indices=.* use 0 to 1"):
            wrappers.SelectEntries(Vectorize(Counter()), indices)
    with pytest.raises(ConfigError, match=r"env.observation_indices=\[0\] needs observations that are vectors"):
        wrappers.SelectEntries(ramp(), (0,))


def test_the_remaining_fraction_of_the_time_limit_is_appended():
    env = wrappers.AddTime(wrappers.TimeLimit(Vectorize(Counter()), 4), 4)
    timesteps = play(env, [1, 1, 1, 1])
    assert [float(t.observation.agent_view[2]) for t in timesteps] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert bool(timesteps[4].truncated)
    assert env.observation_space.shape == (3,)
    assert env.observation_space.low.tolist() == [-100, -100, 0]
    assert env.observation_space.high.tolist() == [100, 100, 1]
    with pytest.raises(ConfigError, match="env.flatten_observation=true"):
        wrappers.AddTime(ramp(), 4)
