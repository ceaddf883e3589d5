import jax
import jax.numpy as jnp
import pytest

from stoix_like.lab.aot.topology import compile_with_costs
from stoix_like.run.host.devices import DETERMINISTIC_OPTIONS


class Lowered:
    """A lowered program that keeps the options of its compilation."""

    def __init__(self):
        self._lowered = jax.jit(jnp.sum).lower(jnp.ones(3))

    def compile(self, compiler_options):
        self.options = compiler_options
        return self._lowered.compile(compiler_options=compiler_options)


@pytest.mark.parametrize("deterministic", [False, True])
def test_a_deterministic_program_is_compiled_with_its_options(deterministic):
    """XLA takes them as options, since it has read `XLA_FLAGS` already."""
    lowered = Lowered()
    assert compile_with_costs(lowered, deterministic)(jnp.ones(3)) == 3.0
    assert (DETERMINISTIC_OPTIONS.items() <= lowered.options.items()) == deterministic
