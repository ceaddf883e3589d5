"""Write a markdown table of returns from run directories, next to published returns.

Runs that differ only in their seeds form one row: the interquartile mean over seeds (of fewer than four, the mean) and
its 95 % bootstrap interval.
A run is a directory with a `metrics.jsonl`; a directory that contains runs stands for all of them. `--into` keeps the
rows of other commands, and replaces those of the same ones, in whatever order their overrides are. With references, a
table before it has the rows whose budget is that of a published return. Without runs, a page gets the references
as they are now. `--pack` writes the runs with their best policies as a data set instead, see `pack_runs.py`.

    python scripts/results.py runs --reference docs/reference_returns.yaml --into docs/results.md
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from yaml import YAMLError

from stoix_like.composition import complete_overrides
from stoix_like.errors import ConfigError
from stoix_like.run.records.records import aggregate
from stoix_like.storage import checkpoint, recorded_runs
from stoix_like.storage.recorded_runs import (
    FAILED,
    FINISHED,
    RUNNING,
    find_runs,
    identity,
    read_run,
    settings,
)
from stoix_like.storage.run_files import holds_run

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
EQUAL = (
    "At the budget of a published return, which is *reached* where the interquartile mean, or of fewer than four seeds"
    " the mean, is not below it, and *within the interval* where the mean is below it, but not the end of the interval."
    " Where several settings have one system, environment and budget, the last of them counts:"
)
LEGEND = (
    "Interquartile means over seeds of the mean episode return (of fewer than four seeds, the mean), with 95 %"
    " bootstrap intervals. Env steps and episodes are those of each seed. The best policy, selected by its evaluations,"
    " is evaluated again on ten times as many episodes."
)
_MEASURED = "Measured with "
_BUDGET = ("total_timesteps", "num_evaluation")


class Start(NamedTuple):
    """Start of a run: its overrides without seed and logger, and those of the budget it was resumed with."""

    overrides: tuple[str, ...]
    resumed: tuple[str, ...]


class Member(NamedTuple):
    """The result of one seed, and how its run was started; the final return of one that diverged is NaN."""

    recorded: recorded_runs.Member
    start: Start
    final: float
    best: float | None

    @property
    def run(self) -> recorded_runs.Run:
        return self.recorded.run

    @property
    def seed(self) -> int:
        return self.recorded.seed


class DivergedError(ConfigError):
    """A run has no return, because training diverged."""


class Published(NamedTuple):
    """A published return.

    Attributes:
        episode_return: the return.
        env_steps: after so many environment steps; None if the source does not report it.
        source: the name of the source.
        note: why the return of this package is lower.
    """

    episode_return: float
    env_steps: float | None
    source: str
    note: str = ""


class References(NamedTuple):
    """Published returns by system and environment, and descriptions of their sources."""

    sources: dict[str, str]
    returns: dict[tuple[str, str], list[Published]]

    def of(self, system: str, task: str) -> list[Published]:
        """Return the published returns of a system, for an environment without the name of its suite."""
        found = (
            entry
            for (name, environment), entries in self.returns.items()
            for entry in entries
            if (name, environment.split("/")[-1]) == (system, task)
        )
        return list(dict.fromkeys(found))

    def cell(self, row: dict[str, str]) -> str:
        """Format the published returns of the system and the environment of a row of the table."""
        entries = self.of(row["system"].split("`")[1], row["environment"])
        return "<br>".join(f"{x.episode_return:g} ({x.source}, {format_steps(x.env_steps)})" for x in entries)


def train(run: Path, command: Sequence[str], check: bool = False) -> None:
    """Train a run, or resume it; leave one that is finished or diverged, or that another process trains.

    Args:
        run: its directory; without a checkpoint to resume from, it is deleted and the run starts again.
        command: the arguments of `stoix-like` that train it.
        check: whether a failure is an error, but that of a run whose seeds all diverged.

    Raises:
        SystemExit: the directory holds other files, or a run of another command.
    """
    _check_owned(run, command[1:])
    if holds_run(run) and (read_run(run).status in (FINISHED, RUNNING) or has_diverged(run)):
        return
    resumed = holds_run(run) and bool(checkpoint.steps(run))
    if not resumed:
        shutil.rmtree(run, ignore_errors=True)
    arguments = ["resume", str(run)] if resumed else [*command, f"hydra.run.dir={run}"]
    print(shlex.join(["stoix-like", *arguments]), flush=True)
    try:
        subprocess.run([sys.executable, "-m", "stoix_like", *arguments], check=check, stdout=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        if not (holds_run(run) and has_diverged(run)):
            raise


def has_diverged(directory: Path) -> bool:
    """Return whether training ended because every seed diverged: again, it would do the same."""
    run = read_run(directory)
    return run.status == FAILED and all(member.failure for member in recorded_runs.members(run))


def _check_owned(run: Path, overrides: Sequence[str]) -> None:
    recorded = run / ".hydra/overrides.yaml"
    if recorded.exists():
        if (found := _load(recorded)) != complete_overrides(overrides):
            sys.exit(f"{run} was trained by {shlex.join(['stoix-like', 'train', *found])}: choose another directory")
    elif run.exists() and any(run.iterdir()):
        sys.exit(f"{run} holds other files than those of a run: choose another directory")


def read_members(directory: Path) -> list[Member]:
    """Read the members of a finished run, one of which has a return; see `read_counted`."""
    members = read_counted(directory)
    if all(math.isnan(member.final) for member in members):
        raise DivergedError(f"{directory} has no return: training diverged; leave it out")
    return members


def read_counted(directory: Path) -> list[Member]:
    """Read the members of a run that has finished or diverged, and was started on the command line."""
    run = recorded_runs.read_run(directory)
    if run.status != FINISHED and not has_diverged(directory):
        raise ConfigError(f"{directory} is not finished: it has no summary.json that can be read; leave it out")
    try:
        given, composed = (_load(directory / f".hydra/{name}.yaml") for name in ("overrides", "config"))
        changed = [key for key in _BUDGET if run.config["arch"][key] != composed["arch"][key]]
    except (OSError, ValueError, YAMLError, KeyError, TypeError) as error:
        raise ConfigError(f"{directory} cannot be read: {type(error).__name__}: {error}") from error
    overrides = tuple(
        override for override in given if not re.match(r"\+*(logger\b|arch\.(seed|resume_from)=)", override)
    )
    start = Start(overrides, tuple(f"arch.{key}={run.config['arch'][key]}" for key in changed))
    return [_read_member(member, start) for member in recorded_runs.samples(run)]


def _read_member(member: recorded_runs.Member, start: Start) -> Member:
    final, best = member.score("final"), member.score("best")
    if math.isnan(final) and not member.failure:
        raise DivergedError(f"{member.run.directory}: the return of seed {member.seed} is not finite")
    return Member(member, start, final, None if math.isnan(best) else best)


def _load(path: Path) -> Any:
    return OmegaConf.to_container(OmegaConf.load(path))


def group(members: Iterable[Member]) -> list[list[Member]]:
    """Group members that differ only in their seeds, sorted by seed; groups keep the order of their runs."""
    groups: dict[str, dict[int, Member]] = {}
    for member in members:
        seeds = groups.setdefault(identity(settings(member.recorded)), {})
        if member.seed in seeds:
            raise ConfigError(
                f"seed {member.seed} occurs twice, in {seeds[member.seed].run.directory} and {member.run.directory}:"
                " a seed counts once, leave one of them out"
            )
        seeds[member.seed] = member
    return [[seeds[seed] for seed in sorted(seeds)] for seeds in groups.values()]


def commands(rows: Iterable[Member]) -> list[str]:
    """Return the shell commands of the runs of a group; runs that differ only in `arch.seed` share one."""
    runs = {member.run.directory: member for member in rows}.values()
    seeds: dict[Start, list[int]] = {}
    for member in runs:
        seeds.setdefault(member.start, []).append(member.run.config["arch"]["seed"])
    return [_command(start, sorted(given)) for start, given in seeds.items()]


def _command(start: Start, seeds: Sequence[int]) -> str:
    sweep = ["-m"] if len(seeds) > 1 else []
    given = f"range({seeds[0]},{seeds[-1] + 1})" if _consecutive(seeds) else ",".join(map(str, seeds))
    then = f"; stoix-like resume RUN {shlex.join(start.resumed)}" if start.resumed else ""
    return shlex.join(["stoix-like", "train", *sweep, *start.overrides, f"arch.seed={given}"]) + then


def _consecutive(seeds: Sequence[int]) -> bool:
    return len(seeds) > 2 and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))


def read_references(path: Path) -> References:
    """Read published returns: `sources` by name, `returns` by system and environment."""
    try:
        loaded = _load(path)
        sources = {
            name: f"[{source['title']}]({source['url']}), {source['what']}"
            for name, source in loaded["sources"].items()
        }
        returns = {
            (system, environment): [
                Published(entry["return"], entry["env_steps"], entry["source"], entry.get("note", ""))
                for entry in entries
            ]
            for system, environments in loaded["returns"].items()
            for environment, entries in environments.items()
        }
    except (OSError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{path} must hold sources, each with title, url and what, and returns by system and environment, each a"
            f" list of return, env_steps and source ({type(error).__name__}: {error})"
        ) from error
    for (system, environment), entries in returns.items():
        for entry in entries:
            if entry.source not in sources:
                raise ConfigError(f"{path}: returns.{system}.{environment}: no source is called {entry.source}")
    return References(sources, returns)


class Written(NamedTuple):
    """The table of a page: its rows, cells by the titles of their columns, and what they were measured with."""

    rows: Sequence[dict[str, str]] = ()
    measured_with: Sequence[str] = ()


def table(
    groups: Sequence[Sequence[Member]], references: References | None = None, written: Written | None = None
) -> str:
    """Format the markdown table, with a legend below it.

    Args:
        groups: the members of each row.
        references: published returns, for an extra column and a table of rows at equal budgets.
        written: the table that a page has.

    Returns:
        The tables.
    """
    written = written or Written()
    new = [format_row(group, references) for group in groups]
    if written.rows and new and written.rows[0].keys() != new[0].keys():
        raise ConfigError(
            f"the page has the columns {', '.join(written.rows[0])}, and the new rows have {', '.join(new[0])}: give"
            " --reference if, and only if, the page was written with one"
        )
    kept = written.rows
    if references is not None:
        # References may be newer than the page.
        kept = [row | {"published": references.cell(row)} for row in kept]
    rows = merge(kept, new)
    measured = [
        (f"{row['system'].replace('`', '')} on {row['environment']} at {row['env steps']}", member.run)
        for row, group in zip(new, groups, strict=True)
        for member in group
        if member.run.summary
    ]
    measured_with = _merge_measured(written.measured_with, measured)
    equal = equal_budgets(rows, references) if references else []
    lines = [*format_table(rows), "", *_legend(rows, measured_with, references)]
    return "\n".join([*([EQUAL, "", *format_table(equal), "", "All rows:", ""] if equal else []), *lines])


def format_table(rows: Sequence[dict[str, str]]) -> list[str]:
    """Format rows, cells by the titles of their columns, as the lines of a markdown table."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines]


def read_table(text: str) -> list[dict[str, str]]:
    """Read the rows of the last markdown table in a text."""
    tables = re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE)
    if not tables:
        return []
    titles, _, *rows = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in tables[-1].splitlines())
    return [dict(zip(titles, row, strict=True)) for row in rows]


def merge(written: Iterable[dict[str, str]], rows: Iterable[dict[str, str]]) -> list[dict[str, str]]:
    """Replace the rows of a table whose systems and commands have the same words; add others after those of their task.

    Rows of a new task are added after those of their system.
    """
    merged = list(written)
    for row in rows:
        words = _words(row)
        same = [index for index, other in enumerate(merged) if _words(other) == words]
        system = [index for index, other in enumerate(merged) if other["system"] == row["system"]]
        task = [index for index in system if merged[index]["environment"] == row["environment"]]
        before = task or system or range(len(merged))
        end = before[-1] + 1 if before else 0
        merged[slice(same[0], same[0] + 1) if same else slice(end, end)] = [row]
    return merged


def _words(row: Mapping[str, str]) -> list[str]:
    # The members of a grid share a command.
    return [row["system"], *sorted(row["command"].split())]


def equal_budgets(rows: Iterable[dict[str, str]], references: References) -> list[dict[str, str]]:
    """Return the last rows whose budget is that of a published return, in the order of those, with what they lack."""
    last = {(row["system"].strip("`"), row["environment"], row["env steps"]): row for row in rows}
    tasks = dict.fromkeys((system, environment.split("/")[-1]) for system, environment in references.returns)
    found = (
        (last.get((*task, format_steps(entry.env_steps))), entry)
        for task in tasks
        for entry in sorted(references.of(*task), key=lambda entry: entry.env_steps or 0)
    )
    return [
        {
            **{title: row[title] for title in ("system", "environment", "env steps", "seeds", "final policy")},
            "published": f"{entry.episode_return:g} ({entry.source})",
            "": _verdict(row["final policy"], entry),
        }
        for row, entry in found
        if row is not None
    ]


def _verdict(returns: str, published: Published) -> str:
    """Say how formatted returns, those of several seeds with their interval, compare with a published one."""
    final, *interval = map(float, re.findall(r"-?[\d.]+", returns))
    if final >= published.episode_return:
        return "reached"
    inside = bool(interval) and interval[-1] >= published.episode_return
    return f"{'within the interval' if inside else '**lower**'}: {published.note}".strip().rstrip(":")


def format_row(rows: Sequence[Member], references: References | None) -> dict[str, str]:
    """Format the cells of a group, by the titles of their columns; a seed that diverged counts as the lowest one."""
    finals = [member.final for member in rows if not math.isnan(member.final)]
    if not finals:
        raise DivergedError(f"{rows[0].run.directory} has no return: every seed diverged; leave it out")
    finals += [min(finals)] * (len(rows) - len(finals))
    run, best = rows[0].run, [member.best for member in rows if member.best is not None]
    arch = run.config["arch"]
    point = [f"`{name}={value:g}`" for name, value in rows[0].recorded.hyperparams.items()]
    cells = {
        "system": " ".join([f"`{run.system}`", *point]),
        "environment": run.config["env"]["scenario"]["task_name"],
        "seeds": _format_seeds(rows),
        "env steps": format_steps(arch["total_timesteps"]),
        "episodes": f"{arch['num_eval_episodes']} {'greedy' if arch['evaluation_greedy'] else 'sampled'}",
        "final policy": format_returns(finals),
        "best policy": format_returns(best) if len(best) == len(rows) else "",
    }
    if references is not None:
        cells["published"] = references.cell(cells)
    return {**cells, "command": "<br>".join(f"`{command}`" for command in commands(rows))}


def format_returns(returns: Sequence[float]) -> str:
    """Format the interquartile mean of returns and, of several, its interval; returns up to 1 in hundredths."""
    statistics = aggregate(returns, [0] * len(returns))
    digits = 2 if max(map(abs, returns)) <= 1.0 else 1
    iqm, low, high = (f"{statistics[key]:.{digits}f}" for key in ("iqm", "ci_low", "ci_high"))
    return f"{iqm} [{low}, {high}]" if len(returns) > 1 else iqm


def format_run(run: Path) -> str:
    """Format the final returns of the members of a run; nothing if it is not finished, a dash if a seed diverged."""
    try:
        members = read_members(run)
    except DivergedError:
        return "–"
    except ConfigError:
        return ""
    finals = [member.final for member in members]
    return "–" if any(map(math.isnan, finals)) else format_returns(finals)


def format_steps(number: float | None) -> str:
    """Format a number of steps: 500k, 1M, 1.5M."""
    if number is None:
        return "?"
    unit, suffix = (1e6, "M") if number >= 1e6 else (1e3, "k") if number >= 1e3 else (1, "")
    return f"{number / unit:g}{suffix}"


def _format_seeds(rows: Sequence[Member]) -> str:
    seeds, failed = [member.seed for member in rows], sum(member.recorded.failure is not None for member in rows)
    listed = f"{seeds[0]}–{seeds[-1]}" if _consecutive(seeds) else ", ".join(map(str, seeds))
    return f"{listed} ({failed} diverged)" if failed else listed


def _legend(rows: Iterable[dict[str, str]], measured_with: Iterable[str], references: References | None) -> list[str]:
    used = dict.fromkeys(re.findall(r"\((\S+), ", " ".join(row.get("published", "") for row in rows)))
    sources = [f"- {name}: {references.sources[name]}" for name in used] if references else []
    return [LEGEND, *measured_with, *(["", "Published:", "", *sources] if sources else [])]


def _merge_measured(written: Iterable[str], measured: Sequence[tuple[str, recorded_runs.Run]]) -> list[str]:
    """Add the versions of the runs of rows to the lines of a page; rows of an older line are measured again."""
    again = {row for row, _ in measured}
    lines, merged = [], {}
    for line in written:
        versions, _, rows = line.removesuffix(".").partition(": ")
        left = [row for row in rows.split(", ") if row not in again]
        if not rows:
            lines.append(line)
        elif left:
            merged[versions] = dict.fromkeys(left)
    for row, run in measured:
        merged.setdefault(f"{_MEASURED}{_measured_with(run)}", {})[row] = None
    return [*lines, *(f"{versions}: {', '.join(rows)}." for versions, rows in merged.items())]


def _measured_with(run: recorded_runs.Run) -> str:
    versions = (f"{name} {version}" for name, version in run.summary["versions"].items() if version)
    return f"{', '.join(versions)} on {', '.join(dict.fromkeys(run.summary['devices']))}"


def read_block(page: Path) -> tuple[str, str, str]:
    """Read a page: what is before the text between the two markers, that text, and what follows."""
    try:
        text = page.read_text()
    except OSError as error:
        raise ConfigError(f"{page} cannot be read: {error}") from error
    match = re.fullmatch(f"(.*{BEGIN}\n)(.*)({END}.*)", text, re.DOTALL)
    if match is None or text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ConfigError(f"{page} must hold {BEGIN} on a line of its own and, below it, {END}, once each")
    return match[1], match[2], match[3]


def replace_block(page: Path, text: str) -> None:
    """Replace the text between the two markers of a page."""
    before, _, after = read_block(page)
    page.write_text(f"{before}{text}\n{after}")


def read_written(page: Path) -> Written:
    """Read the table between the two markers of a page."""
    _, text, _ = read_block(page)
    return Written(read_table(text), [line for line in text.splitlines() if line.startswith(_MEASURED)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="*", help="run directories, or directories that contain runs")
    parser.add_argument("--reference", type=Path, help="yaml file of published returns, for an extra column")
    parser.add_argument("--into", type=Path, help=f"page whose text between {BEGIN} and {END} is replaced")
    parser.add_argument("--pack", type=Path, metavar="DIR", help="new directory of a data set of the runs")
    parser.add_argument("--max-kb", type=int, default=300, help="with --pack: the largest size of a run, in kB")
    args = parser.parse_args(arguments)
    if not (args.runs or (args.reference and args.into)):
        parser.error("without runs, give --reference and --into, to write other published returns into a page")
    try:
        references = read_references(args.reference) if args.reference else None
        runs = find_runs(args.runs) if args.runs else ()
        if args.pack:
            import pack_runs

            if refused := pack_runs.pack(args.pack, runs, args.max_kb):
                sys.exit("\n".join(["results.py: these runs are left out:", *refused]))
            return
        members = (member for directory in runs for member in read_counted(directory))
        text = table(group(members), references, read_written(args.into) if args.into else None)
        if args.into:
            replace_block(args.into, text)
        else:
            print(text)
    except ConfigError as error:
        sys.exit(f"results.py: {error}")


if __name__ == "__main__":
    main()
