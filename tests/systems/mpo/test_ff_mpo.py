"""Tests of the log-probabilities and penalties of MPO."""

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Agent, RolloutState, Trajectory, Transition
from support.off_policy_runs import algorithm, timestep

SMALL = ["system.rollout_length=4", "system.n_step=2", "system.total_batch_size=8"]


def test_random_actions_of_the_warmup_end_the_trace():
    """The policy's own action keeps its log-probability; another action has an unknown, and so an infinite one."""
    mpo = algorithm("mpo/ff_mpo", *SMALL, "arch.total_num_envs=2")
    step = timestep([0, 0], [False, False])
    agent = jax.jit(mpo.init)(jax.random.key(0), step)
    keys = jax.random.split(jax.random.key(2), 2)
    _, action, extras = jax.jit(mpo.act)(agent.shared, RolloutState((), step, keys), jax.random.key(1))
    taken = action.at[1].add(0.5)
    flags = step.terminated
    steps = Transition(step.observation, taken, step.reward, flags, flags, step.observation, flags, extras)
    agent = jax.jit(mpo.observe)(Agent(*agent), Trajectory(jax.tree.map(lambda x: x[None], steps), ()))
    stored = np.asarray(agent.local.buffer.experience.extras)[:, 0]
    np.testing.assert_allclose(stored[0], extras[1][0])
    assert stored[1] == np.inf


def test_penalised_actions_lose_weight():
    """Four actions of equal value, one of them out of bounds: it has the least weight, and each objective sums to 1."""
    mpo = algorithm("mpo/ff_mpo", *SMALL, "system.action_penalty=true", "system.init_temperature=0.1")
    duals = jax.jit(mpo.init)(jax.random.key(0), timestep([0], [False])).shared.params.duals
    action = jnp.asarray([0.1, -0.5, 0.9, 1.2])[:, None, None]
    loss, weights = mpo.weigh(duals, action, jnp.zeros((4, 1)), jnp.zeros((4, 1)))
    np.testing.assert_allclose(weights.sum(), 2.0, rtol=1e-5)
    # exp(-0.2 / 0.1) for the excess of 0.2.
    inside = 1.0 / (3.0 + np.exp(-2.0))
    np.testing.assert_allclose(weights[:, 0], 0.25 + inside * np.array([1.0, 1.0, 1.0, np.exp(-2.0)]), rtol=1e-4)
    assert np.isfinite(loss)
