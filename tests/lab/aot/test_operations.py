import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.lab.aot.operations import count_flops


def flops(function, *args):
    return count_flops(jax.make_jaxpr(function)(*args).jaxpr)


def test_products_and_elements_are_counted():
    a, b = jnp.ones((3, 4)), jnp.ones((4, 5))
    assert flops(lambda a, b: a @ b, a, b) == 2 * 3 * 4 * 5
    assert flops(lambda a: jnp.tanh(a) + 1.0, a) == 2 * 12
    assert flops(lambda a: a.sum(), a) == 12
    # Nothing is computed.
    assert flops(lambda a: a.T.reshape(-1)[2:4], a) == 0
    assert flops(lambda n: n * 2, np.int32(1)) == 0
    image, kernel = jnp.ones((1, 6, 6, 2)), jnp.ones((3, 3, 2, 7))
    convolve = jax.jit(
        lambda x, k: jax.lax.conv_general_dilated(x, k, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    assert flops(convolve, image, kernel) == 2 * (4 * 4 * 7) * (3 * 3 * 2)


def test_loops_and_branches_are_counted():
    def scanned(x):
        return jax.lax.scan(lambda c, _: (c * 2.0, None), x, None, 5)[0]

    def looped(x, n):
        return jax.lax.fori_loop(0, n, lambda _, c: scanned(c), x)

    x = jnp.ones(3)
    assert flops(scanned, x) == 15
    assert flops(looped, x, np.int32(4)) == 15
    assert flops(lambda x: jax.lax.cond(x[0] > 0, lambda x: x, lambda x: scanned(x), x), x) == 15
