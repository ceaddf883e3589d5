"""The results of a sweep: a table, a picture and the best configuration, in its directory."""

from __future__ import annotations

import csv
import io
import re
import shlex
import typing
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import optuna
import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from omegaconf import OmegaConf

from stoix_like.composition import SEARCH, complete_overrides, config_dir, parse_overrides
from stoix_like.config import GROUPS
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.figures import save
from stoix_like.lab.analysis.selection import SelectedMember, describe_fresh
from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.lab.tuning.study import PLACE, RUN, best_trial, complete, finished
from stoix_like.loggers.formats import columns
from stoix_like.overrides import is_hydras
from stoix_like.run.records.records import aggregate
from stoix_like.storage.differences import format_value
from stoix_like.storage.files import write_text

TRIALS, PICTURE, BEST = "trials.csv", "trials.png", "configs/experiment/best.yaml"
# Below, a share of the variation means nothing.
_MIN_TRIALS = 8
_MEMBERS = re.compile(r"arch\.population(\.(size|seeds|hyperparams|mode|paired|pbt)(\..*)?)?")
# Of Hydra's configuration, what a search sets itself, or has no use for.
_OF_HYDRA = re.compile(r"hydra[./](run|sweep|sweeper|mode)(\..*)?")
_BESIDE = "# on the command line, too: "


class SweepResult(NamedTuple):
    """The result of a sweep."""

    directory: Path  # its directory
    study: optuna.Study  # the Optuna study
    best_params: dict[str, Any]  # values of the best trial by key
    best_value: float  # its value, the highest of all trials, by which it was selected
    fresh_returns: list[float]  # its return on each fresh seed; empty without any


def write_results(
    directory: Path,
    study: optuna.Study,
    parameters: Sequence[Parameter],
    overrides: Sequence[str],
    fresh_returns: Sequence[float] = (),
    *,
    draws: bool = True,
) -> None:
    """Write the table of trials, the best configuration as an experiment, and the picture."""
    done, best = complete(study), best_trial(study)
    keys = [parameter.key for parameter in parameters]
    buffer = io.StringIO()
    table = csv.writer(buffer)
    table.writerow(["trial", "state", "value", *keys, "run", "place"])
    for trial in finished(study):
        where = [trial.user_attrs.get(RUN, ""), trial.user_attrs.get(PLACE, "")]
        values = [trial.params.get(key, "") for key in keys]
        table.writerow([trial.number, trial.state.name.lower(), trial.value, *values, *where])
    write_text(directory / TRIALS, buffer.getvalue())
    if best is not None:
        path = directory / BEST
        path.parent.mkdir(parents=True, exist_ok=True)
        assert best.value is not None
        SelectedMember(len(done), best.number, best.value, best.params, list(fresh_returns)).write(directory)
        about = f"Trial {best.number}, the best of {len(done)}: return {best.value:.6g} when it was selected"
        confirmed = [describe_fresh(fresh_returns)] if fresh_returns else []
        write_text(path, as_experiment(overrides, best.params, [about, *confirmed]))
    if draws and len(done) > 1:
        save(draw(study, parameters), directory / PICTURE)


def draw(
    study: optuna.Study, parameters: Sequence[Parameter], fresh_returns: Mapping[str, Sequence[float]] | None = None
) -> Figure:
    """Draw trials over each parameter, with its importance, and `fresh_returns` by name in a panel of their own."""
    importances = importance(study)
    before = 0 if fresh_returns is None else 1
    columns = min(3, before + len(parameters))
    rows = -(-(before + len(parameters)) // columns)
    figure = Figure(figsize=(4.5 * columns, 3.6 * rows), layout="constrained")
    if fresh_returns is not None:
        _draw_fresh(figure.add_subplot(rows, columns, 1), fresh_returns)
    trials = complete(study)
    returns = [trial.value or 0.0 for trial in trials]
    for number, parameter in enumerate(parameters):
        axes = figure.add_subplot(rows, columns, before + number + 1)
        values = [trial.params[parameter.key] for trial in trials]
        shown = values if parameter.is_numeric else list(map(str, values))
        points = axes.scatter(shown, returns, c=[trial.number for trial in trials], s=14)
        if parameter.is_log:
            axes.set_xscale("log")
        axes.set(xlabel=parameter.field, ylabel="return")
        share = importances.get(parameter.key)
        axes.set_title("importance undecided" if share is None else f"importance {share:.0%}", fontsize="medium")
        axes.grid(alpha=0.3)
        figure.colorbar(points, ax=axes, label="trial")
    return figure


def _draw_fresh(axes: Axes, returns: Mapping[str, Sequence[float]]) -> None:
    for place, values in enumerate(returns.values()):
        axes.plot([place] * len(values), values, "o", alpha=0.5)
        found = aggregate(values, (0,) * len(values))
        iqm, low, high = found["iqm"], found["ci_low"], found["ci_high"]
        axes.errorbar(place + 0.15, iqm, [[iqm - low], [high - iqm]], fmt="_", color="black", capsize=4)
    axes.set_xticks(range(len(returns)), list(returns))
    axes.set_xlim(-0.5, len(returns) - 0.5)
    axes.set_ylabel("return on fresh seeds")
    axes.set_title("each seed; interquartile mean, 95 %", fontsize="medium")
    axes.grid(alpha=0.3)


def importance(study: optuna.Study) -> dict[str, float]:
    """Return the share of each parameter in the variation of the value, by PED-ANOVA.

    Source: Watanabe et al. 2023, "PED-ANOVA: efficiently quantifying hyperparameter importance in arbitrary subspaces".
    """
    done = complete(study)
    if len(done) < _MIN_TRIALS or len({trial.value for trial in done}) == 1:
        return {}
    # Lists, such as the layers of a network, have no place on an axis.
    params = [key for key in done[0].params if not any(isinstance(trial.params[key], list | dict) for trial in done)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of an experimental interface
        evaluator = optuna.importance.PedAnovaImportanceEvaluator()
        return optuna.importance.get_param_importances(study, evaluator=evaluator, params=params)


def describe(result: SweepResult, shown: int = 10) -> str:
    """Return the best trials and the importance of each parameter as text."""
    done = complete(result.study)
    ranked = sorted(done, key=lambda trial: trial.value or 0.0, reverse=True)[:shown]
    keys = list(result.best_params)
    head = ["trial", "return", *keys]
    rows = [
        [str(trial.number), f"{trial.value:.4g}", *(f"{format_value(trial.params[key])}" for key in keys)]
        for trial in ranked
    ]
    shares = ", ".join(f"{key} {share:.0%}" for key, share in importance(result.study).items())
    lines = [*columns([head, *rows]), "", f"{len(done)} trials with a return; importance: {shares or 'undecided'}"]
    selected = f"best: return {result.best_value:.4g} when it was selected"
    fresh = f", {describe_fresh(result.fresh_returns)}" if result.fresh_returns else ""
    return "\n".join([*lines, selected + fresh, train_line(result.directory / BEST)])


def train_line(path: Path) -> str:
    """Return the command that trains an experiment, with what it cannot do: delete keys, and find other files."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    beside = [line.removeprefix(_BESIDE) for line in lines if line.startswith(_BESIDE)]
    command = ["stoix-like", "train", "--config-dir", str(path.parent.parent), f"+experiment={path.stem}", *beside]
    return f"train it: {shlex.join(command)}"


def check_overrides(overrides: Sequence[str], directory: str, *, launches: bool) -> None:
    """Refuse overrides of all trials that change what the populations of a search consist of, or have no effect."""
    for override in parse_overrides(overrides):
        key = override.key_or_group
        if is_set_by_search(key):
            raise ConfigError(f"{override.input_line}: the search sets this key: leave it out")
        if _OF_HYDRA.fullmatch(key) or (is_hydras(key) and key != SEARCH and not launches):
            raise ConfigError(f"{override.input_line} has no effect here: leave it out; {directory} sets the directory")


def of_trials(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that say what the trials are: of Hydra's configuration, only where YAML files are."""
    return [override for override in overrides if not is_hydras(override) or override.startswith(f"{SEARCH}=")]


def is_set_by_search(key: str) -> bool:
    """Return whether a key changes what the populations of a search consist of."""
    return _MEMBERS.fullmatch(key) is not None


def as_experiment(overrides: Sequence[str], params: Mapping[str, Any], about: Sequence[str]) -> str:
    """Return a configuration as an experiment file."""
    # In a list of defaults the first choice of a group counts, on the command line the last one.
    chosen: dict[str, Any] = {}
    values: dict[str, Any] = {}
    beside: list[Any] = []
    for override in parse_overrides(complete_overrides(overrides)):
        key, value = override.key_or_group, override.value()
        if override.is_delete() or key == SEARCH:
            beside.append(override.input_line)
        elif is_hydras(key):
            continue
        elif key == "experiment":
            chosen[key] = value
        elif (config_dir() / key).is_dir() and not isinstance(value, dict):
            chosen[f"/{key}" if override.is_add() else f"override /{key}"] = plain(value)
        else:
            values[key] = plain(value)
    for key, value in params.items():
        if key in GROUPS:
            chosen[f"override /{key}"] = value
        else:
            values[key] = value
    nested: Any = OmegaConf.create({})
    for key, value in values.items():
        OmegaConf.update(nested, key, value, force_add=True)
    experiments = chosen.pop("experiment", [])
    defaults: list[Any] = experiments if isinstance(experiments, list) else [experiments]
    defaults = [*defaults, *({key: value} for key, value in chosen.items())]
    defaults.sort(key=lambda entry: "override" in str(entry))  # Hydra wants them at the end
    body = {"defaults": [*defaults, "_self_"], **typing.cast(dict[str, Any], OmegaConf.to_container(nested))}
    comment = "".join([*(f"# {line}\n" for line in about), *(f"{_BESIDE}{line}\n" for line in beside)])
    return f"# @package _global_\n{comment}" + yaml.safe_dump(body, sort_keys=False)


def plain(value: Any) -> Any:
    """Return a value of Hydra's parser as plain containers and strings."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)
