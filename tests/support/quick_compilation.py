import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def quick_compilation():
    """These tests compile hundreds of tiny programs: compiling them well takes longer than running them."""
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
