"""Exploration by the bandit: what it observes, the trust region, and the hyperparameters of copies."""

import numpy as np
import pytest

from stoix_like.run import pb2
from stoix_like.run.pb2 import TrustRegion, explore, observe, trust_region
from stoix_like.run.spaces import Space

SPACES = {"lr": Space(1e-4, 1e-2, is_log=True), "ent": Space(-1.0, 3.0, is_log=False)}


def record(updates, scores, lr, sources=None, failed=()):
    selected = {} if sources is None else {"population/continues": sources}
    hyperparams = {"hyperparams/lr": lr, "hyperparams/ent": [1.0] * len(lr)}
    return (
        {"updates": updates, "eval/episode_return_mean": scores, "population/failed": list(failed)}
        | hyperparams
        | selected
    )


def test_gains_are_those_of_an_interval_per_update_from_the_return_of_the_copied_member():
    lr = [1e-4, 1e-3, 1e-2, 1e-3]
    history = [
        record(0, [1.0, 2.0, 3.0, 0.0], lr),
        record(10, [2.0, 4.0, 3.0, np.nan], lr, [1, 1, 2, 3], failed=[3]),
        record(15, [5.0, 4.5, np.nan, 0.0], [1e-2, *lr[1:]], failed=[2, 3]),
    ]
    found = observe(history, SPACES)
    # The latest interval first: a copy starts at 4, and member 3 is frozen; in the first one, it diverged.
    np.testing.assert_allclose(found.gains, [1 / 5, 0.5 / 5, -np.inf, 0.1, 0.2, 0.0, -np.inf])
    np.testing.assert_array_equal(found.starts, [4.0, 4.0, 3.0, 1.0, 2.0, 3.0, 0.0])
    np.testing.assert_array_equal(found.time, [2, 2, 2, 1, 1, 1, 1])
    # Names in order: ent, in the middle of its range, then lr, whose range is logarithmic.
    np.testing.assert_allclose(
        found.settings, [[0.5, unit] for unit in (1.0, 0.5, 1.0, 0.0, 0.5, 1.0, 0.5)], atol=1e-12
    )


def test_trust_region_grows_after_3_successes_and_shrinks_after_10_failures_in_a_row():
    region = TrustRegion()
    for success in [True] * 3 + [False] * 9:
        region = region.after(success)
    assert region.length == pytest.approx(0.6)
    region = region.after(True)
    assert region == TrustRegion(region.length, 1, 0)
    for _ in range(10):
        region = region.after(False)
    assert region.length == pytest.approx(0.4)


def history_of(num_selections, best):
    """Return the records of selections in which member 0 copies 1, and the given member is the best one."""
    scores = [float(member == best) for member in range(3)]
    records = [record(10 * index, scores, [1e-3, 2e-3, 5e-3], [1, 1, 2]) for index in range(num_selections + 1)]
    return [*records[:-1], record(10 * num_selections, scores, [1e-3, 2e-3, 5e-3])]


def test_trust_region_follows_from_the_records_and_restarts():
    assert trust_region(history_of(3, best=0)) == (TrustRegion(0.6000000000000001), False)
    assert trust_region(history_of(9, best=1)) == (TrustRegion(0.4, 0, 9), False)
    # 0.4 / 1.5³ is less than 0.15, after 30 failures.
    assert trust_region(history_of(30, best=1)) == (TrustRegion(), True)
    # From the selection of the restart itself nothing is concluded.
    assert trust_region(history_of(31, best=1)) == (TrustRegion(), False)
    assert trust_region(history_of(32, best=1)) == (TrustRegion(failures=1), False)


@pytest.mark.parametrize("has_region", [False, True])
def test_copies_take_new_values_in_their_range_which_history_and_seed_determine(has_region):
    history, sources = history_of(5, best=1), np.array([1, 1, 2])
    first, again, other = (explore(history, sources, SPACES, seed, has_region) for seed in (7, 7, 8))
    assert first == again
    assert first.is_new == [True, False, False]
    assert first.entries == ({"population/trust_region": 0.4} if has_region else {})
    for name, space in SPACES.items():
        assert first.hyperparams[name][0] != other.hyperparams[name][0]
        assert np.float32(space.low) <= first.hyperparams[name][0] <= np.float32(space.high)


def test_a_trust_region_lies_around_the_member_that_is_copied():
    """Its sides have a product of 0.4², and within [0.1, 2] one length scale is at most 20 times the other."""
    low, high = TrustRegion().box(np.array([[0.5, 0.9]]), np.array([0.5, 2.0]))
    np.testing.assert_allclose([low[0], high[0]], [[0.4, 0.5], [0.6, 1.0]])
    history = history_of(5, best=1)
    found = [explore(history, np.array([1, 1, 2]), SPACES, seed, has_region=True).hyperparams for seed in range(5)]
    units = np.array([[SPACES[name].to_unit(values[name][:1])[0] for name in ("lr", "ent")] for values in found])
    center = np.array([SPACES["lr"].to_unit([2e-3])[0], 0.5])
    assert (np.abs(units - center).prod(1) <= 0.2**2).all()


def test_a_restart_changes_all_members_within_one_box():
    explored = explore(history_of(30, best=1), np.array([1, 1, 2]), SPACES, seed=0, has_region=True)
    assert explored.is_new == [True] * 3
    assert explored.entries == {"population/trust_region": 0.4}
    units = np.array([SPACES[name].to_unit(explored.hyperparams[name]) for name in ("lr", "ent")])
    assert np.ptp(units, axis=1).prod() <= 0.4**2
    assert (np.ptp(units, axis=1) > 0.0).all()


@pytest.fixture
def proposed(monkeypatch):
    """What `propose` is called with: the points that the process has, and those that it starts from."""
    found = []

    def propose(posterior, starts, low, high, rng):
        found.append((posterior, starts))
        return starts.settings

    monkeypatch.setattr(pb2, "propose", propose)
    return found


def test_copies_are_proposed_for_the_next_interval_of_the_member_that_they_continue(proposed):
    """Returns at the starts of intervals are 1, 2 and 3, and now, of the members that continue, 5, 5 and 4."""
    lr = [1e-4, 1e-3, 1e-2]
    history = [record(0, [1.0, 2.0, 3.0], lr), record(10, [6.0, 5.0, 4.0], lr)]
    explore(history, np.array([1, 1, 2]), SPACES, seed=0, has_region=False)
    ((posterior, starts),) = proposed
    np.testing.assert_allclose(starts.time, [2.0])
    # Ranks of 1 to 6 by 7; two share 5.5.
    np.testing.assert_allclose(starts.context, [[5.5 / 7]])
    # The members that continue themselves are pending.
    pending = posterior._points.take(np.arange(posterior.num_observations, len(posterior._points.time)))
    np.testing.assert_allclose(pending.settings, [[0.5, 0.5], [0.5, 1.0]], atol=1e-6)
    np.testing.assert_allclose(pending.context, [[5.5 / 7], [4 / 7]])
    np.testing.assert_allclose(pending.time, [2.0, 2.0])


def test_a_restart_looks_for_what_the_best_member_would_gain(proposed):
    """Of the ranks of starts and returns, those of the best members are in the upper half."""
    explore(history_of(30, best=1), np.array([1, 1, 2]), SPACES, seed=0, has_region=True)
    assert proposed[0][1].context[0, 0] > 0.5


def test_without_observations_values_are_drawn_from_the_range():
    history = history_of(1, best=1)
    history[0]["eval/episode_return_mean"] = [np.nan] * 3
    explored = explore(history, np.array([1, 1, 2]), SPACES, seed=0, has_region=False)
    assert 1e-4 <= explored.hyperparams["lr"][0] <= 1e-2
