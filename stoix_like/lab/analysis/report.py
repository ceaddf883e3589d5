"""A page about runs that loads nothing: `stoix-like report`."""

from __future__ import annotations

import base64
import html
import itertools
import json
import math
import re
import tempfile
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from stoix_like.errors import ConfigError, TrainingError
from stoix_like.lab.analysis import figures, plots
from stoix_like.lab.analysis.comparison import HEAD, Comparison, Settings, compare_all
from stoix_like.lab.analysis.dreams import draw_dream, dream_episode, has_world_model
from stoix_like.lab.analysis.figures import as_svg
from stoix_like.lab.analysis.groups import AlgorithmRuns, common_tasks, read, runs_of, sections
from stoix_like.lab.analysis.scores import keeps_last
from stoix_like.lab.analysis.selection import FRESH_RUNS, TUNE, describe_fresh, read_selected
from stoix_like.loggers.formats import center_name, describe_point
from stoix_like.storage import remote
from stoix_like.storage.files import write_bytes
from stoix_like.storage.recorded_runs import Member, Run, budget, differing_keys, flatten, is_below, started
from stoix_like.storage.recorded_runs import members as members_of
from stoix_like.storage.run_files import read_ladders

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:62rem;margin:0 auto;padding:1rem}
h1{font-size:1.5rem}h2{font-size:1.2rem;margin-top:2rem;border-bottom:1px solid #8886}
figure{margin:1rem 0;background:#fff;border-radius:4px}
figure svg,figure img{display:block;max-width:100%;height:auto;margin:auto}
.wide{overflow-x:auto}td{max-width:24rem;overflow-wrap:break-word}table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.25rem .75rem;border-bottom:1px solid #8884;vertical-align:top}
code{font-size:.875em;overflow-wrap:anywhere}.verdict{font-weight:600}.note{color:#888}
@media print{body{max-width:none;padding:0}.wide{overflow:visible}table{font-size:.7rem}
th,td{padding:.2rem .3rem}section{break-inside:avoid}}
"""
_MAX_DIFFERENCES = 60


def write(paths: Iterable[str | Path], out: Path, by: Sequence[str] = (), animation: bool = True) -> None:
    """Write a self-contained page: summary, curves, returns, configurations, best policy, timing and versions."""
    figures.check_output(out, (".html",))
    given = list(paths)
    algorithms = read(given, by)
    tasks = dict.fromkeys(task for algorithm in algorithms for task in algorithm.tasks)
    title = f"{', '.join(dict.fromkeys(a.members[0].run.system for a in algorithms))} on {', '.join(tasks)}"
    parts = [
        _section("Search", _searches(given)),
        *map(_summary, compare_all(algorithms)),
        _section("Learning curves", _curves(algorithms)),
        _section("Ladder", _ladders(algorithms)),
        _section("Final returns", _returns(algorithms)),
        _section("Differences between the configurations", _differences(algorithms)),
        _section("Best policy", _best_policy(algorithms, animation)),
        _section("Runs and timing", _timing(algorithms)),
        _section("Versions", _versions(algorithms)),
    ]
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<h1>{html.escape(title)}</h1>\n"
    )
    write_bytes(out, (page + "\n".join(filter(None, parts)) + "\n</body>\n</html>\n").encode())


def _section(title: str, content: str) -> str:
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{content}\n</section>" if content else ""


def _summary(comparison: Comparison) -> str:
    lines = [_table(["algorithm", *HEAD], comparison.rows)]
    tested = [test for test in comparison.tests if min(test.seeds) > 1]
    if any(test.is_tested for test in tested):
        lines.append(f"<p>{html.escape(comparison.test_title)}:</p>")
    for test in tested:
        on = f"{test.task}: " if len(comparison.tasks) > 1 else ""
        lines.append(f'<p class="verdict">{html.escape(on + test.verdict(comparison.settings.level))}</p>')
    notes = list(comparison.notes)
    if untested := len(comparison.tests) - len(tested):
        notes.append(f"{untested} pair(s) of algorithms are not tested: a test needs at least two seeds of each")
    lines += [f'<p class="note">{html.escape(note)}</p>' for note in notes]
    return _section(f"Summary: {', '.join(comparison.tasks)}", "\n".join(lines))


def _searches(paths: Iterable[str | Path]) -> str:
    """Return what each search selected, and its returns on fresh seeds; empty without searches."""
    rows = []
    for directory in map(remote.local_copy, paths):
        if (selected := read_selected(directory)) is not None:
            tune = directory.resolve().parent
            later = f"see {tune}: tune trains the best ones again" if (tune / TUNE).exists() else "not trained again"
            fresh = describe_fresh(selected.fresh_returns) if selected.fresh_returns else later
            params = ", ".join(f"{key}={json.dumps(value)}" for key, value in selected.params.items())
            rows.append([str(directory), str(selected.trials), params, _number(selected.value), fresh])
    if not rows:
        return ""
    note = "The best of many trials is partly luck: only the return on fresh seeds is an estimate of what it is worth."
    head = ["search", "trials", "best setting", "return when it was selected", "return"]
    return _table(head, rows) + f'<p class="note">{note}</p>'


def _curves(algorithms: Sequence[AlgorithmRuns]) -> str:
    panels: list[Callable[..., Any]] = [
        # With two algorithms, marks where they differ.
        partial(plots.learning_curves, section, task, test=Settings().test)
        for section in sections(algorithms)
        for task in section[0].tasks
    ]
    several = (section for section in sections(algorithms) if len(section) > 1 and _differ(section))
    panels += [partial(plots.performance_profiles, section) for section in several]
    if len(_varied(algorithms)) == 2:
        panels += figures.population_panels(algorithms, "heatmap")
    panels += figures.population_panels(algorithms, "slices")
    return "\n".join(_figure(panel) for panel in panels)


def _differ(algorithms: Sequence[AlgorithmRuns]) -> bool:
    """Return whether the final returns differ on an environment: of equal ones, a performance profile is empty."""
    scores = (np.concatenate([algorithm.scores(task) for algorithm in algorithms]) for task in common_tasks(algorithms))
    return any(len(np.unique(values[np.isfinite(values)])) > 1 for values in scores)


def _ladders(algorithms: Sequence[AlgorithmRuns]) -> str:
    """Draw the ratings of checkpoints, and list the ratings of members; empty without ladders."""
    found = [(str(run.directory), record) for run in runs_of(algorithms) for record in read_ladders(run.directory)]
    rated = {name: record for name, record in found if record["of"] == "checkpoints"}
    parts = [_figure(partial(plots.elo, rated))] if rated else []
    for name, record in found:
        if record["of"] == "members":
            cells = "{member}", "{elo:.0f} [{elo_ci_low:.0f}, {elo_ci_high:.0f}]", "{score:.1%}"
            rows = [[cell.format(**player) for cell in cells] for player in record["players"]]
            table = _table(["member", "Elo", "score"], rows)
            parts.append(f"<p>Members of <code>{html.escape(name)}</code>:</p>{table}")
    return "\n".join(parts)


def _figure(draw: Callable[..., Any]) -> str:
    return f"<figure>{as_svg(plots.arrange([draw], 7.5, 4.2))}</figure>"


def _returns(algorithms: Sequence[AlgorithmRuns]) -> str:
    varied = _varied(algorithms)
    rows = [
        [
            algorithm.label,
            task,
            str(member.seed),
            *(f"{member.hyperparams[name]:.4g}" if name in member.hyperparams else "" for name in varied),
            _number(member.score("final")),
            _number(member.score("best")),
            member.failure or "",
        ]
        for algorithm in algorithms
        for task, members in algorithm.tasks.items()
        for member in members
    ]
    head = ["algorithm", "environment", "seed", *varied, "last evaluation", "absolute metric", "failure"]
    kept = [keeps_last(run) for run in runs_of(algorithms)]
    measured = "last" if all(kept) else "best parameters, of offline runs the last" if any(kept) else "best"
    meaning = f"the mean episode return of the {measured} parameters, once more, on ten times as many episodes"
    return _table(head, rows) + f'<p class="note">Absolute metric: {meaning}.</p>'


def _varied(algorithms: Sequence[AlgorithmRuns]) -> list[str]:
    members = [member for algorithm in algorithms for member in algorithm.members]
    return list(dict.fromkeys(name for member in members for name in member.hyperparams))


def _differences(algorithms: Sequence[AlgorithmRuns]) -> str:
    """Return a table of the keys in which the configurations differ; empty for a single configuration."""
    hidden = ("arch.seed", "logger", "checkpoint", "arch.compile_cache")
    runs = runs_of(algorithms)
    configs = [{key: value for key, value in flatten(run.config) if not is_below(key, hidden)} for run in runs]
    keys = differing_keys(configs)
    rows = [
        [key, *(json.dumps(config[key]) if key in config else "–" for config in configs)]
        for key in keys[:_MAX_DIFFERENCES]
    ]
    more = f'<p class="note">{len(keys) - _MAX_DIFFERENCES} more keys</p>' if len(keys) > _MAX_DIFFERENCES else ""
    return _table(["key", *(run.directory.name for run in runs)], rows) + more if rows else ""


def _best_policy(algorithms: Sequence[AlgorithmRuns], animation: bool) -> str:
    """Name the best policy of each environment, and draw it."""
    members: dict[str, list[Member]] = {}
    for algorithm in algorithms:
        for task, own in algorithm.tasks.items():
            members.setdefault(task, []).extend(own)
    parts = []
    for task, rivals in members.items():
        best = max(rivals, key=lambda member: (_rank(member), _is_named(member)))
        place = f"member={best.place}, " if len(members_of(best.run)) > 1 else ""
        parts.append(
            f"<p>{html.escape(task)}: {place}seed {best.seed} of <code>{html.escape(str(best.run.directory))}</code>,"
            f" mean episode return {_number(_rank(best))}.</p>"
        )
        if animation:
            parts.append(_animation(best) + _dream(best))
    return "\n".join(parts) + _best_points(algorithms)


def _is_named(member: Member) -> bool:
    """Return whether a complete run names the member as its best."""
    return bool(member.run.summary.get("population/best", {}).get("member") == member.place)


def _best_points(algorithms: Sequence[AlgorithmRuns]) -> str:
    """Name the best hyperparameter setting of each population that varies any."""
    name, lines = "eval/episode_return", []
    for run in runs_of(algorithms):
        point, points = run.summary.get("population/best_point"), run.summary.get("population/points", ())
        # On fresh seeds, nothing is selected.
        if not point or len(points) < 2 or run.directory.match(f"{FRESH_RUNS}/*/00"):
            continue
        ends = [point[f"{name}_{end}"] for end in ("ci_low", "ci_high")]
        interval = "" if None in ends else f" [{', '.join(map(_number, ends))}]"
        lines.append(
            f"<p>Best of {len(points)} hyperparameter settings of"
            f" <code>{html.escape(str(run.directory))}</code>: {html.escape(describe_point(point))},"
            f" {center_name(len(point['seeds']))}"
            f" {_number(point[f'{name}_iqm'])}{interval} over {len(point['seeds'])} seed(s), the return that selected"
            " it.</p>"
        )
    return "\n".join(lines)


def _rank(member: Member) -> float:
    found = member.score("best")
    found = member.score("final") if math.isnan(found) else found
    return -math.inf if math.isnan(found) else found


def _animation(member: Member) -> str:
    """Render an episode; say why where there is none."""
    from stoix_like.inference.evaluation import render

    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "episode.gif"
        try:
            render(remote.address_of(member.run.directory), path, member=member.place)
        except (ConfigError, TrainingError, OSError) as error:
            return f'<p class="note">No animation: {html.escape(str(error))}</p>'
        source = base64.b64encode(path.read_bytes()).decode()
    return f'<figure><img alt="an episode of the best policy" src="data:image/gif;base64,{source}"></figure>'


def _dream(member: Member) -> str:
    """Draw what a world model predicts of an episode; empty without a world model, or an episode of some length."""
    address = remote.address_of(member.run.directory)
    try:
        if not has_world_model(address):
            return ""
    except (ConfigError, OSError):
        return ""  # The animation says why the run cannot be loaded.
    try:
        figure = draw_dream(dream_episode(address, member=member.place))
    except (ConfigError, TrainingError, OSError) as error:
        return f'<p class="note">No dream: {html.escape(str(error))}</p>'
    return f"<figure>{as_svg(figure)}</figure>"


def _timing(algorithms: Sequence[AlgorithmRuns]) -> str:
    head = ["run", "status", "started", "steps", "seconds", "of which compiling", "steps per second", "devices"]
    return _table(head, list(map(_timing_row, runs_of(algorithms)))) + _phases(algorithms)


def _timing_row(run: Run) -> list[str]:
    # Of a resumed run, these are the seconds of all its processes; `compile_seconds` counts only the last one.
    timing = run.summary.get("timing", {})
    seconds = timing.get("total", run.summary.get("wall_seconds", run.last.get("wall_seconds")))
    return [
        str(run.directory),
        run.status,
        f"{started(run):%Y-%m-%d %H:%M}",
        f"{run.last['env_steps']:,} of {budget(run):,}",
        _number(seconds),
        _number(timing.get("compilation", run.summary.get("compile_seconds"))),
        _number(run.summary.get("steps_per_second")),
        ", ".join(dict.fromkeys(run.summary.get("devices", ()))),
    ]


def _phases(algorithms: Sequence[AlgorithmRuns]) -> str:
    """Return a table of the seconds that each phase of each run took; empty for runs without them."""
    timings = {run.directory: run.summary["timing"] for run in runs_of(algorithms) if "timing" in run.summary}
    if not timings:
        return ""
    phases = list(dict.fromkeys(phase for timing in timings.values() for phase in timing))
    phases.sort(key=lambda phase: max(timing.get(phase, 0.0) for timing in timings.values()), reverse=True)
    rows = [
        [str(directory), *(_number(timing[phase]) if phase in timing else "" for phase in phases)]
        for directory, timing in timings.items()
    ]
    return "<p>Seconds by phase:</p>" + _table(["run", *(phase.replace("_", " ") for phase in phases)], rows)


def _versions(algorithms: Sequence[AlgorithmRuns]) -> str:
    runs = [run for run in runs_of(algorithms) if run.summary]
    recorded = [run.summary.get("versions", {}) for run in runs]
    # Packages of a suite are recorded for its own runs.
    rows = [
        [name, ", ".join(dict.fromkeys(str(versions[name]) for versions in recorded if name in versions))]
        for name in dict.fromkeys(itertools.chain(*recorded))
    ]
    return _table(["package", "version"], rows) if rows else ""


def _number(value: Any) -> str:
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,.0f}" if abs(value) >= 10_000 else f"{value:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return f"<tr>{''.join(f'<{tag}>{_breakable(cell)}</{tag}>' for cell in cells)}</tr>"

    body = "\n".join(line(row, "td") for row in rows)
    return f'<div class="wide"><table>\n<thead>{line(head, "th")}</thead>\n<tbody>\n{body}\n</tbody></table></div>'


def _breakable(text: str) -> str:
    """Return a text for a cell: paths and dotted keys may be broken between their parts, other words not at all."""
    return re.sub(r"(?<=[/.])(?=[A-Za-z_])", "<wbr>", html.escape(text))
