"""Plots of the members of a population over their hyperparameters."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from stoix_like.arch_config import step_unit
from stoix_like.errors import ConfigError, nearest
from stoix_like.lab.analysis.plots import X_AXES, new_axes
from stoix_like.lab.analysis.scores import lowest
from stoix_like.storage.recorded_runs import RETURN, Member, Run, varied_hyperparams


def hyperparameter_slices(
    members: Sequence[Member], name: str, *, kind: str = "final", title: str = "", ax: Axes | None = None
) -> Axes:
    """Plot the return of each member of a population over one of its hyperparameters.

    Diverged members count as the lowest return of all. `kind`: `final` or `best`.
    """
    members = varying(members, [name])
    axes = new_axes(ax)
    values = np.asarray([member.hyperparams[name] for member in members])
    returns = _returns(members, kind)
    axes.scatter(values, returns, s=18)
    settings, means = np.unique(values), []
    if len(settings) < len(values):
        means = [_mean(returns[values == setting]) for setting in settings]
        axes.plot(settings, means, marker="_", markersize=14, linewidth=1)
    if _is_log(settings):
        axes.set_xscale("log")
    axes.set(xlabel=name, ylabel=f"{kind} mean episode return", title=title or _title_of(members))
    return axes


def heat_map(
    members: Sequence[Member], first: str, second: str, *, kind: str = "final", title: str = "", ax: Axes | None = None
) -> Axes:
    """Plot the mean return of a population over two hyperparameters as colours; a cell without a member is empty.

    Diverged members count as the lowest return of all. `kind`: `final` or `best`.
    """
    members = varying(members, [first, second])
    axes = new_axes(ax)
    columns, rows = (sorted({member.hyperparams[name] for member in members}) for name in (first, second))
    cells: dict[tuple[int, int], list[float]] = {}
    for member, value in zip(members, _returns(members, kind), strict=True):
        place = rows.index(member.hyperparams[second]), columns.index(member.hyperparams[first])
        cells.setdefault(place, []).append(value)
    table = np.full((len(rows), len(columns)), np.nan)
    for place, returns in cells.items():
        table[place] = _mean(np.asarray(returns))
    axes.grid(False)
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis")
    shade_above = np.nanmin(table) + 0.6 * (np.nanmax(table) - np.nanmin(table))
    for (row, column), value in np.ndenumerate(table):
        if math.isfinite(value):
            shade = "black" if value > shade_above else "white"
            axes.text(column, row, f"{value:.4g}", ha="center", va="center", color=shade, fontsize="small")
    axes.set_xticks(range(len(columns)), [f"{value:.4g}" for value in columns])
    axes.set_yticks(range(len(rows)), [f"{value:.4g}" for value in rows])
    axes.set(xlabel=first, ylabel=second, title=title or _title_of(members))
    axes.figure.colorbar(image, ax=axes, label=f"{kind} mean episode return")
    return axes


def _returns(members: Sequence[Member], kind: str) -> np.ndarray:
    """Return the return of each member; NaN where one that did not diverge has none, or all diverged."""
    returns = np.asarray([member.score(kind) for member in members])
    diverged = np.asarray([bool(member.failure) for member in members])
    return np.where(diverged & np.isnan(returns), lowest([returns]), returns)


def _mean(returns: np.ndarray) -> float:
    """Return the mean of the members that have a return; NaN where none has."""
    finite = returns[np.isfinite(returns)]
    return float(np.mean(finite)) if len(finite) else math.nan


def lineage(run: Run, name: str, *, ax: Axes | None = None) -> Axes:
    """Plot a hyperparameter of each member over the steps of its budget, where selections change it.

    Lines are coloured by the return at the end of each interval; where a member is replaced, a thin line leads from the
    member that it continues. The run has `arch.population.pbt`.
    """
    key = f"hyperparams/{name}"
    records = [record for record in run.history if key in record]
    if len(records) < 2:
        raise ConfigError(f"{run.directory} has no {name} over time: {nearest(name, varied_hyperparams(run.last))}")
    axes = new_axes(ax)
    steps = [record["env_steps"] for record in records]
    values = np.asarray([record[key] for record in records], np.float64)
    returns = np.asarray([record[RETURN] for record in records[1:]], np.float64)
    lines = [
        [(start, value), (end, value)]
        for start, end, row in zip(steps, steps[1:], values[1:], strict=False)
        for value in row
    ]
    jumps = [
        [(step, old[source]), (step, new[member])]
        for step, record, old, new in zip(steps, records, values, values[1:], strict=False)
        for member, source in enumerate(record.get("population/continues", ()))
        if member != source
    ]
    axes.add_collection(LineCollection(jumps, colors="0.75", linewidths=0.8, zorder=1))
    intervals = LineCollection(lines, array=returns.ravel(), cmap="viridis", linewidths=1.8, zorder=2)
    axes.add_collection(intervals)
    axes.set_yscale("log" if _is_log(values) else "linear")
    axes.autoscale_view()
    unit = step_unit(run.config)
    axes.set(xlabel=X_AXES["env_steps"] if unit == "env steps" else unit, ylabel=name)
    axes.set_title(f"{run.system} on {run.environment}")
    axes.figure.colorbar(intervals, ax=axes, label="mean episode return")
    return axes


def _is_log(values: np.ndarray) -> bool:
    """Return whether values are shown on a logarithmic axis: if they are positive, and differ much."""
    return bool(values.min() > 0.0 and values.max() / values.min() >= 30.0)


def varying(members: Sequence[Member], names: Sequence[str]) -> list[Member]:
    """Return the members of the populations that vary all of the given hyperparameters."""
    varied = sorted({key for member in members for key in member.hyperparams})
    for name in names:
        if name not in varied:
            raise ConfigError(f"{name} does not vary between members: {nearest(name, varied)}")
    found = [member for member in members if all(name in member.hyperparams for name in names)]
    if not found:
        raise ConfigError(f"no population varies both {' and '.join(names)}: choose two that one of them varies")
    return found


def _title_of(members: Sequence[Member]) -> str:
    return ", ".join(dict.fromkeys(f"{member.run.system} on {member.run.environment}" for member in members))
