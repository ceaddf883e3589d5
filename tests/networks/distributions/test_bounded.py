import jax
import numpy as np

from support.bounded_policies import beta, tanh_normal


def test_indexing_selects_bounds_that_vary_along_the_axis():
    low, high = (-2.0, -1.0, 0.0), (2.0, 1.0, 5.0)
    value = np.asarray([1.0, 3.0], np.float32)

    @jax.jit
    def both(pi):
        part = pi[:, 2]
        return part.mode(), part.log_prob(value), pi.mode()[:, 2], pi[1, 2].log_prob(value)

    ones = np.ones((2, 3), np.float32)
    for pi in (tanh_normal(0 * ones, ones, low, high), beta(2 * ones, 2.0, low, high)):
        mode, log_prob, expected_mode, expected = both(pi)
        np.testing.assert_allclose(mode, expected_mode, rtol=1e-6)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)
