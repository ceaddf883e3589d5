import jax
import numpy as np
import pytest

from stoix_like.systems.parts.flows import nearest_neighbour_entropy
from support.compiled import run


# Of normal distributions, D/2 log(2 pi e) + D log(deviation).
@pytest.mark.parametrize(("dims", "deviation"), [(1, 1.0), (3, 0.01)])
def test_distances_between_samples_tell_the_entropy(dims, deviation):
    samples = deviation * jax.random.normal(jax.random.key(0), (32, 500, dims))
    exact = 0.5 * dims * np.log(2 * np.pi * np.e) + dims * np.log(deviation)
    np.testing.assert_allclose(run(nearest_neighbour_entropy, samples).mean(), exact, atol=0.08)


def test_equal_samples_have_a_finite_entropy():
    assert run(nearest_neighbour_entropy, np.ones((4, 1, 2), np.float32)) < -20
