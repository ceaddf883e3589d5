from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import RolloutState, System
from stoix_like.envs.spaces import Box
from stoix_like.systems.parts.chunks import ChunkedReplay
from stoix_like.utils.replay import make_replay
from support.off_policy_runs import timestep
from support.replayed import SIX, SIZES, empty, spec, steps

FORCE = Box(-3.0, 3.0, (1,))
THREE = ChunkedReplay(**{**SIZES, "chunk": 3, "total_buffer_size": 128})
CHUNKS = THREE.policy_space(FORCE)

# Rewards 2^t, discount 1/2, terminated at step 2 and truncated at step 4: reward, discount and successor.
WINDOWS = {
    0: [1 + 2 / 2 + 4 / 4, 0, 2.5],
    1: [2 + 4 / 2, 0, 2.5],
    2: [4, 0, 2.5],
    3: [8 + 16 / 2, 1 / 4, 4.5],
    4: [16, 1 / 2, 4.5],
    5: [32 + 64 / 2 + 128 / 4, 1 / 8, 7.5],
}
ROLLOUT = steps(*([*column, *more] for column, more in zip(SIX, ([6, 7], [64, 128], [0, 0], [0, 0]), strict=True)))


def test_a_chunk_learns_the_return_of_its_window_also_with_actions_after_an_end():
    rollout = ROLLOUT.transitions._replace(action=ROLLOUT.transitions.action[..., None].astype(jnp.float32))
    replay = make_replay(THREE, spec()._replace(action_space=CHUNKS), 0.5)
    state = jax.jit(replay.add)(empty(replay), ROLLOUT._replace(transitions=rollout))
    batch = jax.tree.map(np.asarray, jax.jit(replay.sample)(state, jax.random.key(0)))
    assert batch.action.shape == (SIZES["total_batch_size"], 3, 1)
    first = batch.observation.agent_view[:, 0].astype(int)
    after = batch.next_observation.agent_view[:, 0] - first // 100 * 100
    targets = np.stack([batch.reward, batch.discount, after], axis=1)
    np.testing.assert_allclose(targets, [WINDOWS[number % 100] for number in first])
    np.testing.assert_array_equal(batch.action[..., 0], (first[:, None] + np.arange(3)) % 3)
    assert set(first % 100) == set(WINDOWS)


def test_chunks_are_executed_without_looking_until_they_or_the_episode_end():
    """At time t the policy proposes t, t + 0.1, t + 0.2; the episode of the second environment ends after two steps."""

    def act(shared, state, key, time=None):
        proposal = shared + 0.1 * jnp.arange(3.0)[None, :, None]
        return state.carry, jnp.broadcast_to(proposal, (2, 3, 1)), ()

    nothing = SimpleNamespace(init_carry=lambda num_envs: (), inspect=None)
    system = System(None, act, None, None, act, nothing.init_carry, None)
    system = THREE.adapt(system, CHUNKS)
    carry, chosen = system.init_carry(2), []
    for time, (lengths, ended) in enumerate([([0, 0], [0, 0]), ([1, 1], [0, 0]), ([2, 2], [0, 1]), ([3, 1], [0, 0])]):
        current = timestep(lengths, ended)._replace(terminated=jnp.asarray(ended, bool))
        carry, action, _ = jax.jit(system.act)(float(time), RolloutState((), current, carry), jax.random.key(0))
        chosen.append(action[:, 0])
    np.testing.assert_allclose(np.transpose(chosen), [[0.0, 0.1, 0.2, 3.0], [0.0, 0.1, 2.0, 2.1]], rtol=1e-6)
