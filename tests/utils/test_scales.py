import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import loss as ls
from stoix_like.utils.scales import symexp, symexp_atoms, symlog, two_hot


# By hand: symlog(e - 1) = ln(e) = 1, symlog(-(e^2 - 1)) = -2; symlog(0) = 0.
def test_symlog_matches_values_by_hand_and_symexp_inverts_it():
    x = jnp.array([0.0, math.e - 1.0, 1.0 - math.e**2, 1e-6, 1e6])
    np.testing.assert_allclose(symlog(x), [0.0, 1.0, -2.0, 1e-6, math.log(1e6 + 1.0)], rtol=1e-6)
    np.testing.assert_allclose(symexp(symlog(x)), x, rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(jax.grad(symlog))(jnp.array([1.0, -3.0])), [0.5, 0.25])
    assert np.isnan([symlog(jnp.array(jnp.nan)), symexp(jnp.array(jnp.nan))]).all()
    # At 0, both are the identity.
    assert jax.grad(symlog)(0.0) == jax.grad(symexp)(0.0) == 1.0
    np.testing.assert_allclose(jax.vmap(jax.grad(symexp))(jnp.array([1.0, -2.0])), np.exp([1.0, 2.0]), rtol=1e-6)


@pytest.mark.parametrize("num_atoms", [255, 6])
def test_atoms_are_symmetric_and_even_on_the_scale_of_symlog(num_atoms):
    atoms = symexp_atoms(num_atoms)
    np.testing.assert_array_equal(atoms, -atoms[::-1])
    np.testing.assert_allclose(symlog(jnp.asarray(atoms)), np.linspace(-20.0, 20.0, num_atoms), rtol=1e-5, atol=1e-5)
    assert atoms.dtype == np.float32
    np.testing.assert_allclose(symexp_atoms(3, limit=1.0), [1.0 - math.e, 0.0, math.e - 1.0], rtol=1e-6)


def test_two_hot_targets_survive_the_round_trip_with_any_leading_axes():
    atoms = jnp.asarray(symexp_atoms(255))
    targets = jnp.array([[0.0, 1.0, -0.037], [1e5, -3e7, 4e8], [-2.5, 999.0, 1e-3]])
    logits, atoms = jnp.zeros((3, 3, 255)), jnp.broadcast_to(atoms, (3, 3, 255))
    losses, pull = jax.vjp(lambda logits: ls.two_hot_loss_per_example(logits, atoms, targets), logits)
    (gradient,) = pull(jnp.ones((3, 3)))
    probs = jax.nn.softmax(logits) - gradient
    np.testing.assert_allclose(jnp.sum(probs, -1), 1.0, rtol=1e-5)
    assert (jnp.sum(probs > 1e-4, -1) <= 2).all()
    np.testing.assert_allclose(jnp.sum(jnp.where(probs > 1e-4, probs * atoms, 0.0), -1), targets, rtol=2e-3, atol=1e-5)
    np.testing.assert_allclose(losses, math.log(255.0), rtol=1e-5)


@pytest.mark.slow
def test_two_hot_probabilities_equal_those_of_the_loss():
    atoms = jnp.asarray(symexp_atoms(255))
    targets = jnp.array([[0.0, 1.0, -0.037, 5e9], [1e5, -3e7, 4e8, -5e9]])
    logits, rows = jnp.zeros((2, 4, 255)), jnp.broadcast_to(atoms, (2, 4, 255))
    gradient = jax.grad(lambda logits: ls.two_hot_loss_per_example(logits, rows, targets).sum())(logits)
    probs = jax.jit(two_hot)(targets, atoms)
    np.testing.assert_allclose(probs, jax.nn.softmax(logits) - gradient, atol=1e-6)
    np.testing.assert_array_equal(probs[:, 3, [-1, 0]], np.eye(2))
    np.testing.assert_array_equal(jax.grad(lambda target: two_hot(target, atoms)[3])(1.0), 0.0)
