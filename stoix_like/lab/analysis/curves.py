"""Metrics of members over time, at common points."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stoix_like.errors import ConfigError, nearest
from stoix_like.storage.recorded_runs import RETURN, Member
from stoix_like.storage.run_files import METRICS, UPDATES, read_last_record

_NUM_POINTS = 101
_MAX_POINTS = 500
# Of seeds that end at a smaller share of the longest run, curves are cut with a note.
_MOST = 0.9
# Metrics in which diverged members have the lowest value of the others.
_RETURNS = (RETURN, "train/episode_return_mean", "updates/episode_return_mean")
_FAILED = "population/failed"


class MemberCurve(NamedTuple):
    """A metric of one member."""

    points: np.ndarray  # `[T]`, along the horizontal axis
    values: np.ndarray  # `[T]`
    is_lost: np.ndarray  # `[T]`, where it has diverged and has no return
    is_last: bool  # whether it has none beyond its last point, either

    def covers(self, points: np.ndarray) -> np.ndarray:
        """Return at which points it was recorded, or had diverged."""
        return np.isin(points, self.points) | (self.is_last & (points > self.points[-1]))

    def at(self, points: np.ndarray) -> np.ndarray:
        """Return linear interpolations; NaN once it has diverged."""
        lost = np.append(self.is_lost, self.is_last)[np.searchsorted(self.points, points)]
        if self.is_lost.all():
            return np.full(len(points), np.nan)
        values = np.interp(points, self.points[~self.is_lost], self.values[~self.is_lost])
        return np.where(lost, np.nan, values)


def curve(members: Sequence[Member], metric: str, x: str = "env_steps") -> tuple[np.ndarray, np.ndarray]:
    """Return a metric of several members at common points.

    From its divergence on, the return of a member counts as the lowest of the others at that point; a note says so.

    Returns `[T]` points, and `[S, T]` values.
    """
    found = [member_curve(member, metric, x) for member in members]
    some = [one for one in found if not one.is_lost.all()]
    if not some:
        raise ConfigError(f"{metric}: all runs of {members[0].run.system} diverged before they had a value")
    points = max((one.points for one in some), key=len)
    if all(np.array_equal(one.points, points[: len(one.points)]) and one.covers(points).all() for one in some):
        points = thin(points)
    else:
        places = [place for place, one in enumerate(found) if not one.is_last]
        places = places or [int(np.argmax([one.points[-1] for one in found]))]
        directories = [members[place].run.directory for place in places]
        what = f"{metric} of {members[0].run.system}"
        points = common_grid([found[place].points for place in places], directories, what, x)
    rows = np.stack([one.at(points) for one in found])
    counted = with_lowest(rows)
    if number := int((np.isnan(rows) & np.isfinite(counted)).any(-1).sum()):
        diverged = f"{number} member(s) that diverged count as the lowest of the others"
        print(f"{metric} of {members[0].run.system}: {diverged}", file=sys.stderr)
    shown = np.isfinite(counted).all(0)
    if not shown.any():
        raise ConfigError(f"{metric}: there is no point at which a run of {members[0].run.system} has a value")
    return points[shown], counted[:, shown]


def thin(points: np.ndarray) -> np.ndarray:
    """Return at most `_MAX_POINTS` of the points, at even intervals."""
    return points[np.unique(np.linspace(0, len(points) - 1, min(_MAX_POINTS, len(points))).round().astype(int))]


def with_lowest(rows: np.ndarray) -> np.ndarray:
    """Replace NaN in values `[S, T]` by the lowest value at that point, where there is one."""
    lowest = np.where(np.isnan(rows), np.inf, rows).min(0)
    return np.where(np.isnan(rows) & np.isfinite(lowest), lowest, rows)


def common_grid(points: Sequence[np.ndarray], names: Sequence[Any], what: str, x: str) -> np.ndarray:
    """Return even points that all of the named curves cover; a note says so if one is much longer."""
    starts, ends = [own[0] for own in points], [own[-1] for own in points]
    start, end = max(starts), min(ends)
    if start > end:
        late, early = names[starts.index(start)], names[ends.index(end)]
        raise ConfigError(
            f"{what}: the values of {late} start at {start:,.0f} {x}, after those of {early} end at {end:,.0f}: plot"
            " them apart, or continue the shorter run"
        )
    if end < _MOST * max(ends):
        extent = f"up to {end:,.0f} of {max(ends):,.0f} {x}"
        print(f"{what} is shown {extent}: {names[ends.index(end)]} ends there", file=sys.stderr)
    return np.linspace(start, end, _NUM_POINTS)


def member_curve(member: Member, metric: str, x: str) -> MemberCurve:
    """Read a metric of one member."""
    series = member.run.series(metric)
    points = series.env_steps if x == "env_steps" else series.wall_seconds
    if None in points:
        raise ConfigError(f"x={x}: the records of {metric} only have env_steps: use x=env_steps")
    values = np.asarray(list(map(member.number, series.values)), np.float64)
    finite, is_last = np.isfinite(values), metric in _RETURNS and bool(member.failure)
    if not finite.any() and not (is_last and len(values)):
        known = {name for path in (METRICS, UPDATES) for name in read_last_record(member.run.directory / path)}
        raise ConfigError(f"{member.run.directory} has no value of {metric}: {nearest(metric, known)}")
    # Seeds that take programs from a cache would otherwise have ended before others start.
    start = member.run.series(RETURN).wall_seconds[0] if x == "wall_seconds" else 0
    is_lost = np.zeros(len(values), bool)
    if metric in _RETURNS:  # in the evaluation at, or next after, each point
        failed = member.run.series(_FAILED)
        flags = np.asarray([isinstance(row, list) and member.place in row for row in failed.values] or [False])
        is_lost = flags[np.minimum(np.searchsorted(failed.env_steps, series.env_steps), len(flags) - 1)]
    if metric != RETURN:
        is_lost &= ~finite  # What came before, between two evaluations, counts.
    is_lost |= is_last and not finite.any()
    kept = finite | is_lost
    return MemberCurve(np.asarray(points, np.float64)[kept] - (start or 0.0), values[kept], is_lost[kept], is_last)
