"""Exploration by a bandit: the hyperparameters that copies of population-based training continue with.

PB2 (`run.bandit`) searches the whole range; BG-PBT searches a trust region around the hyperparameters of the member
that is copied, and restarts it elsewhere when it has become too small.

Source: Wan et al. 2022, "Bayesian generational population-based training" (BG-PBT), arXiv:2207.09405, with the
constants of its published code. Architectures are not searched: at a restart, members keep their weights. The center
of the next region maximises the upper confidence bound of the process at hand, which keeps its observations; the paper
fits another process to the best settings of earlier regions.

What is proposed is a function of the records of a run and its seed, so that a run resumes exactly.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from stoix_like.run.bandit import WINDOW, Points, Posterior, fit, propose
from stoix_like.run.spaces import Explored, Space

CONTINUES = "population/continues"
LENGTH = "population/trust_region"
_SCORE = "eval/episode_return_mean"


class Intervals(NamedTuple):
    """What members gained between two evaluations.

    Attributes:
        time: `[N]`, number of the evaluation at the end.
        starts: `[N]`, returns at the start, of the member that was copied where one was.
        settings: `[N, D]`, hyperparameters in the unit cube.
        gains: `[N]`, change of the return per update; -inf of a member that diverged.
    """

    time: np.ndarray
    starts: np.ndarray
    settings: np.ndarray
    gains: np.ndarray


class TrustRegion(NamedTuple):
    """The box around a member that is copied, in which its copies explore.

    Attributes:
        length: side of the box in the unit cube, before it is stretched by the length scales.
        successes: selections in a row after which a copy was the best member.
        failures: selections in a row after which none was.
    """

    length: float = 0.4
    successes: int = 0
    failures: int = 0

    def after(self, success: bool) -> TrustRegion:
        """Return the region after another selection: larger after 3 successes in a row, smaller after 10 failures."""
        successes, failures = (self.successes + 1, 0) if success else (0, self.failures + 1)
        if successes == 3:
            return TrustRegion(min(1.5 * self.length, 1.0))
        if failures == 10:
            return TrustRegion(self.length / 1.5)
        return TrustRegion(self.length, successes, failures)

    @property
    def is_too_small(self) -> bool:
        """Whether the region restarts."""
        return self.length <= 0.15

    def box(self, centers: np.ndarray, lengthscales: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the box around each center, `[K, D]`, longer where the function varies less."""
        sides = self.length * lengthscales / np.exp(np.log(lengthscales).mean())
        return np.clip(centers - 0.5 * sides, 0.0, 1.0), np.clip(centers + 0.5 * sides, 0.0, 1.0)


# A region that contains the whole range, wherever its center is and however it is stretched.
_WHOLE = TrustRegion(math.inf)


def explore(
    history: Sequence[Mapping[str, Any]],
    sources: np.ndarray,
    spaces: Mapping[str, Space],
    seed: int,
    has_region: bool,
) -> Explored:
    """Choose the hyperparameters of the next interval.

    Args:
        history: one record per evaluation; the members are selected after the last one.
        sources: `[P]`, by member the one that it continues.
        spaces: the range of each hyperparameter.
        seed: seed of the run.
        has_region: whether copies explore a trust region, with restarts, instead of the whole range.

    Returns:
        New hyperparameters for the copies, or at a restart for all members, in JSON values.
    """
    rng = np.random.default_rng([seed, len(history) - 1])
    region, is_restart = trust_region(history) if has_region else (_WHOLE, False)
    is_copy = sources != np.arange(len(sources))
    settings = _settings(history[-1], spaces)[sources]
    scores, data = scores_of(history[-1])[sources], observe(history, spaces)
    if len(data.gains) < 2:
        found = rng.uniform(size=settings.shape)
    else:
        # Ranks: returns have outliers, and no scale of their own.
        contexts = _ranks(np.concatenate([data.starts, scores]))[:, None]
        observed = Points(data.time, contexts[: len(data.starts)], data.settings)
        targets = special.ndtri(_ranks(data.gains))
        posterior = Posterior(fit(observed, targets), observed, targets)
        ahead = Points(np.full(len(scores), float(len(history))), contexts[len(data.starts) :], settings)
        found = _propose(posterior, ahead, is_copy, region, is_restart, rng)
    values = {
        # What the programs train with.
        name: spaces[name].from_unit(column).astype(np.float32).tolist()
        for name, column in zip(sorted(spaces), found.T, strict=True)
    }
    return Explored(values, (is_copy | is_restart).tolist(), {LENGTH: region.length} if has_region else {})


def _propose(
    posterior: Posterior,
    ahead: Points,
    is_copy: np.ndarray,
    region: TrustRegion,
    is_restart: bool,
    rng: np.random.Generator,
) -> np.ndarray:
    """Return the settings of the next interval; `ahead` has the current ones, of the member that is copied."""
    lengthscales = posterior.kernel.lengthscales[1:]
    if is_restart:
        best = ahead.take(np.argmax(ahead.context, axis=0))
        low, high = region.box(propose(posterior, best, *_WHOLE.box(best.settings, lengthscales), rng), lengthscales)
        return rng.uniform(low, high, ahead.settings.shape)
    low, high = region.box(ahead.settings, lengthscales)
    posterior.add_pending(ahead.take(~is_copy))
    found = ahead.settings.copy()
    found[is_copy] = propose(posterior, ahead.take(is_copy), low[is_copy], high[is_copy], rng)
    return found


def observe(history: Sequence[Mapping[str, Any]], spaces: Mapping[str, Space]) -> Intervals:
    """Return what members gained in the latest intervals, at most `WINDOW` of them.

    Args:
        history: one record per evaluation.
        spaces: the range of each hyperparameter.

    Returns:
        The intervals, but for those of members that were frozen or whose start has no return.
    """
    found, left = [], WINDOW
    for number in range(len(history) - 1, 0, -1):
        before, after = history[number - 1 : number + 1]
        own = np.arange(len(after[_SCORE]))
        sources = np.asarray(before.get(CONTINUES, own))
        has_failed, had_failed = (np.isin(own, record["population/failed"]) for record in (after, before))
        starts, ends = scores_of(before)[sources], scores_of(after)
        with np.errstate(invalid="ignore"):
            gains = np.where(has_failed, -np.inf, (ends - starts) / (after["updates"] - before["updates"]))
        is_used = np.isfinite(starts) & ~(had_failed & (sources == own))
        time = np.full(len(own), float(number))
        rows = (time, starts, _settings(after, spaces), gains)
        found.append(Intervals(*(column[is_used][:left] for column in rows)))
        left -= len(found[-1].time)
        if left == 0:
            break
    return Intervals(*(np.concatenate(columns) for columns in zip(*found, strict=True)))


def trust_region(history: Sequence[Mapping[str, Any]]) -> tuple[TrustRegion, bool]:
    """Return the trust region at the end of a history, and whether it restarts there.

    A selection succeeds if one of its copies is the best member at the next one. Nothing is concluded from a restart.

    Args:
        history: one record per evaluation; the last one is that of the selection.
    """
    region, is_restart = TrustRegion(), False
    selections = [record for record in history[:-1] if CONTINUES in record]
    for before, after in itertools.pairwise([*selections, history[-1]]):
        sources = np.asarray(before[CONTINUES])
        is_copy, scores = sources != np.arange(len(sources)), scores_of(after)
        if is_copy.any() and not is_restart:
            region = region.after(scores[is_copy].max() == scores.max())
        is_restart = region.is_too_small
        region = TrustRegion() if is_restart else region
    return region, is_restart


def scores_of(record: Mapping[str, Any]) -> np.ndarray:
    """Return the mean return of each member in an evaluation, `[P]`; -inf where there is none."""
    scores = np.asarray(record[_SCORE], np.float64)
    return np.where(np.isnan(scores), -np.inf, scores)


def _settings(record: Mapping[str, Any], spaces: Mapping[str, Space]) -> np.ndarray:
    """Return the hyperparameters of the members in the unit cube, `[P, D]`."""
    return np.stack([spaces[name].to_unit(record[f"hyperparams/{name}"]) for name in sorted(spaces)], axis=1)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the ranks of values in (0, 1); equal ones share theirs."""
    return stats.rankdata(values) / (len(values) + 1)
