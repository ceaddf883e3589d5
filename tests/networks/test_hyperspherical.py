import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.hyperspherical import Scaler, UnitDense, UnitOutput, project_weights, to_sphere
from stoix_like.utils.accelerate import packing
from support.compiled import run
from support.platforms import take_accelerator_forms

KEY = jax.random.key(0)


def test_vectors_on_the_sphere_and_zero():
    """(3, 4) has norm 5; zero stays zero, with a finite gradient."""
    np.testing.assert_allclose(run(to_sphere, jnp.asarray([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    assert np.isfinite(run(jax.grad(lambda x: to_sphere(x).sum()), jnp.asarray([0.0, 0.0]))).all()


def test_projection_scales_the_weights_of_each_unit_and_nothing_else():
    """The columns (3, 4) and (0, 2) have norms 5 and 2."""
    kernel = jax.device_put(np.asarray([[3.0, 0.0], [4.0, 2.0]]))
    params = {"params": {"layer": {"unit_kernel": kernel}, "Dense_0": {"kernel": kernel}}}
    projected = run(project_weights, params)["params"]
    np.testing.assert_allclose(projected["layer"]["unit_kernel"], [[0.6, 0.0], [0.8, 1.0]], rtol=1e-6)
    np.testing.assert_array_equal(projected["Dense_0"]["kernel"], kernel)


def test_projection_of_packed_parameters(monkeypatch):
    take_accelerator_forms(monkeypatch)
    params = {"params": {"layer": {"unit_kernel": jnp.asarray([[3.0], [4.0]]), "bias": jnp.asarray([7.0])}}}
    projected = run(lambda params: project_weights(packing.pack_params(params)), params)
    assert packing.is_packed(projected)
    layer = run(packing.unpack, projected)["params"]["layer"]
    np.testing.assert_allclose(layer["unit_kernel"], [[0.6], [0.8]], rtol=1e-6)


def test_scaler_and_output_match_hand_computed_values():
    """A scale of 2 whose parameters start at 0.5 multiplies by p * 2 / 0.5; W_1 = I, s = 1, W_2 = (0.6, 0.8)."""
    scaler, ones = Scaler(2.0, 0.5), jnp.asarray([1.0, 1.0])
    params = run(scaler.init, KEY, ones)
    np.testing.assert_allclose(params["params"]["scale"], [0.5, 0.5])
    np.testing.assert_allclose(run(scaler.apply, params, jnp.asarray([1.0, 3.0])), [2.0, 6.0])
    np.testing.assert_array_equal(run(UnitOutput(1).init, KEY, ones)["params"]["Scaler_0"]["scale"], [1.0, 1.0])
    params = {
        "UnitDense_0": {"unit_kernel": jnp.asarray([[1.0, 0.0], [0.0, 1.0]])},
        "Scaler_0": {"scale": ones},
        "UnitDense_1": {"unit_kernel": jnp.asarray([[0.6], [0.8]])},
        "bias": jnp.asarray([1.0]),
    }
    np.testing.assert_allclose(run(UnitOutput(1).apply, {"params": params}, jnp.asarray([1.0, 2.0])), [3.2], rtol=1e-6)


@pytest.mark.parametrize("features", [2, 8])
def test_units_start_with_weights_of_norm_one(features):
    kernel = run(UnitDense(features).init, KEY, jax.device_put(np.ones(4)))["params"]["unit_kernel"]
    np.testing.assert_allclose(np.linalg.norm(kernel, axis=0), np.ones(features), rtol=1e-5)
