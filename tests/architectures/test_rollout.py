import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import RolloutState
from stoix_like.envs import Vectorize
from stoix_like.envs.auto_reset import FreshReset
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.probes import Outcome, Probe
from stoix_like.envs.wrappers import RandomStarts, RecordEpisode, RepeatActions, TimeLimit
from stoix_like.utils.accelerate.successors import successor_values

N = 4


class Scripted(Probe):
    """Episodes of `positive` or `negative` steps, by the sign of a random start state."""

    def __init__(self, positive, negative):
        self.positive, self.negative = positive, negative

    def first_view(self, key):
        return jax.random.uniform(key, (1,), minval=-1.0)

    def outcome(self, state, action):
        length = jnp.where(state.view[0] > 0, self.positive, self.negative)
        return Outcome(action, state.steps + 1 == length, False, state.view)

    def optimal_value(self, view, gamma):
        raise NotImplementedError


def noisy_act(shared, state, key):
    """Add noise to the view; the carry counts the steps, and the extras are random bits."""
    noise_key, bits_key = jax.random.split(key)
    noise = jax.random.normal(noise_key, (N,))
    return state.carry + 1, state.timestep.observation.agent_view[:, 0] + noise, jax.random.bits(bits_key, (N,))


def roll(probe, lengths, hoist_randomness=True):
    """Return the transitions and episode metrics of successive rollouts, joined in time, and the last state."""
    env = FreshReset(RecordEpisode(Vectorize(probe)))
    env_state, timestep = env.reset(jax.random.split(jax.random.key(0), N))
    state = RolloutState(env_state, timestep, jnp.zeros((N,)))
    parts = []
    for index, length in enumerate(lengths):
        compiled = jax.jit(
            lambda state, key, length=length: rollout(env, noisy_act, (), state, key, length, hoist_randomness)
        )
        state, (trajectory, episodes) = compiled(state, jax.random.key(1 + index))
        parts.append((trajectory.transitions, episodes))
    transitions, episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves), *parts)
    return transitions, episodes, state


def test_is_first_marks_the_first_step_of_each_episode():
    # Episodes of 3 steps over 8 steps: steps 0, 3 and 6 are the first of an episode, and steps 2 and 5 the last.
    # The second of two rollouts starts with step 4, in the middle of an episode.
    transitions, episodes, _ = roll(Scripted(3, 3), [4, 4])
    first = np.array([True, False, False, True, False, False, True, False])
    last = np.array([False, False, True, False, False, True, False, False])
    np.testing.assert_array_equal(transitions.is_first, np.tile(first[:, None], N))
    np.testing.assert_array_equal(transitions.terminated, np.tile(last[:, None], N))
    np.testing.assert_array_equal(episodes.episode_length, np.tile([[1], [2], [3], [1], [2], [3], [1], [2]], N))


def test_is_first_is_set_per_environment():
    # Step 0 and the step after each termination are the first of an episode; no other step is.
    transitions, _, _ = roll(Scripted(3, 2), [20])
    expected = np.concatenate([np.ones((1, N), bool), transitions.terminated[:-1]])
    np.testing.assert_array_equal(transitions.is_first, expected)
    # Episodes of 2 or 3 steps: the environments do not reset at the same time.
    assert (transitions.is_first != transitions.is_first[:, :1]).any()


@pytest.mark.parametrize("negative", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_hoisted_randomness_does_not_change_the_rollout(negative):
    """Hoisting moves the draws out of the loop over time, with the same keys.

    Integers and flags are identical. XLA may fuse the arithmetic that turns random bits into normal noise differently
    inside the loop, which rounds floats differently.
    """
    hoisted = roll(Scripted(3, negative), [7, 6], hoist_randomness=True)
    plain = roll(Scripted(3, negative), [7, 6], hoist_randomness=False)
    jax.tree.map(assert_same_numbers, hoisted, plain)
    # All actions differ, so that other noise would be detected.
    assert len(np.unique(plain[0].action)) == plain[0].action.size


def assert_same_numbers(a, b):
    assert (a.shape, a.dtype) == (b.shape, b.dtype)
    if jnp.issubdtype(a.dtype, jnp.floating):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(a, b)


class Limited(Probe):
    """Counts the steps of an episode, which is terminated by action 1, or truncated after 5 steps."""

    truncates_after = 5
    action_space = Discrete(2)

    def outcome(self, state, action):
        view = jnp.full((1,), 10.0) * (state.steps + 1)
        return Outcome(1.0, action == 1, state.steps + 1 >= 5, view)

    def optimal_value(self, view, gamma):
        raise NotImplementedError


def test_wrappers_bound_the_steps_before_a_truncation():
    env = Vectorize(Limited())
    assert [TimeLimit(env, steps).truncates_after for steps in (3, 9)] == [3, 5]
    assert [RepeatActions(env, repeats).truncates_after for repeats in (2, 5)] == [3, 1]
    assert [RandomStarts(env, steps).truncates_after for steps in (2, 5)] == [3, None]


@pytest.mark.slow
def test_the_successors_that_are_kept_have_the_values_of_all():
    # Of 10 steps, at most two are truncated. Episodes of one environment start in the middle of the rollout.
    env = FreshReset(RecordEpisode(Vectorize(Limited())))
    assert env.truncates_after == 5

    def act(shared, state, key):
        return state.carry, (jax.random.uniform(key, (N,)) < jnp.array([0.0, 0.1, 0.3, 0.9])).astype(jnp.int32), ()

    env_state, timestep = env.reset(jax.random.split(jax.random.key(0), N))
    state = RolloutState(env_state, timestep, jnp.zeros((N,)))
    state, _ = rollout(env, act, (), state, jax.random.key(1), 3)
    last, (whole, _) = rollout(env, act, (), state, jax.random.key(2), 10)
    last_kept, (kept, _) = rollout(env, act, (), state, jax.random.key(2), 10, most_truncations=2)
    steps, compact = whole.transitions, kept.transitions
    assert compact.next_observation.agent_view.shape == (3, N, 1)
    assert steps.truncated.sum(0)[0] == 2
    for a, b in zip(
        jax.tree.leaves((last, steps._replace(next_observation=()))),
        jax.tree.leaves((last_kept, compact._replace(next_observation=()))),
        strict=True,
    ):
        np.testing.assert_array_equal(a, b)

    def value(observation):
        return jnp.square(observation.agent_view[..., 0])

    v_t = successor_values(value(compact.next_observation), value(compact.observation), compact.truncated)
    counts = ~steps.terminated
    np.testing.assert_array_equal(v_t[counts], value(steps.next_observation)[counts])
