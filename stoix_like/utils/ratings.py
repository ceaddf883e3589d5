"""Ratings of players from the results of their games."""

from __future__ import annotations

import numpy as np

ELO_PER_NAT = 400.0 / np.log(10.0)
"""A player with odds of e to win has this many points more than the other."""
_MAX_ITERATIONS = 100


def fit_elo(scores: np.ndarray, games: np.ndarray, prior_games: float = 1.0) -> np.ndarray:
    """Fit ratings by maximum likelihood to the model of Bradley and Terry (1952), a draw being half a win.

        P(i beats j) = 1 / (1 + 10^((r_j - r_i) / 400))

    `scores`: `[K, K]`, points of player i against player j: 1 for a win, 0.5 for a draw.
    `games`: `[K, K]`, number of games between them, symmetric, with a zero diagonal.
    Returns `[K]`, ratings in points of Elo above the first player.
    """
    theta = np.zeros(len(games))
    for _ in range(_MAX_ITERATIONS):
        expected, anchor = _expected(theta[:, None] - theta[None]), _expected(theta)
        gradient = (scores - games * expected).sum(1) + prior_games * (0.5 - anchor)
        weights = games * expected * (1.0 - expected)
        hessian = np.diag(weights.sum(1) + prior_games * anchor * (1.0 - anchor)) - weights
        # The likelihood is concave; bounded steps keep Newton's method from overshooting where it is flat.
        update = np.clip(np.linalg.solve(hessian, gradient), -1.0, 1.0)
        theta = theta + update
        if np.abs(update).max() < 1e-10:
            break
    return ELO_PER_NAT * (theta - theta[0])


def elo_intervals(outcomes: list[tuple[int, int, np.ndarray]], num_players: int, num_resamples: int) -> np.ndarray:
    """Compute 95 % percentile bootstrap intervals of ratings, resampling the pairs of games of each match.

    Pairs that all have one score s say nothing about their spread: the score of such a match is drawn from the Bayesian
    bootstrap, with half a pair lost and half a pair won in addition to its G pairs.

        w_s s + w_1,   (w_s, w_0, w_1) ~ Dirichlet(G, 1/2, 1/2)

    Source: Rubin 1981, The Bayesian Bootstrap.

    Returns `[2, K]`, the ends of the intervals, which contain the rating, in points of Elo above the first player.
    """
    rng = np.random.default_rng(0)
    fits = []
    for _ in range(num_resamples):
        drawn = [(i, j, _resample(pairs, rng)) for i, j, pairs in outcomes]
        fits.append(fit_elo(*tabulate(drawn, num_players)))
    (low, high), rating = np.percentile(fits, [2.5, 97.5], axis=0), fit_elo(*tabulate(outcomes, num_players))
    return np.stack([np.minimum(low, rating), np.maximum(high, rating)])


def _resample(pairs: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if (pairs != pairs[0]).any():
        return pairs[rng.integers(len(pairs), size=len(pairs))]
    share, _, won = rng.dirichlet([len(pairs), 0.5, 0.5])
    return np.full(len(pairs), share * pairs[0] + won)


def tabulate(outcomes: list[tuple[int, int, np.ndarray]], num_players: int) -> tuple[np.ndarray, np.ndarray]:
    """Sum the results of matches.

    Returns `[K, K]`, the points of each player against each other one, and the number of their games.
    """
    scores, games = np.zeros((2, num_players, num_players))
    for i, j, pairs in outcomes:
        scores[i, j] += 2.0 * pairs.sum()
        scores[j, i] += 2.0 * (1.0 - pairs).sum()
        games[i, j] += 2.0 * len(pairs)
        games[j, i] += 2.0 * len(pairs)
    return scores, games


def _expected(difference: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-difference))
