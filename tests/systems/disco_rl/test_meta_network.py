import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like import weights
from stoix_like.base_types import Axes
from stoix_like.systems.disco_rl import meta_network
from support import disco
from support.disco import EXPECTED, LIFETIME


def load(name):
    if name == "synthetic":
        return disco.synthetic()
    if not disco.PUBLISHED.exists():
        pytest.skip("the published weights are not here")
    return weights.load(str(disco.PUBLISHED), weights.SHA256)


@pytest.mark.parametrize("name", ["synthetic", "published"])
def test_targets_are_those_of_another_implementation(name):
    expected = EXPECTED[name]
    inputs, _, _ = disco.estimates(disco.make(), disco.steps())
    arrays = load(name)
    targets, lifetime = jax.jit(lambda inputs: meta_network.apply(arrays, inputs, LIFETIME, Axes()))(inputs)
    np.testing.assert_allclose(targets.policy.reshape(disco.T, -1), expected["policy"], rtol=1e-3, atol=1e-4)
    for key in ("y", "z"):
        np.testing.assert_allclose(getattr(targets, key)[..., 7], expected[key], rtol=1e-3, atol=1e-3)
    squares = [jnp.mean(jnp.square(x)) for x in (targets.y, targets.z)]
    np.testing.assert_allclose(squares, expected["squares"], rtol=1e-5)
    np.testing.assert_allclose(lifetime.hidden[:6], expected["hidden"], atol=1e-5)
    np.testing.assert_allclose(lifetime.cell[:6], expected["cell"], atol=1e-5)


def test_a_step_reads_no_other_episode():
    """The end of an episode, also by a time limit, cuts the LSTM, which reads from the last step to the first."""
    inputs, _, _ = disco.estimates(disco.make(), disco.steps())
    inputs = inputs._replace(ended=disco.ends((2, 0)), terminated=disco.ends())
    arrays = disco.synthetic()
    apply = jax.jit(lambda inputs: meta_network.apply(arrays, inputs, LIFETIME, Axes())[0].y)
    y, other = apply(inputs), apply(inputs._replace(reward=inputs.reward.at[4].add(1.0)))
    changed = np.abs(other - y).max(-1) > 1e-6
    np.testing.assert_array_equal(changed[:, 0], [False, False, False, True, True])
    np.testing.assert_array_equal(changed[:, 1], [True] * 5)
