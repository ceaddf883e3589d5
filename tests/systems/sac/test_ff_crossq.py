import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.normalisation import STATISTICS
from support.off_policy_runs import algorithm, equal, random_batch, timestep


@pytest.mark.slow
def test_crossq_updates_the_running_statistics_of_the_networks_that_it_trains():
    """Those of the critics' input see both observations of a step, those of the policy only the first."""
    crossq = algorithm("sac/ff_crossq", "system.policy_frequency=2")
    agent = jax.jit(crossq.init)(jax.random.key(0), timestep([0], [False]))
    batch, sgd_step = random_batch(16), jax.jit(crossq.sgd_step)
    before = agent.shared.params
    assert before.q_params.target == ()
    first, _ = sgd_step(agent.shared, batch, jax.random.key(1))
    second, metrics = sgd_step(first, batch, jax.random.key(2))
    assert all(value.shape == () for value in metrics.values())
    views = [observation.agent_view for observation in (batch.observation, batch.next_observation)]

    def input_mean(variables):
        leaves = jax.tree_util.tree_leaves_with_path(variables[STATISTICS])
        return next(float(leaf[0]) for path, leaf in leaves if "BatchRenorm_0" in str(path) and "mean" in str(path))

    np.testing.assert_allclose(
        input_mean(first.params.q_params.online), 0.01 * jnp.concatenate(views).mean(), rtol=1e-5
    )
    assert equal(first.params.actor_params, before.actor_params)
    np.testing.assert_allclose(input_mean(second.params.actor_params), 0.01 * views[0].mean(), rtol=1e-5)
