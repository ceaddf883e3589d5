import numpy as np
import pytest

from stoix_like.utils.ratings import ELO_PER_NAT, elo_intervals, fit_elo, tabulate


def test_two_players_have_the_logit_of_their_score():
    """Without a prior, a score of 3/4 is a difference of 400 log10(3) = 190.8 points."""
    scores, games = tabulate([(0, 1, np.array([0.0, 0.5, 0.0, 0.5]))], 2)
    np.testing.assert_array_equal(scores, [[0, 2], [6, 0]])
    np.testing.assert_array_equal(games, [[0, 8], [8, 0]])
    np.testing.assert_allclose(fit_elo(scores, games, prior_games=1e-9), [0.0, 400 * np.log10(3)], atol=1e-4)


def test_ratings_of_a_chain_add_up():
    """Players that meet only their neighbours, each with odds of 2 to 1, are 120.4 points apart."""
    scores, games = np.zeros((2, 3, 3))
    for i in range(2):
        scores[i + 1, i], scores[i, i + 1], games[i, i + 1], games[i + 1, i] = 200, 100, 300, 300
    ratings = fit_elo(scores, games, prior_games=1e-9)
    np.testing.assert_allclose(ratings, 400 * np.log10(2) * np.arange(3), atol=1e-3)


def test_the_prior_keeps_ratings_of_unbeaten_players_finite():
    """For one player of G wins and one prior draw each: G (1 - p) = a - 1/2, p = s(2x), a = s(x) by symmetry."""
    games = 100 * (1 - np.eye(2))
    ratings = fit_elo(np.array([[0.0, 0.0], [100.0, 0.0]]), games)
    x = ratings[1] / 2 / ELO_PER_NAT
    s = lambda value: 1 / (1 + np.exp(-value))  # noqa: E731
    assert 100 * (1 - s(2 * x)) == pytest.approx(s(x) - 0.5)
    assert 800 < ratings[1] < 1200


@pytest.mark.parametrize("pairs", [[1.0], [1.0] * 50, [0.5] * 50, [0.0] * 2])
def test_equal_pairs_have_intervals_that_contain_the_rating(pairs):
    """Resampling them would give intervals of no width, however few there are."""
    outcomes = [(0, 1, np.asarray(pairs))]
    low, high = elo_intervals(outcomes, 2, 400)
    rating = fit_elo(*tabulate(outcomes, 2))[1]
    assert low[1] <= rating <= high[1]
    assert high[1] - low[1] > 10


@pytest.mark.parametrize("score", [0.0, 0.5, 1.0])
def test_intervals_of_equal_pairs_shrink_with_their_number(score):
    few, many = (np.ptp(elo_intervals([(0, 1, np.full(number, score))], 2, 400)[:, 1]) for number in (2, 200))
    assert few > 1.2 * many > 0


def test_intervals_contain_the_ratings_and_shrink():
    rng = np.random.default_rng(1)
    widths = []
    for games in (20, 2000):
        outcomes = [(0, 1, rng.choice([0.0, 0.5, 1.0], games, p=[0.5, 0.3, 0.2]))]
        low, high = elo_intervals(outcomes, 2, 200)
        assert low[0] == high[0] == 0.0
        rating = fit_elo(*tabulate(outcomes, 2))[1]
        assert low[1] < rating < high[1]
        widths.append(high[1] - low[1])
    assert widths[1] < widths[0] / 5
