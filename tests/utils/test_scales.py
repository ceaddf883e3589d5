import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from stoix_like.utils.scales import signed_hyperbolic, signed_parabolic, symexp, symexp_atoms, symlog, two_hot


# By hand: symlog(e - 1) = ln(e) = 1, symlog(-(e^2 - 1)) = -2; symlog(0) = 0.
def test_symlog_matches_values_by_hand_and_symexp_inverts_it():
    x = np.float32([0.0, math.e - 1.0, 1.0 - math.e**2, 1e-6, 1e6, np.nan])
    slopes = [jax.vmap(jax.grad(function)) for function in (symlog, symexp)]
    program = jax.jit(lambda x, points: (symlog(x), symexp(symlog(x)), *(slope(points) for slope in slopes)))
    values, inverse, log, exp = jax.device_get(program(x, np.float32([0.0, 1.0, -3.0])))
    np.testing.assert_allclose(values, [0.0, 1.0, -2.0, 1e-6, math.log(1e6 + 1.0), np.nan], rtol=1e-6)
    np.testing.assert_allclose(inverse, x, rtol=1e-5)
    # At 0, both are the identity.
    assert log[0] == exp[0] == 1.0
    np.testing.assert_allclose(log, [1.0, 0.5, 0.25])
    np.testing.assert_allclose(exp, np.exp([0.0, 1.0, 3.0]), rtol=1e-6)


# By hand: h(3) = sqrt(4) - 1 + 0.003 = 1.003. At 0, h has the slope 1/2 + 0.001.
def test_hyperbolic_scale_matches_values_by_hand_and_its_definition_in_double_precision():
    def scaled(x):
        return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 1e-3 * x

    x = np.float32([0.0, 3.0, -3.0, *np.logspace(-6.0, 6.0, 25), np.nan])
    slopes = [jax.vmap(jax.grad(function)) for function in (signed_hyperbolic, signed_parabolic)]
    program = jax.jit(lambda x: (signed_hyperbolic(x), signed_parabolic(x), *(slope(jnp.zeros(1)) for slope in slopes)))
    values, inverse, slope, inverse_slope = jax.device_get(program(x))
    np.testing.assert_allclose(values[:3], [0.0, 1.003, -1.003], rtol=1e-6)
    np.testing.assert_allclose(values, scaled(np.float64(x)), rtol=1e-6, atol=1e-15)
    np.testing.assert_allclose(scaled(np.float64(inverse)), x, rtol=1e-6)
    np.testing.assert_allclose([slope[0], inverse_slope[0]], [0.501, 1.0 / 0.501], rtol=1e-6)


@pytest.mark.parametrize("num_atoms", [255, 6])
def test_atoms_are_symmetric_and_even_on_the_scale_of_symlog(num_atoms):
    atoms = symexp_atoms(num_atoms)
    np.testing.assert_array_equal(atoms, -atoms[::-1])
    np.testing.assert_allclose(jax.jit(symlog)(atoms), np.linspace(-20.0, 20.0, num_atoms), rtol=1e-5, atol=1e-5)
    assert atoms.dtype == np.float32
    np.testing.assert_allclose(symexp_atoms(3, limit=1.0), [1.0 - math.e, 0.0, math.e - 1.0], rtol=1e-6)


def summed(logits, atoms, targets):
    return ls.two_hot_loss_per_example(logits, atoms, targets).sum()


def test_two_hot_targets_survive_the_round_trip_with_any_leading_axes():
    targets = np.float32([[0.0, 1.0, -0.037], [1e5, -3e7, 4e8], [-2.5, 999.0, 1e-3]])
    logits, atoms = np.zeros((3, 3, 255), np.float32), np.broadcast_to(symexp_atoms(255), (3, 3, 255))
    program = jax.jit(lambda *x: (ls.two_hot_loss_per_example(*x), jax.nn.softmax(x[0]) - jax.grad(summed)(*x)))
    losses, probs = map(np.asarray, program(logits, atoms, targets))
    np.testing.assert_allclose(np.sum(probs, -1), 1.0, rtol=1e-5)
    assert (np.sum(probs > 1e-4, -1) <= 2).all()
    np.testing.assert_allclose(np.sum(np.where(probs > 1e-4, probs * atoms, 0.0), -1), targets, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(losses, math.log(255.0), rtol=1e-5)


def test_two_hot_probabilities_equal_those_of_the_loss():
    atoms = jnp.asarray(symexp_atoms(255))
    targets = jnp.array([[0.0, 1.0, -0.037, 5e9], [1e5, -3e7, 4e8, -5e9]])
    logits, rows = jnp.zeros((2, 4, 255)), jnp.broadcast_to(atoms, (2, 4, 255))
    gradient = jax.grad(summed)(logits, rows, targets)
    probs = jax.jit(two_hot)(targets, atoms)
    np.testing.assert_allclose(probs, jax.nn.softmax(logits) - gradient, atol=1e-6)
    np.testing.assert_array_equal(probs[:, 3, [-1, 0]], np.eye(2))
    np.testing.assert_array_equal(jax.grad(lambda target: two_hot(target, atoms)[3])(1.0), 0.0)
