import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.rollout import rollout
from stoix_like.base_types import RolloutState
from stoix_like.envs import EnvConfig, Vectorize, make
from stoix_like.envs.auto_reset import FreshReset
from stoix_like.envs.factory import AUTO_RESETS, ScenarioConfig
from stoix_like.envs.stagger import make_stagger
from stoix_like.envs.suites.probes import Outcome, Probe
from stoix_like.envs.wrappers import RandomStarts, RecordEpisode, RepeatActions, TimeLimit
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX
from support.compiled import run

N, LIMIT = 64, 5


class Endless(Probe):
    truncates_after = INT32_MAX

    def first_view(self, key):
        return jnp.zeros(1)

    def outcome(self, state, action):
        return Outcome(1.0, action == 1, False, state.view + 1.0)

    def optimal_value(self, view, gamma):
        raise NotImplementedError


def play(mode, actions):
    env = RecordEpisode(TimeLimit(Vectorize(Endless()), LIMIT))
    resetting = AUTO_RESETS[mode](env, EnvConfig(pool_size=4))
    resetting.stagger = make_stagger(True, env, None)
    state, _ = run(resetting.reset, jax.random.split(jax.random.key(0), N))
    inputs = jax.random.split(jax.random.key(1), actions.shape), actions
    return jax.jit(lambda: jax.lax.scan(lambda state, x: resetting.step(x[0], state, x[1]), state, inputs))()[1]


@pytest.mark.parametrize("mode", ["fresh", "cached"])
def test_only_first_episodes_are_truncated_early_and_they_are_not_reported(mode):
    """Each length from 1 to the limit occurs; every later episode takes the limit, and is the only kind that counts."""
    steps = play(mode, jnp.zeros((3 * LIMIT, N), jnp.int32))
    truncated = np.asarray(steps.truncated)
    first = truncated.argmax(0)
    assert set(first) == set(range(LIMIT))
    later = (np.arange(3 * LIMIT)[:, None] - first) % LIMIT == 0
    np.testing.assert_array_equal(truncated, later & (np.arange(3 * LIMIT)[:, None] >= first))
    assert not np.asarray(steps.terminated).any()
    # The view of the true successor counts the steps of its episode.
    assert set(np.asarray(steps.next_observation.agent_view)[first, np.arange(N), 0]) == set(range(1, LIMIT + 1))
    done, length = np.asarray(steps.episode.finished), np.asarray(steps.episode.episode_length)
    assert (length[done] == LIMIT).all()


def test_the_step_after_a_first_episode_is_the_first_of_the_next_one():
    """The view counts the steps of its episode, so it is zero where one starts."""
    env = RecordEpisode(TimeLimit(Vectorize(Endless()), LIMIT))
    resetting = FreshReset(env)
    resetting.stagger = make_stagger(True, env, None)
    state = RolloutState(*resetting.reset(jax.random.split(jax.random.key(0), N)), ())

    def act(shared, state, key):
        return (), jnp.zeros((N,), jnp.int32), ()

    for seed in range(2):
        play = jax.jit(lambda state, key: rollout(resetting, act, (), state, key, 2 * LIMIT + 1))
        state, played = play(state, jax.random.key(seed))
        steps = played.trajectory.transitions
        np.testing.assert_array_equal(steps.is_first, steps.observation.agent_view[..., 0] == 0.0)


def test_a_first_episode_that_terminates_is_not_followed_by_a_truncated_one():
    actions = jnp.zeros((2 * LIMIT, N), jnp.int32).at[0].set(1)
    steps = play("fresh", actions)
    assert np.asarray(steps.terminated)[0].all()
    np.testing.assert_array_equal(np.asarray(steps.truncated).argmax(0), LIMIT)


def test_environments_without_a_time_limit_are_refused():
    with pytest.raises(ConfigError, match=r"staggered_starts=true .* none is known: set env.time_limit, or use false"):
        make(EnvConfig("probe", ScenarioConfig("value"), staggered_starts=True))
    # Neither frame skipping nor random starts make a limit of none.
    for env in (RepeatActions(Vectorize(Endless()), 2), RandomStarts(Vectorize(Endless()), 5)):
        with pytest.raises(ConfigError, match="none is known"):
            make_stagger(True, env, None)
