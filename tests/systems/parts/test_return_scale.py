import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes
from stoix_like.systems.parts.return_scale import ReturnScaleConfig, make_return_scale
from support.compiled import run

# The 5th and 95th percentiles of 0 … 100 are 5 and 95.
RETURNS = jax.device_put(np.random.default_rng(0).permutation(np.arange(101.0)))


def scaling(decay, low, smallest):
    """Return the configuration of a scale whose upper percentile is the 95th."""
    return ReturnScaleConfig(
        return_decay=decay, return_percentile_low=low, return_percentile_high=95.0, min_return_range=smallest
    )


# By hand, decay 0.9: percentiles (0.5, 9.5), then 0.9 (0.5, 9.5) + 0.1 (5, 95) = (0.95, 18.05); ranges 9 and 17.1.
def test_percentiles_are_moving_means_and_the_scale_has_a_lower_limit():
    functions = make_return_scale(scaling(0.9, 5.0, 10.0), Axes())
    state = functions.init()
    scales = []
    for _ in range(2):
        state = run(functions.update, state, RETURNS)
        scales.append(functions.scale(state))
    np.testing.assert_allclose(state, [0.95, 18.05], rtol=1e-5)
    np.testing.assert_allclose(scales, [10.0, 17.1], rtol=1e-5)
    gradient = run(jax.grad(lambda returns: functions.scale(functions.update(state, returns))), RETURNS)
    np.testing.assert_array_equal(gradient, 0.0)


def test_percentiles_are_those_of_all_shards_for_each_member_of_a_population():
    returns = RETURNS[:100].reshape(2, 5, 10)

    def member(decay, low):
        def shard(returns):
            functions = make_return_scale(scaling(decay, low, 1.0), Axes(("batch",)))
            return functions.update(functions.init(), returns)

        return jax.vmap(shard, axis_name="batch", out_axes=None)(returns)

    found = run(jax.vmap(member), jnp.array([0.0, 0.5]), jnp.array([5.0, 50.0]))
    expected = np.percentile(RETURNS[:100], [5.0, 50.0, 95.0])
    np.testing.assert_allclose(found, [expected[[0, 2]], 0.5 * expected[[1, 2]]], rtol=1e-5)
