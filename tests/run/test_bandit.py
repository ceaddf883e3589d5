"""The bandit: its Gaussian process, and what it proposes."""

import numpy as np
import pytest
from scipy.optimize import check_grad

from stoix_like.run.bandit import Kernel, Points, Posterior, exploration, fit, log_likelihood, propose


def points(time, settings, context=None):
    settings = np.asarray(settings, np.float64).reshape(len(time), -1)
    context = np.zeros((len(time), 1)) if context is None else np.reshape(context, (-1, 1))
    return Points(np.asarray(time, np.float64), context, settings)


def test_kernel_decays_with_time_and_distance():
    """2 (1 - 0.19)^(2 / 2) exp(-½ (0.3² / 0.5² + 0.4² / 1²)) = 1.62 exp(-0.26), with decay = -½ log 0.81."""
    kernel = Kernel(2.0, 0.1, -0.5 * np.log(0.81), np.array([0.5, 1.0]))
    one, other = points([1.0], [0.2], [0.1]), points([3.0], [0.6], [0.4])
    np.testing.assert_allclose(kernel(one, other), 1.62 * np.exp(-0.26), rtol=1e-12)


def test_posterior_of_two_observations_is_that_derived_by_hand():
    """Observations y = (1, -1) with covariance [[1.5, r], [r, 1.5]] and cross-covariances (a, b) to a new point.

    The inverse is [[1.5, -r], [-r, 1.5]] / (2.25 - r²). So the mean is (a - b) / (1.5 - r), and the
    variance 1 - (1.5 a² - 2 r a b + 1.5 b²) / (2.25 - r²).
    """
    kernel = Kernel(1.0, 0.5, 0.0, np.array([1.0, 0.4]))
    posterior = Posterior(kernel, points([0, 0], [0.0, 0.4]), np.array([1.0, -1.0]))
    # Distances of 1, 1.5 and 0.5 length scales.
    r, a, b = np.exp([-0.5, -1.125, -0.125])
    mean, deviation = posterior(points([0], [0.6]))
    np.testing.assert_allclose(mean, (a - b) / (1.5 - r), atol=1e-12)
    np.testing.assert_allclose(deviation**2, 1 - (1.5 * a**2 - 2 * r * a * b + 1.5 * b**2) / (2.25 - r**2), rtol=1e-12)


def test_pending_points_reduce_the_variance_as_observations_do_and_leave_the_mean():
    rng = np.random.default_rng(0)
    kernel = Kernel(1.5, 0.2, 0.1, np.array([0.7, 0.3, 0.5]))
    observed, pending, new = (points(np.arange(size), rng.uniform(size=(size, 2))) for size in (6, 3, 4))
    targets = rng.normal(size=6)
    posterior = Posterior(kernel, observed, targets)
    mean, before = posterior(new)
    posterior.add_pending(pending)
    joint = Posterior(kernel, observed.join(pending), np.zeros(9))
    np.testing.assert_allclose(posterior(new)[0], mean, rtol=1e-12)
    np.testing.assert_allclose(posterior(new)[1], joint(new)[1], rtol=1e-9)
    assert (posterior(new)[1] < before).all()


def test_of_many_pending_points_the_latest_count():
    """Whenever 192 are pending, the first half of them goes: of 300, 12 + 96 remain."""
    rng = np.random.default_rng(0)
    kernel = Kernel(1.5, 0.2, 0.1, np.array([0.7, 0.3, 0.5]))
    observed, pending, new = (points(np.arange(size) % 7, rng.uniform(size=(size, 2))) for size in (6, 300, 4))
    posterior, targets = Posterior(kernel, observed, rng.normal(size=6)), np.zeros(114)
    mean, _ = posterior(new)
    posterior.add_pending(pending)
    joint = Posterior(kernel, observed.join(pending.take(np.arange(192, 300))), targets)
    np.testing.assert_allclose(posterior(new)[0], mean, rtol=1e-9)
    np.testing.assert_allclose(posterior(new)[1], joint(new)[1], rtol=1e-9)


def test_gradient_of_the_likelihood_is_that_of_finite_differences():
    rng = np.random.default_rng(1)
    time, inputs, targets = rng.integers(0, 4, 12), rng.uniform(size=(2, 12)), rng.normal(size=12)
    data = (np.abs(time[:, None] - time), (inputs[:, :, None] - inputs[:, None, :]) ** 2, targets)
    at = np.log([0.8, 0.3, 0.2, 0.5, 1.5])
    error = check_grad(lambda x: log_likelihood(x, *data)[0], lambda x: log_likelihood(x, *data)[1], at)
    assert error < 1e-5


def test_likelihood_is_the_density_of_a_normal_distribution():
    """Two equal inputs at one time: K = [[2, 1], [1, 2]], |K| = 3, K⁻¹ = [[2, -1], [-1, 2]] / 3, and y = (1, 0)."""
    value, _ = log_likelihood(np.zeros(4), np.zeros((2, 2)), np.zeros((1, 2, 2)), np.array([1.0, 0.0]))
    assert value == pytest.approx(-0.5 * 2 / 3 - 0.5 * np.log(3) - np.log(2 * np.pi))


def search(seed, num_rounds=4, batch=4):
    """Return the settings that were tried for a noisy function whose optimum moves from 0.6 to 0.7."""
    rng = np.random.default_rng(seed)
    tried = points(np.zeros(batch), rng.uniform(size=batch))
    gains = np.empty(0)
    for number in range(num_rounds):
        optimum = 0.6 + 0.1 * number / num_rounds
        own = tried.settings[-batch:, 0]
        gains = np.append(gains, -((own - optimum) ** 2) + 0.01 * rng.normal(size=batch))
        targets = (gains - gains.mean()) / gains.std()
        posterior = Posterior(fit(tried, targets), tried, targets)
        start = points(np.full(batch, number + 1.0), np.zeros(batch))
        found = propose(posterior, start, np.zeros((batch, 1)), np.ones((batch, 1)), rng)
        tried = tried.join(start._replace(settings=found))
    return tried.settings[:, 0].reshape(-1, batch)


def test_exploration_grows_with_the_logarithm_of_the_observations():
    """0.4 × 10 = 4, and the logarithm of 0.4 × 2 is negative."""
    assert exploration(10) == pytest.approx(0.2 + np.log(4))
    assert exploration(2) == 0.2


def test_proposals_find_an_optimum_in_a_few_rounds():
    """Uniform draws are at an expected distance of 0.29 from 0.7: ½ (0.7² + 0.3²)."""
    distances = [np.abs(search(seed)[-1] - 0.7).mean() for seed in range(5)]
    assert np.mean(distances) < 0.5 * 0.29


def test_proposals_are_a_function_of_the_seed():
    np.testing.assert_array_equal(search(3), search(3))


def test_proposals_of_a_batch_keep_their_distance():
    """Where the mean is the same everywhere, each fills the largest gap: without pending points, all would be at 1."""
    posterior = Posterior(Kernel(1.0, 0.01, 0.01, np.array([1.0, 0.2])), points([0, 0], [0.0, 0.4]), np.zeros(2))
    starts = points(np.ones(4), np.zeros(4))
    found = propose(posterior, starts, np.zeros((4, 1)), np.ones((4, 1)), np.random.default_rng(0))
    assert np.diff(np.sort(np.append(found, [0.0, 0.4]))).min() > 0.1


def test_proposals_stay_within_their_box():
    posterior = Posterior(
        Kernel(1.0, 0.1, 0.1, np.ones(3)), points([0, 0], [[0.1, 0.9], [0.2, 0.3]]), np.array([1.0, -1.0])
    )
    low, high = np.array([[0.5, 0.0], [0.0, 0.0]]), np.array([[0.6, 0.1], [1.0, 0.0]])
    found = propose(posterior, points([1, 1], np.zeros((2, 2))), low, high, np.random.default_rng(0))
    assert ((low <= found) & (found <= high)).all()
