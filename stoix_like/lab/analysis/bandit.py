"""The return of a setting against the evaluation episodes that choosing it costs: `compare --selection ucb`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.comparison import Settings, format_interval
from stoix_like.lab.analysis.groups import AlgorithmRuns, check_keys, group, read_evaluated
from stoix_like.lab.analysis.scores import episode_returns, lowest
from stoix_like.lab.analysis.statistics import Interval, interval
from stoix_like.loggers.formats import columns
from stoix_like.storage.recorded_runs import is_below, samples
from stoix_like.storage.recorded_runs import settings as settings_of

NUM_REPETITIONS = 1000


class SelectionCurve(NamedTuple):
    """The return of a chosen setting of an algorithm; an interval holds the central share of the repetitions.

    Attributes:
        task: the environment.
        label: the algorithm, or `all` for the settings of all algorithms.
        settings: mean return of each setting over its seeds, by label.
        returns: return of the chosen policy after 1 to N episodes.
        limit: return of the best policy of each repetition, which unlimited episodes find.
    """

    task: str
    label: str
    settings: dict[str, float]
    returns: list[Interval]
    limit: Interval


def selection_curves(
    paths: str | Path | Iterable[str | Path],
    options: Settings | None = None,
    by: Sequence[str] = (),
    *,
    episodes: int = 200,
    seed: int = 0,
) -> list[SelectionCurve]:
    """Compute the return of the setting that a UCB bandit chooses, against the episodes that it has played.

    In each of `NUM_REPETITIONS` repetitions, one trained seed of each setting is an arm, and rewards are drawn from its
    recorded episode returns. Source: Jackson et al. 2025, "A clean slate for offline reinforcement learning".

    Args:
        paths: run directories or directories that contain runs; members that differ only in their seeds are a setting.
        options: `score`, `final` for the last parameters of each policy or `best` for the best ones, and `level`.
        by: dotted keys; their values make an algorithm, which has its own bandit; by default the system.
        episodes: N, the number of episodes to play.
        seed: seed of the repetitions.

    Returns:
        One curve per environment and algorithm; of several algorithms, also one of a bandit over all of their settings.

    Raises:
        ConfigError: an argument is out of range, there is a single setting, or a run stores no episode returns.
    """
    options = options or Settings()
    options.check()
    if episodes < 1:
        raise ConfigError(f"episodes={episodes} must be at least 1: use 200")
    if seed < 0:
        raise ConfigError(f"seed={seed} must be at least 0: use 0")
    runs = read_evaluated(paths)
    check_keys(by, runs)
    settings = group(itertools.chain.from_iterable(map(samples, runs)))
    if len(settings) == 1:
        raise ConfigError(f"{settings[0].label} is a single setting, with nothing to choose: give runs of several ones")
    curves = []
    for task in dict.fromkeys(task for setting in settings for task in setting.tasks):
        on_task = [setting for setting in settings if task in setting.tasks]
        arms: dict[str, list[AlgorithmRuns]] = {}
        for setting in on_task:
            arms.setdefault(_algorithm(setting, by), []).append(setting)
        for label, own in {**arms, **({"all": on_task} if len(arms) > 1 else {})}.items():
            # Seeded for each: curves do not depend on which other algorithms are compared.
            curves.append(_curve(task, label, own, options, episodes, np.random.default_rng(seed)))
    return curves


def play_ucb(returns: Sequence[np.ndarray], arms: np.ndarray, episodes: int, rng: np.random.Generator) -> np.ndarray:
    """Play a UCB bandit in each of R repetitions.

        arm_t = argmax_k mean_k + (high - low) sqrt(2 ln t / n_k)

    where n_k of the t episodes so far are of arm k, and `low` and `high` are the extreme returns among them, for the
    bandit is for rewards in [0, 1]. Each arm is played once first. Source: Auer et al. 2002, "Finite-time analysis of
    the multiarmed bandit problem", figure 1 (UCB1).

    `arms`: `[R, K]`, the policy of each arm, in the order in which arms are first played and ties are broken.
    Returns `[R, N]`, after each episode the policy of the arm with the largest mean.
    """
    flat, sizes = np.concatenate(returns), np.asarray([len(own) for own in returns])
    starts, rows = np.cumsum(sizes) - sizes, np.arange(len(arms))
    sums, counts, means = np.zeros(arms.shape), np.zeros(arms.shape), np.full(arms.shape, -np.inf)
    low, high = np.full(len(arms), np.inf), np.full(len(arms), -np.inf)
    chosen = np.empty((len(arms), episodes), np.int64)
    for t in range(episodes):
        arm = np.full(len(arms), t)
        if t >= arms.shape[1]:
            arm = (means + (high - low)[:, None] * np.sqrt(2.0 * np.log(t) / counts)).argmax(-1)
        policy = arms[rows, arm]
        reward = flat[starts[policy] + (rng.random(len(arms)) * sizes[policy]).astype(np.int64)]
        low, high = np.minimum(low, reward), np.maximum(high, reward)
        sums[rows, arm] += reward
        counts[rows, arm] += 1.0
        means[rows, arm] = sums[rows, arm] / counts[rows, arm]
        chosen[:, t] = arms[rows, means.argmax(-1)]
    return chosen


def describe(curves: Sequence[SelectionCurve], options: Settings) -> str:
    """Return curves as text, a table for each environment."""
    tables = itertools.groupby(curves, lambda curve: curve.task)
    return "\n\n".join("\n".join(_lines(task, list(own), options)) for task, own in tables)


def _algorithm(setting: AlgorithmRuns, by: Sequence[str]) -> str:
    values = settings_of(setting.members[0]).items()
    return " ".join(f"{key}={value}" for key, value in values if is_below(key, by)) or setting.members[0].run.system


def _curve(
    task: str, label: str, arms: Sequence[AlgorithmRuns], options: Settings, episodes: int, rng: np.random.Generator
) -> SelectionCurve:
    seeds = [arm.tasks[task] for arm in arms]
    returns = [episode_returns(member, options.score) for members in seeds for member in members]
    # As in other comparisons, what diverged counts as the lowest mean return.
    low = lowest([np.asarray([own[np.isfinite(own)].mean() for own in returns if np.isfinite(own).any()])])
    returns = [np.where(np.isnan(own), low, own) for own in returns]
    means, ends = np.asarray([own.mean() for own in returns]), np.cumsum([*map(len, seeds)])
    drawn = [rng.integers(end - len(own), end, NUM_REPETITIONS) for end, own in zip(ends, seeds, strict=True)]
    # In random order, so that no setting is always played first, or wins ties.
    policies = rng.permuted(np.stack(drawn, -1), axis=-1)
    best, chosen = means[policies].max(-1), means[play_ucb(returns, policies, episodes, rng)].T
    return SelectionCurve(
        task,
        label,
        {arm.label: float(own.mean()) for arm, own in zip(arms, np.split(means, ends[:-1]), strict=True)},
        [interval(values.mean(), values, options.level) for values in chosen],
        interval(best.mean(), best, options.level),
    )


def _lines(task: str, curves: Sequence[SelectionCurve], options: Settings) -> list[str]:
    most = len(curves[0].returns)
    shown = sorted(
        {most, *(digit * 10**power for power in range(7) for digit in (1, 2, 5) if digit * 10**power < most)}
    )
    best = [max(curve.settings, key=lambda label: curve.settings[label]) for curve in curves]
    rows = [["episodes", *(curve.label for curve in curves)]]
    rows += [[f"{number:,}", *(format_interval(curve.returns[number - 1]) for curve in curves)] for number in shown]
    rows += [
        ["unlimited", *(format_interval(curve.limit) for curve in curves)],
        ["mean setting", *(f"{np.mean([*curve.settings.values()]):.4g}" for curve in curves)],
        ["best setting", *(f"{curve.settings[label]:.4g}" for curve, label in zip(curves, best, strict=True))],
    ]
    return [
        f"mean return on {task} of the setting that UCB chooses with a number of evaluation episodes",
        f"{'best' if options.score == 'best' else 'last'} parameters, {NUM_REPETITIONS:,} repetitions with one seed of"
        f" each setting; the interval holds {100.0 * (1.0 - options.level):g} % of them",
        "",
        *columns(rows),
        "",
        *(
            f"{curve.label}: {len(curve.settings)} settings, best {label}"
            for curve, label in zip(curves, best, strict=True)
        ),
    ]
