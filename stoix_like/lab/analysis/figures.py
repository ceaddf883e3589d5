"""Figures as files: `stoix-like plot`."""

from __future__ import annotations

import html
import io
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from stoix_like.errors import ConfigError
from stoix_like.lab.analysis import plots, population_plots
from stoix_like.lab.analysis.groups import AlgorithmRuns, runs_of, sections
from stoix_like.storage.differences import names_of_keys, words_of
from stoix_like.storage.files import check_writable, write_bytes
from stoix_like.storage.recorded_runs import Member, differing_keys, evolves, identity, varied_hyperparams

SUFFIXES = (".png", ".svg", ".pdf", ".html")
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{title}</title>
<style>body{{margin:1rem;text-align:center}}svg{{max-width:100%;height:auto}}</style>
{body}
</html>
"""


def check_output(path: Path, suffixes: Sequence[str] = SUFFIXES, option: str = "--out") -> None:
    """Check that a figure can be written."""
    if path.suffix not in suffixes:
        raise ConfigError(f"{option} {path}: the ending must be one of {', '.join(suffixes)}")
    check_writable(path, option)


def draw(algorithms: Sequence[AlgorithmRuns], kind: str, *, hyperparams: Sequence[str] = (), **options: Any) -> Figure:
    """Draw one kind of plot, with a panel per environment, or per hyperparameter of a population."""
    panels: list[Callable[..., Any]]
    if kind == "lineage":
        panels = [
            partial(population_plots.lineage, run, name)
            for run in runs_of(algorithms)
            if evolves(run)
            for name in hyperparams or varied_hyperparams(run.last)
        ]
        if not panels:
            raise ConfigError(
                "--kind lineage needs a run with arch.population.pbt.every_evals and hyperparameters that vary"
            )
    elif kind in ("slices", "heatmap"):
        panels = population_panels(algorithms, kind, hyperparams, **options)
        if not panels:
            needed = "two hyperparameters that vary" if kind == "heatmap" else "hyperparameters that vary"
            raise ConfigError(f"--kind {kind} needs a population with {needed}: these runs have none")
    elif kind == "curves":
        panels = [
            partial(plots.learning_curves, section, task, **options)
            for section in sections(algorithms)
            for task in section[0].tasks
        ]
    else:
        function = plots.performance_profiles if kind == "profiles" else plots.sample_efficiency
        panels = [partial(function, section, **options) for section in sections(algorithms)]
    return plots.arrange(panels)


def population_panels(
    algorithms: Sequence[AlgorithmRuns], kind: str, hyperparams: Sequence[str] = (), **options: Any
) -> list[Callable[..., Any]]:
    """Return functions that draw populations, one for each, and for slices one for each hyperparameter.

    Members are of one population where they differ in nothing but the hyperparameters that vary between them.
    """
    if kind == "heatmap" and hyperparams and len(hyperparams) != 2:
        raise ConfigError("--kind heatmap needs two hyperparameters: use --hyperparam twice")
    populations = _populations(algorithms)
    everyone = [member for _, members in populations for member in members]
    for together in [hyperparams] if kind == "heatmap" else [[name] for name in hyperparams]:
        if everyone and together:
            population_plots.varying(everyone, together)
    panels: list[Callable[..., Any]] = []
    for title, members in populations:
        known = [name for name in members[0].hyperparams if len({member.hyperparams[name] for member in members}) > 1]
        names = [name for name in hyperparams or known if name in known]
        options["title"] = title
        if kind == "slices":
            draw_slices = population_plots.hyperparameter_slices
            panels += [partial(draw_slices, members, name, **options) for name in names]
        elif len(names) > 1:
            # Without names of the caller, the first two.
            panels.append(partial(population_plots.heat_map, members, *names[:2], **options))
    return panels


def _populations(algorithms: Sequence[AlgorithmRuns]) -> list[tuple[str, list[Member]]]:
    """Join the settings of each population, which are algorithms of their own, and name them."""
    found: dict[str, tuple[tuple[str, str], dict[str, Any], list[Member]]] = {}
    everyone = (
        (algorithm, task, member)
        for algorithm in algorithms
        for task, members in algorithm.tasks.items()
        for member in members
        if member.hyperparams
    )
    for algorithm, task, member in everyone:
        varied = [f"system.{name}" for name in member.hyperparams]
        rest = {key: value for key, value in algorithm.settings.items() if key not in varied}
        place = (member.run.system, task)
        found.setdefault(identity([place, varied, rest]), (place, rest, []))[2].append(member)
    keys = differing_keys([rest for _, rest, _ in found.values()])
    rows = [(place, {key: rest.get(key) for key in keys}) for place, rest, _ in found.values()]
    names = names_of_keys([row for _, row in rows])
    words = [words_of(row, [other for there, other in rows if there == place], names) for place, row in rows]
    return [
        (" ".join([f"{place[0]} on {place[1]}", *differs]), members)
        for (place, _, members), differs in zip(found.values(), words, strict=True)
    ]


def save(figure: Figure, path: Path, title: str = "", width: float | None = None, dpi: int = 150) -> None:
    """Write a figure; html pages contain it as vector graphics and load nothing.

    `width`: in inches, with the same shape; None: the figure's.
    """
    if title:
        figure.suptitle(title)
    if width is not None:
        figure.set_size_inches(figure.get_size_inches() * width / figure.get_size_inches()[0])
    if path.suffix == ".html":
        write_bytes(path, _PAGE.format(title=html.escape(title or path.stem), body=as_svg(figure)).encode())
        return
    buffer = io.BytesIO()
    figure.savefig(buffer, format=path.suffix[1:], dpi=dpi)
    write_bytes(path, buffer.getvalue())


def as_svg(figure: Figure) -> str:
    """Return a figure as an element of a page."""
    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "stoix_like", "svg.fonttype": "none"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]
