import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.networks.hyperspherical import UnitOutput
from stoix_like.networks.normalisation import STATISTICS, BatchRenorm, simnorm
from support.compiled import run

X = jax.device_put(np.asarray([[1.0, 0.0], [3.0, 8.0]]))
initialise = jax.jit(BatchRenorm().init)


def variables(**statistics):
    """Initialise a layer, and set running statistics of both features."""
    created = initialise(jax.random.key(0), X)
    values = {name: np.full(() if name == "steps" else 2, value) for name, value in statistics.items()}
    return created | {STATISTICS: created[STATISTICS] | jax.device_put(values)}


# By hand: softmax(0, ln 3) = (1/4, 3/4), and of equal entries (1/2, 1/2).
def test_groups_are_normalised_to_simplices():
    groups = run(simnorm, jnp.log(jnp.asarray([[1.0, 3.0, 5.0, 5.0]])), 2)
    np.testing.assert_allclose(groups, [[0.25, 0.75, 0.5, 0.5]], rtol=1e-6)


def test_warm_up_normalises_by_the_batch():
    """The features have means 2 and 4, and variances 1 and 16; the running ones move by a tenth from 0 and 1."""
    layer = BatchRenorm(momentum=0.9, warmup_steps=5, epsilon=0.0)
    y, updated = run(layer.apply, variables(), X, mutable=STATISTICS)
    np.testing.assert_allclose(y, [[-1.0, -1.0], [1.0, 1.0]])
    statistics = updated[STATISTICS]
    np.testing.assert_allclose(statistics["mean"], [0.2, 0.4], rtol=1e-6)
    np.testing.assert_allclose(statistics["variance"], [1.0, 2.5], rtol=1e-6)
    assert statistics["steps"] == 1.0


def test_running_statistics_are_used_where_they_are_not_updated():
    layer = BatchRenorm(epsilon=0.0)
    np.testing.assert_allclose(run(layer.apply, variables(mean=1.0, variance=4.0), X), np.subtract(X, 1.0) / 2.0)


def test_renormalisation_equals_the_running_statistics_within_its_bounds():
    """Beyond them, the second feature, with batch statistics 4 and 4, and running ones 0 and 1/2, has r = 3 and d = 5.

    Its values are -1 and 1 before, and so 2 and 8 after.
    """
    layer = BatchRenorm(warmup_steps=2, epsilon=0.0)
    near = variables(mean=2.5, variance=4.0, steps=2.0)
    y, updated = run(layer.apply, near, X, mutable=STATISTICS)
    np.testing.assert_allclose(y, run(layer.apply, near, X), rtol=1e-6)
    assert updated[STATISTICS]["steps"] == 2.0
    y, _ = run(layer.apply, variables(mean=0.0, variance=0.25, steps=2.0), X, mutable=STATISTICS)
    np.testing.assert_allclose(np.asarray(y)[:, 1], [2.0, 8.0], rtol=1e-6)


@pytest.mark.parametrize("steps", [0.0, 2.0])
def test_optimisers_leave_running_statistics_unchanged(steps):
    layer = BatchRenorm(warmup_steps=2)
    before, optim = variables(mean=1.0, variance=2.0, steps=steps), optax.adam(1.0)

    def update(before):
        gradients = jax.grad(lambda v: jnp.sum(layer.apply(v, X, mutable=STATISTICS)[0] ** 2))(before)
        return optax.apply_updates(before, optim.update(gradients, optim.init(before))[0])

    after = run(update, before)
    jax.tree.map(np.testing.assert_array_equal, after[STATISTICS], before[STATISTICS])
    assert np.not_equal(after["params"]["scale"], before["params"]["scale"]).all()


@pytest.mark.parametrize(("argument", "value"), [("momentum", 1.5), ("warmup_steps", -1), ("warmup_steps", 2**24 + 1)])
def test_values_out_of_range_raise(argument, value):
    with pytest.raises(ValueError, match=f"{argument}={value} must be in"):
        BatchRenorm(**{argument: value})


@pytest.mark.parametrize("layer", [BatchRenorm(), UnitOutput(3)])
def test_variables_stay_float32_where_numbers_are_float64(layer):
    with jax.enable_x64(True):
        created = jax.eval_shape(layer.init, jax.random.key(0), np.zeros((2, 3), np.float32))
    assert {leaf.dtype for leaf in jax.tree.leaves(created)} == {jnp.dtype(jnp.float32)}
