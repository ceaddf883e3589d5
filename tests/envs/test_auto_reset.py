import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import EnvConfig, Vectorize
from stoix_like.envs.auto_reset import FreshReset, OptimisticReset, PoolReset
from stoix_like.envs.factory import AUTO_RESETS
from stoix_like.envs.suites.probes import Outcome, Probe
from stoix_like.envs.wrappers import RecordEpisode
from support.compiled import run

N, T = 3, 12


class Countdown(Probe):
    """Starts at a random position in [0, 1); each step adds one to it, and action 1 terminates."""

    def first_view(self, key):
        return jax.random.uniform(key, (1,))

    def outcome(self, state, action):
        return Outcome(state.view[0], action == 1, False, state.view + 1.0)

    def optimal_value(self, view, gamma):
        raise NotImplementedError


def roll(env, actions, key=0):
    return run(_roll, env, actions, key)


def _roll(env, actions, key):
    key_reset, key_start, key_steps = jax.random.split(jax.random.key(key), 3)
    state, first = env.reset(jax.random.split(key_reset, actions.shape[1]))
    state = env.start_rollout(key_start, state)

    def step(state, inputs):
        return env.step(inputs[0], state, inputs[1])

    last, timesteps = jax.lax.scan(step, state, (jax.random.split(key_steps, actions.shape), actions))
    return first, timesteps, last


def positions(observation):
    return np.asarray(observation.agent_view)[..., 0]


def random_actions():
    return jax.random.bernoulli(jax.random.key(7), 0.4, (T, N)).astype(jnp.int32)


@pytest.fixture(scope="module")
def rollouts():
    env = RecordEpisode(Vectorize(Countdown()))
    config = EnvConfig(pool_size=T * N, reset_ratio=2)
    return {
        mode: jax.jit(lambda make=make: roll(make(env, config), random_actions()))()
        for mode, make in AUTO_RESETS.items()
    }


@pytest.mark.parametrize("mode", AUTO_RESETS)
def test_reset_replaces_only_state_and_observation(rollouts, mode):
    first, timesteps, _ = rollouts[mode]
    ended = np.asarray(random_actions(), bool)
    np.testing.assert_array_equal(timesteps.terminated, ended)
    before = np.concatenate([positions(first.observation)[None], positions(timesteps.observation)[:-1]])
    # The true successor is one step further, whether the episode ended or not.
    np.testing.assert_allclose(positions(timesteps.next_observation), before + 1.0, rtol=1e-6)
    np.testing.assert_allclose(timesteps.reward, before, rtol=1e-6)
    found, successors = positions(timesteps.observation), positions(timesteps.next_observation)
    np.testing.assert_array_equal(found[~ended], successors[~ended])
    assert np.all(found[ended] < 1.0)


@pytest.mark.parametrize("mode", ["fresh", "pool"])
def test_every_episode_has_a_new_start_state(rollouts, mode):
    first, timesteps, _ = rollouts[mode]
    starts = positions(timesteps.observation)[np.asarray(timesteps.terminated)]
    assert len(np.unique(np.concatenate([starts, positions(first.observation)]))) == len(starts) + N


def test_cached_reset_returns_to_the_first_start_state(rollouts):
    first, timesteps, _ = rollouts["cached"]
    ended = np.asarray(timesteps.terminated)
    expected = np.broadcast_to(positions(first.observation), (T, N))
    np.testing.assert_array_equal(positions(timesteps.observation)[ended], expected[ended])


def test_optimistic_reset_shares_start_states_only_when_needed():
    env = OptimisticReset(Vectorize(Countdown()), reset_ratio=2)
    # Two resets per step for three environments: two episodes that end get different start states, three share them.
    _, timesteps, _ = roll(env, jnp.asarray([[1, 0, 1], [1, 1, 1]]))
    two, three = positions(timesteps.observation)
    assert two[0] != two[2]
    assert three[0] != three[1]
    assert three[0] == three[2]


def test_pool_reset_cycles_through_the_pool():
    env = PoolReset(Vectorize(Countdown()), pool_size=4)
    _, timesteps, last = roll(env, jnp.asarray([[1, 0, 1], [0, 1, 0], [1, 1, 0]]))
    pool = positions(last.store.starts.observation)
    taken = positions(timesteps.observation)[np.asarray(timesteps.terminated)]
    np.testing.assert_array_equal(taken, pool[[0, 1, 2, 3, 0]])
    assert last.store.taken == 5
    refilled = run(env.start_rollout, jax.random.key(9), last)
    assert refilled.store.taken == 0
    assert not np.isin(positions(refilled.store.starts.observation), pool).any()
    np.testing.assert_array_equal(refilled.env_state.view, last.env_state.view)
    # Nothing of it was used: the next rollout begins with the same pool, whatever other members of a population used.
    both = run(jax.tree.map, lambda *leaves: jnp.stack(leaves), last, refilled)
    mapped = run(jax.vmap(env.start_rollout), jnp.stack([jax.random.key(9), jax.random.key(10)]), both)
    starts = positions(mapped.store.starts.observation)
    np.testing.assert_array_equal(starts, np.stack([positions(refilled.store.starts.observation)] * 2))
    kept = run(env.start_rollout, jax.random.key(10), refilled)
    np.testing.assert_array_equal(positions(kept.store.starts.observation), starts[0])


def test_fresh_reset_and_step_draw_independent_numbers():
    # The step draws from its key exactly as a reset does, but a start state never equals the drawn reward.
    class Noisy(Countdown):
        def step(self, key, state, action):
            state, timestep = super().step(key, state, action)
            return state, timestep._replace(reward=self.first_view(key)[0])

    _, timesteps, _ = roll(FreshReset(Vectorize(Noisy())), jnp.ones((T, N), jnp.int32))
    assert not np.isin(positions(timesteps.observation), timesteps.reward).any()


@pytest.mark.parametrize("mode", AUTO_RESETS)
def test_batched_shards_equal_a_single_shard(rollouts, mode):
    env = AUTO_RESETS[mode](RecordEpisode(Vectorize(Countdown())), EnvConfig(pool_size=T * N, reset_ratio=2))
    # No episode of the second shard ends: the shared condition holds because of the first shard alone.
    actions = jnp.stack([random_actions(), jnp.zeros_like(random_actions())])
    _, timesteps, _ = jax.jit(jax.vmap(lambda actions: roll(env, actions), axis_name="batch"))(actions)
    expected = rollouts[mode][1]
    jax.tree.map(lambda got, want: np.testing.assert_allclose(np.asarray(got)[0], want, rtol=1e-6), timesteps, expected)
    assert not timesteps.terminated[1].any()
    np.testing.assert_array_equal(positions(timesteps.observation)[1], positions(timesteps.next_observation)[1])


def test_cached_state_can_be_donated():
    env = AUTO_RESETS["cached"](Vectorize(Countdown()), EnvConfig())
    state, _ = env.reset(jax.random.split(jax.random.key(0), N))
    step = jax.jit(env.step, donate_argnums=1)
    state, _ = step(jax.random.split(jax.random.key(1), N), state, jnp.ones((N,), jnp.int32))
    jax.block_until_ready(state)
