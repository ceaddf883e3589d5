"""A bandit that proposes hyperparameters, by a Gaussian process over what members gained with them.

Source: Parker-Holder, Nguyen and Roberts 2020, "Provably efficient online hyperparameter optimization with
population-based bandits" (PB2), arXiv:2002.02518.

All of it is float64 of numpy, and a function of its arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from scipy import linalg, optimize

WINDOW = 192
"""Observations that a process is fitted to, the latest ones: their number cubed is the cost of a fit."""
# Candidates of each of these searches, which narrow the box around the best point of the one before.
_CANDIDATES, _WIDTHS = 256, (1.0, 0.2, 0.04)
# Variance and noise of targets of unit variance, decay per interval, and length scales within the unit cube.
_BOUNDS = {"variance": (0.05, 20.0), "noise": (0.01, 1.0), "decay": (1e-4, 0.7), "lengthscale": (0.1, 2.0)}
_STARTS = ((1.0, 0.1, 0.05, 0.5), (0.5, 0.5, 0.05, 2.0))
_MAX_ITERATIONS = 20


class Points(NamedTuple):
    """Inputs of a process.

    Attributes:
        time: `[N]`, in intervals.
        context: `[N, C]`, what is known before an interval and cannot be chosen, in the unit cube.
        settings: `[N, D]`, hyperparameters in the unit cube.
    """

    time: np.ndarray
    context: np.ndarray
    settings: np.ndarray

    def join(self, other: Points) -> Points:
        """Return these points, then the others."""
        return Points(*(np.concatenate(pair) for pair in zip(self, other, strict=True)))

    def take(self, index: np.ndarray) -> Points:
        """Return the points that a mask or indices select."""
        return Points(*(column[index] for column in self))

    def rows(self) -> Iterator[Points]:
        """Yield the points, one by one."""
        return (self.take(np.array([row])) for row in range(len(self.time)))


class Kernel(NamedTuple):
    """A time-varying squared exponential, with `x` the context and the settings.

        k((t, x), (t', x')) = s² (1 - omega)^(|t - t'| / 2) exp(-½ Σ_j (x_j - x'_j)² / l_j²)

    Source: Bogunovic, Scarlett and Cevher 2016, "Time-varying Gaussian process bandit optimization"; PB2, equation 6.

    Attributes:
        variance: s², of the function.
        noise: variance of an observation around the function.
        decay: -½ log(1 - omega), per interval.
        lengthscales: `[C + D]`, l_j.
    """

    variance: float
    noise: float
    decay: float
    lengthscales: np.ndarray

    def __call__(self, one: Points, other: Points) -> np.ndarray:
        """Return the covariances of all pairs, `[N, M]`."""
        gaps = np.abs(one.time[:, None] - other.time)
        scaled = [np.concatenate([each.context, each.settings], axis=1) / self.lengthscales for each in (one, other)]
        squares = (scaled[0] ** 2).sum(1)[:, None] + (scaled[1] ** 2).sum(1) - 2.0 * scaled[0] @ scaled[1].T
        return self.variance * np.exp(-self.decay * gaps - 0.5 * np.maximum(squares, 0.0))


def log_likelihood(
    log_kernel: np.ndarray, gaps: np.ndarray, squares: np.ndarray, targets: np.ndarray
) -> tuple[float, np.ndarray]:
    """Compute the log marginal likelihood of a process with mean zero, and its gradient.

        log p(y) = -½ yᵀ a - ½ log |K| - N/2 log 2 pi,  d log p / d theta = ½ tr((a aᵀ - K⁻¹) dK / d theta),  a = K⁻¹ y

    Source: Rasmussen and Williams 2006, "Gaussian processes for machine learning", equations 5.8 and 5.9.

    Args:
        log_kernel: `[3 + J]`, logarithms of the variance, the noise, the decay and the length scales of a `Kernel`.
        gaps: `[N, N]`, |t - t'| in intervals.
        squares: `[J, N, N]`, (x_j - x'_j)².
        targets: `[N]`.

    Returns:
        The logarithm, and its gradient `[3 + J]` with respect to `log_kernel`.
    """
    variance, noise, decay, *lengthscales = np.exp(log_kernel)
    weights = np.asarray(lengthscales) ** -2.0
    signal = variance * np.exp(-decay * gaps - 0.5 * np.tensordot(weights, squares, 1))
    size = len(targets)
    factor = linalg.cholesky(signal + noise * np.eye(size), lower=True, check_finite=False)
    half, _ = linalg.lapack.dpotri(factor, lower=True)
    inverse = np.tril(half) + np.tril(half, -1).T
    solved = inverse @ targets
    value = -0.5 * targets @ solved - np.log(np.diag(factor)).sum() - 0.5 * size * math.log(2 * math.pi)
    outer = np.outer(solved, solved) - inverse
    weighted = outer * signal
    gradient = [
        weighted.sum(),
        noise * np.trace(outer),
        -decay * (weighted * gaps).sum(),
        *(weights * np.tensordot(squares, weighted, 2)),
    ]
    return float(value), 0.5 * np.array(gradient)


def fit(points: Points, targets: np.ndarray) -> Kernel:
    """Maximise the marginal likelihood of observations.

    Args:
        points: `[N]` inputs.
        targets: `[N]`, of mean zero and unit variance.

    Returns:
        The kernel that a search finds from the best of a few starts.
    """
    inputs = np.concatenate([points.context, points.settings], axis=1).T
    gaps = np.abs(points.time[:, None] - points.time)
    squares = (inputs[:, :, None] - inputs[:, None, :]) ** 2

    def loss(log_kernel: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = log_likelihood(log_kernel, gaps, squares, targets)
        return -value, -gradient

    def spread(values: tuple[float, ...]) -> np.ndarray:
        return np.log([*values[:3], *values[3:] * len(inputs)])

    lows, highs = (spread(ends) for ends in zip(*_BOUNDS.values(), strict=True))
    bounds = list(zip(lows, highs, strict=True))
    start = min(map(spread, _STARTS), key=lambda point: loss(point)[0])
    found = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": _MAX_ITERATIONS}
    )
    variance, noise, decay, *lengthscales = np.exp(found.x)
    return Kernel(variance, noise, decay, np.asarray(lengthscales))


class Posterior:
    """A process after observations, and after points whose observations are still to come.

    The latter reduce the variance, which depends on inputs alone, and leave the mean as it is.

    Source: Desautels, Krause and Burdick 2014, "Parallelizing exploration-exploitation tradeoffs in Gaussian process
    bandit optimization".

    Args:
        kernel: from `fit`.
        points: `[N]` inputs.
        targets: `[N]`.
    """

    def __init__(self, kernel: Kernel, points: Points, targets: np.ndarray) -> None:
        self.kernel = kernel
        self._points = points
        # A pending point adds a row.
        self._whiten = _whitening(kernel, points)
        self._whitened_targets = self._whiten @ targets

    @property
    def num_observations(self) -> int:
        """N, without points that are pending."""
        return len(self._whitened_targets)

    def add_pending(self, points: Points) -> None:
        """Add points whose observations are still to come; of more than `WINDOW`, the latest ones count."""
        for point in points.rows():
            if len(self._points.time) == self.num_observations + WINDOW:
                self._forget(WINDOW // 2)
            row = self._whiten @ self.kernel(self._points, point)[:, 0]
            rest = math.sqrt(self.kernel.variance + self.kernel.noise - row @ row)
            below = np.append(-row @ self._whiten, 1.0) / rest
            self._whiten = np.vstack([np.pad(self._whiten, ((0, 0), (0, 1))), below])
            self._points = self._points.join(point)

    def _forget(self, count: int) -> None:
        """Remove the first pending points, so that many members cost no more than their number."""
        index = np.arange(len(self._points.time))
        first = self.num_observations
        self._points = self._points.take((index < first) | (index >= first + count))
        self._whiten = _whitening(self.kernel, self._points)

    def __call__(self, points: Points) -> tuple[np.ndarray, np.ndarray]:
        """Return the mean and the standard deviation of the function at points, `[M]` each."""
        whitened = self._whiten @ self.kernel(self._points, points)
        variance = self.kernel.variance - (whitened**2).sum(0)
        return self._whitened_targets @ whitened[: self.num_observations], np.sqrt(np.maximum(variance, 0.0))


def _whitening(kernel: Kernel, points: Points) -> np.ndarray:
    """Return the inverse of the lower Cholesky factor of the covariance of observations at points."""
    identity = np.eye(len(points.time))
    factor = linalg.cholesky(kernel(points, points) + kernel.noise * identity, lower=True)
    return linalg.solve_triangular(factor, identity, lower=True)


def exploration(num_observations: int) -> float:
    """Compute the weight of the variance in an upper confidence bound, with the constants of the code of PB2.

        beta = 0.2 + max(0, log(0.4 N))

    Args:
        num_observations: N.
    """
    return 0.2 + max(0.0, math.log(0.4 * num_observations))


def propose(
    posterior: Posterior,
    starts: Points,
    low: np.ndarray,
    high: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """Choose settings one after the other, each with the highest upper confidence bound.

        x = argmax mean(x) + sqrt(beta) deviation(x),  beta from `exploration`

    Those that were chosen are pending for the next ones, so that no two copies try the same.

    Args:
        posterior: the process, which takes in the chosen points.
        starts: `[K]` times and contexts; their settings are not used.
        low: `[K, D]`, lower ends of the settings.
        high: `[K, D]`, upper ends.
        rng: draws candidates.

    Returns:
        `[K, D]`, within the ends.
    """
    factor = math.sqrt(exploration(posterior.num_observations))
    chosen = []
    for start, bottom, top in zip(starts.rows(), low, high, strict=True):
        best = 0.5 * (bottom + top)
        for width in _WIDTHS:
            half = 0.5 * width * (top - bottom)
            ends = np.maximum(best - half, bottom), np.minimum(best + half, top)
            candidates = np.vstack([best, rng.uniform(*ends, (_CANDIDATES, len(best)))])
            mean, deviation = posterior(
                Points(
                    np.repeat(start.time, len(candidates)),
                    np.repeat(start.context, len(candidates), axis=0),
                    candidates,
                )
            )
            best = candidates[np.argmax(mean + factor * deviation)]
        posterior.add_pending(start._replace(settings=best[None]))
        chosen.append(best)
    return np.array(chosen).reshape(low.shape)
