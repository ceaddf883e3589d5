"""Programs of complex numbers in real arithmetic."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

from stoix_like.policies.formats.reals import as_reals, real_form, real_shape

Z = np.array([[0.5 - 1.0j, 2.0 + 0.25j], [-1.5 + 0.5j, 0.1j - 1.0]], np.complex64)
X = np.array([[1.0, -2.0], [3.0, 0.5]], np.float32)


def arithmetic(z, x):
    """Use every operation that states of cells take part in."""
    decay = jnp.exp(jax.lax.complex(-jnp.abs(x), x))
    state = jnp.where(x > 0, 0.0, decay * z - jnp.conj(z) / (z + 2.0)) + x
    state = jnp.concatenate([state, state[:1, ::-1]]).T.reshape(3, 2)
    return jnp.stack([state, -state]), state.real - state.imag, x + 1.0


def loop(z, x):
    """Carry complex numbers through a loop, and call a compiled function in it."""
    halved = jax.jit(lambda z: z * (0.5 + 0.5j))
    return jax.lax.scan(lambda carry, row: (halved(carry) + row, carry.imag), z[0], z + x)


@pytest.mark.parametrize("function", [arithmetic, loop])
def test_results_are_the_real_forms_of_those_of_complex_arithmetic(function):
    with jax.numpy_rank_promotion("allow"):
        expected, closed = jax.tree.leaves(function(Z, X)), jax.make_jaxpr(function)(Z, X)
        real = real_form(closed)
        assert "complex" not in str(real)
        assert "c64" not in str(real)
        found = core.jaxpr_as_fun(real)(as_reals(Z), X)
    for one, other in zip(found, expected, strict=True):
        assert one.shape == real_shape(other).shape
        np.testing.assert_allclose(one, as_reals(other), rtol=1e-5, atol=1e-6)


def test_real_programs_stay_and_operations_without_a_rule_are_named():
    closed = jax.make_jaxpr(jnp.sin)(X)
    assert real_form(closed) is closed
    with pytest.raises(NotImplementedError, match="tanh of complex numbers"):
        real_form(jax.make_jaxpr(jnp.tanh)(Z))
