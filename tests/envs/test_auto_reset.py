"""Where environments go on from when an episode ends, in each of the four modes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import EnvConfig, Vectorize
from stoix_like.envs.auto_reset import FreshReset, OptimisticReset, PoolReset
from stoix_like.envs.factory import AUTO_RESETS
from stoix_like.envs.suites.probes import Outcome, Probe
from stoix_like.envs.wrappers import RecordEpisode

N, T = 3, 12


class Countdown(Probe):
    """Starts at a random place in [0, 1) and ends where the action is 1; each step adds one to the place."""

    def first_view(self, key):
        return jax.random.uniform(key, (1,))

    def outcome(self, state, action):
        return Outcome(state.view[0], action == 1, False, state.view + 1.0)

    def optimal_value(self, view, gamma):
        raise NotImplementedError


def roll(env, actions, key=0):
    """`[T, N]` actions -> the first time step, the time steps `[T, N, ...]` and the last state."""
    key_reset, key_begin, key_steps = jax.random.split(jax.random.key(key), 3)
    state, first = env.reset(jax.random.split(key_reset, actions.shape[1]))
    state = env.begin_rollout(key_begin, state)

    def step(state, inputs):
        return env.step(inputs[0], state, inputs[1])

    last, timesteps = jax.lax.scan(step, state, (jax.random.split(key_steps, actions.shape), actions))
    return first, timesteps, last


def places(observation):
    return np.asarray(observation.agent_view)[..., 0]


def some_ends():
    return jax.random.bernoulli(jax.random.key(7), 0.4, (T, N)).astype(jnp.int32)


@pytest.fixture(scope="module")
def rolled():
    env = RecordEpisode(Vectorize(Countdown()))
    config = EnvConfig(pool_size=T * N, reset_ratio=2)
    return {
        mode: jax.jit(lambda make=make: roll(make(env, config), some_ends()))() for mode, make in AUTO_RESETS.items()
    }


@pytest.mark.parametrize("mode", AUTO_RESETS)
def test_only_state_and_observation_are_replaced(rolled, mode):
    first, timesteps, _ = rolled[mode]
    ended = np.asarray(some_ends(), bool)
    np.testing.assert_array_equal(timesteps.terminated, ended)
    before = np.concatenate([places(first.observation)[None], places(timesteps.observation)[:-1]])
    # The successor adds one to where the step began, whether the episode ended or not.
    np.testing.assert_allclose(places(timesteps.next_observation), before + 1.0, rtol=1e-6)
    np.testing.assert_allclose(timesteps.reward, before, rtol=1e-6)
    np.testing.assert_array_equal(places(timesteps.observation)[~ended], places(timesteps.next_observation)[~ended])
    assert np.all(places(timesteps.observation)[ended] < 1.0)


@pytest.mark.parametrize("mode", AUTO_RESETS)
def test_episodes_are_those_that_ended(rolled, mode):
    _, timesteps, _ = rolled[mode]
    for n in range(N):
        total, length = 0.0, 0
        for t in range(T):
            total, length = total + float(timesteps.reward[t, n]), length + 1
            np.testing.assert_allclose(timesteps.episode.episode_return[t, n], total, rtol=1e-5)
            assert timesteps.episode.episode_length[t, n] == length
            assert timesteps.episode.finished[t, n] == timesteps.terminated[t, n]
            if timesteps.terminated[t, n]:
                total, length = 0.0, 0


@pytest.mark.parametrize("mode", ["fresh", "pool"])
def test_start_states_are_all_new(rolled, mode):
    first, timesteps, _ = rolled[mode]
    starts = places(timesteps.observation)[np.asarray(timesteps.terminated)]
    assert len(np.unique(np.concatenate([starts, places(first.observation)]))) == len(starts) + N


def test_cached_goes_back_to_the_first(rolled):
    first, timesteps, _ = rolled["cached"]
    ended = np.asarray(timesteps.terminated)
    expected = np.broadcast_to(places(first.observation), (T, N))
    np.testing.assert_array_equal(places(timesteps.observation)[ended], expected[ended])


def test_optimistic_shares_out_few_resets():
    env = OptimisticReset(Vectorize(Countdown()), reset_ratio=2)
    # Two resets for three environments: two ends get one each, three ends share.
    _, timesteps, _ = roll(env, jnp.asarray([[1, 0, 1], [1, 1, 1]]))
    two, three = places(timesteps.observation)
    assert two[0] != two[2]
    assert three[0] != three[1]
    assert three[0] == three[2]


def test_pool_is_taken_in_turn_and_then_again():
    env = PoolReset(Vectorize(Countdown()), pool_size=4)
    _, timesteps, last = roll(env, jnp.asarray([[1, 0, 1], [0, 1, 0], [1, 1, 0]]))
    pool = places(last.store.starts.observation)
    taken = places(timesteps.observation)[np.asarray(timesteps.terminated)]
    np.testing.assert_array_equal(taken, pool[[0, 1, 2, 3, 0]])
    assert last.store.taken == 5
    refilled = env.begin_rollout(jax.random.key(9), last)
    assert refilled.store.taken == 0
    assert not np.isin(places(refilled.store.starts.observation), pool).any()
    np.testing.assert_array_equal(refilled.env_state.view, last.env_state.view)


def test_fresh_draws_apart_from_the_step():
    # A step that draws from its key exactly as a reset does must not see its own number again.
    class Noisy(Countdown):
        def step(self, key, state, action):
            state, timestep = super().step(key, state, action)
            return state, timestep._replace(reward=self.first_view(key)[0])

    _, timesteps, _ = roll(FreshReset(Vectorize(Noisy())), jnp.ones((T, N), jnp.int32))
    assert not np.isin(places(timesteps.observation), timesteps.reward).any()


@pytest.mark.parametrize("mode", AUTO_RESETS)
def test_batches_of_shards_do_as_one_shard_does(rolled, mode):
    env = AUTO_RESETS[mode](RecordEpisode(Vectorize(Countdown())), EnvConfig(pool_size=T * N, reset_ratio=2))
    # The second shard ends nothing while the first does, so that a condition of the batch concerns only one of them.
    actions = jnp.stack([some_ends(), jnp.zeros_like(some_ends())])
    _, timesteps, _ = jax.jit(jax.vmap(lambda actions: roll(env, actions), axis_name="batch"))(actions)
    expected = rolled[mode][1]
    jax.tree.map(lambda got, want: np.testing.assert_allclose(got[0], want, rtol=1e-6), timesteps, expected)
    assert not timesteps.terminated[1].any()
    np.testing.assert_array_equal(places(timesteps.observation)[1], places(timesteps.next_observation)[1])


def test_state_can_be_donated():
    env = AUTO_RESETS["cached"](Vectorize(Countdown()), EnvConfig())
    state, _ = env.reset(jax.random.split(jax.random.key(0), N))
    step = jax.jit(env.step, donate_argnums=1)
    state, _ = step(jax.random.split(jax.random.key(1), N), state, jnp.ones((N,), jnp.int32))
    jax.block_until_ready(state)
