"""Plots of runs, drawn into matplotlib axes."""

from __future__ import annotations

import math
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter
from scipy import stats

from stoix_like.errors import ConfigError, nearest
from stoix_like.lab.analysis.curves import common_grid, curve, member_curve, thin, with_lowest
from stoix_like.lab.analysis.groups import AlgorithmRuns, are_paired, common_tasks
from stoix_like.lab.analysis.scores import common_size, common_unit, raw_scores, score_tables, with_scores
from stoix_like.lab.analysis.statistics import TESTS, correct, p_value, resample_counts, trimmed_mean
from stoix_like.loggers.formats import center_name
from stoix_like.storage.recorded_runs import RETURN

X_AXES = {"env_steps": "environment steps", "wall_seconds": "wall-clock time after the first evaluation, in seconds"}
BANDS = ("bootstrap", "percentile", "deviation", "error", "none")
_TITLES = {RETURN: "mean episode return"}
_NUM_POINTS = 101
# Bands over the resamples of every point of a curve need fewer of them than a table.
NUM_RESAMPLES = 2000
_MAX_LABELS_INSIDE = 4
_LABEL_WIDTH = 40  # characters

_iqm = partial(stats.trim_mean, proportiontocut=0.25)
CENTERS: dict[str, Callable[..., np.ndarray]] = {"iqm": _iqm, "mean": np.mean, "median": np.median}


def learning_curves(
    algorithms: Sequence[AlgorithmRuns],
    task: str | None = None,
    *,
    metric: str = RETURN,
    x: str = "env_steps",
    center: str = "iqm",
    band: str = "bootstrap",
    test: str | None = None,
    level: float = 0.05,
    ax: Axes | None = None,
) -> Axes:
    """Plot a metric over the course of training: a line per algorithm, with a band over its seeds.

    Args:
        algorithms: from `read`.
        task: the environment; it can be omitted if there is only one.
        metric: name of a metric of the records, of evaluations or, as `updates/…`, between them.
        x: `env_steps` of each member, or `wall_seconds` since its first evaluation, which follows compilation.
        center: `iqm`, `mean` or `median` over seeds.
        band: `bootstrap` (interval of the center), `percentile` (2.5th to 97.5th of the seeds), `deviation` (standard
            deviation), `error` (standard error) or `none`.
        test: for two algorithms, mark where one of `statistics.TESTS` decides at `level`, corrected for all points.
        level: significance level; the bootstrap interval has the confidence 1 - level.
        ax: axes to draw into; None for new ones.

    Raises:
        ConfigError: an argument is unknown, no run has the metric, or a seed starts after another one ends.
    """
    choices = ("x", x, X_AXES), ("center", center, CENTERS), ("band", band, BANDS), ("test", test, TESTS)
    for name, value, known in choices:
        if value is not None and value not in known:
            raise ConfigError(f"{name}={value} is unknown: {nearest(value, known)}")
    task = _task(algorithms, task)
    axes = new_axes(ax)
    shown = [algorithm for algorithm in algorithms if task in algorithm.tasks]
    curves = [(algorithm, *curve(algorithm.tasks[task], metric, x)) for algorithm in shown]
    for algorithm, grid, values in curves:
        seeds = f"{len(values)} seed{'s' * (len(values) > 1)}"
        (line,) = axes.plot(grid, CENTERS[center](values, axis=0), label=f"{algorithm.label} ({seeds})")
        low, high = _band(values, center, band, level)
        if low is not None:
            axes.fill_between(grid, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    if test is not None and len(curves) == 2:
        _mark_differences(axes, shown, task, metric, x, test, level)
    _label_x(axes, x, shown)
    axes.set_ylabel(_TITLES.get(metric, metric))
    _say_what(axes, task, center, band, level, max(len(values) for _, _, values in curves))
    _legend(axes)
    return axes


def arrange(panels: Sequence[Callable[..., Any]], width: float = 7.0, height: float = 4.2) -> Figure:
    """Draw panels below each other, up to three side by side. `width`, `height`: of one panel, in inches."""
    columns = min(len(panels), 3)
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    for position, panel in enumerate(panels):
        panel(ax=figure.add_subplot(rows, columns, position + 1))
    return figure


def _label_x(axes: Axes, x: str, algorithms: Sequence[AlgorithmRuns]) -> None:
    label = X_AXES[x]
    if x == "env_steps":
        unit = common_unit(member for algorithm in algorithms for member in algorithm.members)
        label = label if unit == "env steps" else unit
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))  # 250k, so that labels do not run into each other
    axes.set_xlabel(label)


def _say_what(axes: Axes, title: str, center: str, band: str, level: float, seeds: int, num_tasks: int = 1) -> None:
    """Write the title, and below it what lines and bands are."""
    name = center_name(seeds * num_tasks) if center == "iqm" else center
    bands = {
        "bootstrap": f"{100.0 * (1.0 - level):g} % bootstrap interval of the {name}",
        "percentile": "2.5th to 97.5th percentile of the seeds",
        "deviation": "standard deviation over seeds",
        "error": "standard error of the mean",
        "none": "",
    }
    shown = f"; band: {bands[band]}" if bands[band] else ""
    axes.set_title(title, pad=18)
    if seeds > 1:
        text = f"line: {name} over seeds{' and environments' * (num_tasks > 1)}{shown}"
    else:
        text = "one seed" if num_tasks == 1 else f"line: {name} over environments, one seed of each: no band"
    axes.text(0.0, 1.015, text, transform=axes.transAxes, va="bottom", fontsize="small", color="0.35")


def _legend(axes: Axes) -> None:
    """Draw the legend, next to the axes if it has many lines."""
    handles, labels = axes.get_legend_handles_labels()
    wrapped = [textwrap.fill(label, _LABEL_WIDTH, break_on_hyphens=False) for label in labels]
    if len(labels) > _MAX_LABELS_INSIDE:
        axes.legend(handles, wrapped, loc="upper left", bbox_to_anchor=(1.01, 1.0), fontsize="small")
    else:
        axes.legend(handles, wrapped, loc="best", fontsize="small")


def length_curves(curves: dict[str, dict[float, np.ndarray]], task: str, key: str, kind: str, *, ax: Axes) -> None:
    """Plot interquartile means of returns `[S]`, by label and length of a task, with a bootstrap band over seeds."""
    axes, level = new_axes(ax), 0.05
    for label, returns in curves.items():
        lengths, columns = zip(*sorted(returns.items()), strict=True)
        (line,) = axes.plot(lengths, [_iqm(column) for column in columns], marker="o", markersize=4, label=label)
        ends = [_iqm_band(column[:, None], (len(column), 1), level)[:, 0] for column in columns]
        axes.fill_between(lengths, *np.transpose(ends), color=line.get_color(), alpha=0.2, linewidth=0)
    every = np.unique([length for returns in curves.values() for length in returns])
    if every.min() > 0.0:
        axes.set_xscale("log", base=2)
        axes.set_xticks(every, [f"{length:g}" for length in every])
        axes.minorticks_off()
    axes.set(xlabel=key, ylabel=f"{kind} mean episode return")
    seeds = max(len(column) for one in curves.values() for column in one.values())
    _say_what(axes, task, "iqm", "bootstrap", level, seeds)
    _legend(axes)


def _band(values: np.ndarray, center: str, band: str, level: float) -> tuple[Any, Any]:
    if band == "none" or len(values) == 1:
        return None, None
    if band == "percentile":
        return tuple(np.percentile(values, [2.5, 97.5], axis=0))
    middle = CENTERS[center](values, axis=0)
    if band == "bootstrap" and center == "iqm":
        return tuple(_iqm_band(values, (len(values), 1), level))
    if band == "bootstrap":
        draws = np.random.default_rng(0).integers(len(values), size=(NUM_RESAMPLES, len(values)))
        resampled = np.stack([CENTERS[center](values[draw], axis=0) for draw in draws])
        return tuple(np.quantile(resampled, [level / 2.0, 1.0 - level / 2.0], axis=0))
    width = np.std(values, axis=0, ddof=1) / (math.sqrt(len(values)) if band == "error" else 1.0)
    return middle - width, middle + width


def _mark_differences(
    axes: Axes, pair: Sequence[AlgorithmRuns], task: str, metric: str, x: str, test: str, level: float
) -> None:
    """Mark, along the lower edge of the axes, where a test decides between two curves: at points that all recorded.

    As in `compare`, members that diverged count as the lowest of both algorithms.
    """
    series = [[member_curve(member, metric, x) for member in algorithm.tasks[task]] for algorithm in pair]
    everyone = [*series[0], *series[1]]
    common = np.unique(np.concatenate([one.points for one in everyone]))
    common = thin(common[np.all([one.covers(common) for one in everyone], axis=0)])
    first, second = (np.stack([one.at(common) for one in own]) for own in series)
    # Where all of one have diverged, its line has ended.
    some = np.isfinite(first).any(0) & np.isfinite(second).any(0)
    common, counted = common[some], with_lowest(np.concatenate([first, second])[:, some]).T
    paired = are_paired(pair[0], pair[1], task)
    p_values = [p_value(test, row[: len(first)], row[len(first) :], paired) for row in counted]
    marked = common[np.asarray(correct(p_values, "fdr_bh"), np.float64) < level]
    where = "" if len(common) else ": no points that all seeds recorded"
    if len(marked) or where:
        height = np.full(len(marked), 0.02)
        label = f"{test}: p < {level:g}, corrected over points by fdr_bh{where}"
        axes.plot(marked, height, "k*", transform=axes.get_xaxis_transform(), label=label)


def performance_profiles(
    algorithms: Sequence[AlgorithmRuns], *, kind: str = "final", level: float = 0.05, ax: Axes | None = None
) -> Axes:
    """Plot the share of runs that score more than tau, with stratified bootstrap bands.

    Source: Agarwal et al. 2021, "Deep reinforcement learning at the edge of the statistical precipice", section 4.3.

    `kind`: `final` or `best`.
    `level`: significance level of the bands.
    """
    axes = new_axes(ax)
    tasks = common_tasks(algorithms)
    notes: list[str] = []
    algorithms = with_scores(algorithms, kind, notes)
    tables = score_tables(raw_scores(algorithms, tasks, kind, notes), tasks, notes)
    for note in notes:
        print(note, file=sys.stderr)
    every = np.concatenate([table.ravel() for table in tables.values()])
    taus = np.linspace(every.min(), every.max() if np.ptp(every) else every.min() + 1.0, _NUM_POINTS)
    for label, table in tables.items():
        above = table.T.reshape(-1, 1) > taus
        (line,) = axes.step(taus, above.mean(0), where="post", label=label)
        counts = np.concatenate(list(resample_counts(table.shape, 0, NUM_RESAMPLES)))
        resampled = counts @ above / len(above)
        low, high = np.quantile(resampled, [level / 2.0, 1.0 - level / 2.0], axis=0)
        axes.fill_between(taus, low, high, step="post", color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("mean episode return τ" if len(tasks) == 1 else "scaled return τ")
    axes.set_ylabel("share of runs with return > τ")
    axes.set_ylim(0.0, 1.05)
    axes.set_title(", ".join(tasks))
    _legend(axes)
    return axes


def sample_efficiency(
    algorithms: Sequence[AlgorithmRuns], *, metric: str = RETURN, level: float = 0.05, ax: Axes | None = None
) -> Axes:
    """Plot the interquartile mean over seeds and tasks against environment steps, with stratified bootstrap bands.

    Returns of several tasks are scaled by the lowest and the highest drawn return of each. A band needs two seeds.

    `level`: significance level of the bands.
    """
    axes = new_axes(ax)
    tasks = common_tasks(algorithms)
    curves = {algorithm.label: _common_curves(algorithm, tasks, metric) for algorithm in algorithms}
    low: Any = 0.0
    high: Any = 1.0
    if len(tasks) > 1:
        low = np.min([table.min((0, 2)) for _, table in curves.values()], axis=0)[:, None]
        high = np.max([table.max((0, 2)) for _, table in curves.values()], axis=0)[:, None]
    for label, (grid, values) in curves.items():
        table = (values - low) / np.maximum(high - low, 1e-12)
        flat = table.swapaxes(0, 1).reshape(-1, table.shape[-1])
        (line,) = axes.plot(grid, _iqm(flat), label=label)
        if len(table) > 1:
            bands = _iqm_band(flat, table.shape[:2], level)
            axes.fill_between(grid, *bands, color=line.get_color(), alpha=0.2, linewidth=0)
    _label_x(axes, "env_steps", algorithms)
    axes.set_ylabel(_TITLES.get(metric, metric) if len(tasks) == 1 else "scaled return")
    seeds = max(len(values) for _, values in curves.values())
    _say_what(axes, ", ".join(tasks), "iqm", "bootstrap", level, seeds, len(tasks))
    _legend(axes)
    return axes


def _common_curves(algorithm: AlgorithmRuns, tasks: Sequence[str], metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Return points `[T]` that the curves of an algorithm on K tasks have in common, and its values `[S, K, T]`."""
    columns, notes = [curve(algorithm.tasks[task], metric) for task in tasks], list[str]()
    grid = columns[0][0]
    if len(tasks) > 1:
        what = f"{metric} of {algorithm.label}"
        grid = common_grid([points for points, _ in columns], tasks, what, "env_steps")
    size = common_size(algorithm.label, [values for _, values in columns], notes)
    for note in notes:
        print(note, file=sys.stderr)
    rows = [[np.interp(grid, points, row) for row in values[:size]] for points, values in columns]
    return grid, np.swapaxes(rows, 0, 1)


def _iqm_band(values: np.ndarray, shape: tuple[int, int], level: float) -> np.ndarray:
    """Return the ends `[2, T]` of the bootstrap interval of the interquartile mean of values `[K * S, T]`."""
    counts, ends = np.concatenate(list(resample_counts(shape, 0, NUM_RESAMPLES))), [level / 2.0, 1.0 - level / 2.0]
    cut = len(values) // 4
    return np.stack([np.quantile(trimmed_mean(column, counts, cut), ends) for column in values.T], axis=-1)


def elo(ladders: Mapping[str, Mapping[str, Any]], *, ax: Axes | None = None) -> Axes:
    """Plot the ratings of the checkpoints of runs over environment steps, with their intervals."""
    axes = new_axes(ax)
    for label, record in ladders.items():
        columns = ("env_steps", "elo", "elo_ci_low", "elo_ci_high")
        steps, ratings, low, high = ([player[name] for player in record["players"]] for name in columns)
        (line,) = axes.plot(steps, ratings, marker="o", markersize=4, label=label)
        axes.fill_between(steps, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=X_AXES["env_steps"], ylabel="Elo above the first checkpoint")
    axes.set_title("Checkpoints against each other, 95 % bootstrap intervals")
    _legend(axes)
    return axes


def _task(algorithms: Sequence[AlgorithmRuns], task: str | None) -> str:
    tasks = list(dict.fromkeys(task for algorithm in algorithms for task in algorithm.tasks))
    if task is None and len(tasks) > 1:
        raise ConfigError(f"these runs have several environments: choose one of {', '.join(tasks)}")
    if task is not None and task not in tasks:
        raise ConfigError(f"no runs on {task}: {nearest(task, tasks)}")
    return task or tasks[0]


def new_axes(ax: Axes | None) -> Axes:
    """Return the axes, or new ones, in the style of all plots."""
    if ax is None:
        ax = plt.subplots(figsize=(7.0, 4.2), layout="constrained")[1]
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    return ax
