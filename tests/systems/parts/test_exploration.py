import distrax
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.systems.parts.exploration import (
    ExplorationNoise,
    make_exploration,
    make_normal_noise,
    persist_noise_keys,
)
from support.compiled import run
from support.off_policy_runs import timestep


def test_noise_keys_persist_for_some_steps_of_an_episode():
    """Steps 3 and 5 of an episode continue, 4 is a multiple of 2; an episode that ended and a new one start anew."""
    step = timestep([3, 5, 4, 3, 0], [False, False, False, True, False])
    before = jax.random.split(jax.random.key(1), 5)
    exploration = make_exploration(2, lambda num_envs: ())
    assert exploration.init_carry(5).shape == (5,)
    pi = distrax.Normal(jnp.zeros(5), jnp.ones(5))
    after, noise = run(exploration.sample, pi, before, step, jax.random.key(2))
    np.testing.assert_allclose(noise, jax.vmap(jax.random.normal)(after))
    assert (jax.random.key_data(before) == jax.random.key_data(after)).all(-1).tolist() == [True, True, *[False] * 3]


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_persistent_noise_has_the_given_correlation_and_a_standard_normal_marginal(correlation):
    """Over 20,000 independent steps, the standard error of a correlation is 1 / sqrt(20,000) = 0.007."""
    size = 20_000
    step = timestep([1] * size, [False] * size)
    before = jax.random.split(jax.random.key(1), size)
    after = run(persist_noise_keys, before, step, jax.random.key(2), correlation)
    noise = [np.asarray(jax.vmap(jax.random.normal)(keys)) for keys in (before, after)]
    assert np.corrcoef(*noise)[0, 1] == pytest.approx(correlation, abs=0.03)
    assert (noise[1].mean(), noise[1].std()) == pytest.approx((0.0, 1.0), abs=0.03)


def test_each_environment_has_a_noise_scale_of_its_own_for_an_episode():
    """Scales are uniform in [0.1, 0.5]; a new one is drawn where an episode starts, and only there."""
    size = 4_000
    noise = make_normal_noise(ExplorationNoise(exploration_noise=0.1, max_exploration_noise=0.5, noise_correlation=0.0))
    carry = noise.init_carry(size)
    starts, continues = (timestep([length] * size, [False] * size) for length in (0, 3))
    carry, first = run(noise.draw, carry, starts, jax.random.key(1), (50,))
    # The standard error of a deviation from 50 samples is a tenth of it.
    deviations = np.asarray(first).std(-1)
    assert (deviations.min(), deviations.mean(), deviations.max()) == pytest.approx((0.1, 0.3, 0.5), rel=0.5)
    assert np.asarray(carry[1]).mean() == pytest.approx(0.3, abs=0.01)
    np.testing.assert_allclose(deviations, carry[1], rtol=0.5)
    later, second = noise.draw(carry, continues, jax.random.key(2), (50,))
    np.testing.assert_array_equal(later[1], carry[1])
    assert (first != second).all()
