"""Console output of a run, for terminals and the log files of jobs."""

from __future__ import annotations

import builtins
import dataclasses
import os
import pathlib
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn
from rich.table import Column
from rich.text import Text

from stoix_like.loggers.base import Logger, LoggerSettings, RunInfo
from stoix_like.loggers.formats import (
    MIN_IQM,
    center_name,
    describe_point,
    format_number,
    format_rate,
    format_seconds,
    format_timing,
    short_path,
    table_of_points,
)

# Columns of the label of a field, and of the bar with its percentage, its time left and spaces.
_LABEL_WIDTH = 18
_BAR_WIDTH = 30
_ABSOLUTE_METRIC = " of the {} parameters, on ten times as many episodes"


@dataclasses.dataclass(frozen=True)
class ConsoleConfig(LoggerSettings):
    """Configuration of `logger.console`."""

    enabled: bool = True
    progress_bar: bool = True
    curve: bool = True

    def make(self, run_dir: pathlib.Path) -> Logger:
        """In a Jupyter notebook, a curve takes the place of the lines."""
        console = ConsoleLogger(self)
        if not (self.curve and in_notebook()):
            return console
        # Drawing imports matplotlib.
        from stoix_like.loggers.notebook import NotebookLogger

        return NotebookLogger(console)


class ConsoleLogger:
    """Console logger: a header, one line per evaluation, a summary and, on a terminal, a progress bar."""

    name = "console"

    def __init__(self, config: ConsoleConfig) -> None:
        self._config = config
        self._console = _LineConsole(highlight=False, force_jupyter=False)
        # Variables such as FORCE_COLOR make rich treat a file as a terminal.
        self._terminal = self._console.is_terminal and self._console.file.isatty()
        self._last: Mapping[str, Any] = {}
        self._bar: Progress | None = None

    def start(self, info: RunInfo) -> None:
        """Print the header and show the progress bar."""
        self._info, self._total = info, max(info.total_timesteps, 1)
        self._job = "" if info.job is None else f"[{info.job}] "
        seeds = f"seed {info.seed}"
        if info.num_members > 1:
            shared = "" if info.num_seeds in (None, info.num_members) else f"{info.num_seeds} "
            seeds = f"all with seed {info.seed}" if info.num_seeds == 1 else f"{shared}seeds from {info.seed}"
            seeds = f"{info.num_members} members, {seeds}"
        wide = len(f"{info.system} on {info.environment}, {seeds}") > self._console.width
        gap = "\n  " if self._terminal and wide else " "
        self._print((info.system, "bold"), " on ", (info.environment, "bold"), f",{gap}{seeds}")
        counts = f"{info.num_updates:,} updates, {info.num_evaluations} evaluations"
        self._print_field("budget", f"{info.total_timesteps:,} {info.step_unit}, {counts}")
        if info.devices:
            self._print_field("devices", info.devices)
        self._print_field("run directory", short_path(info.run_dir))
        for note in info.notes:
            self._print_field("note", note, "yellow")
        name = center_name(info.num_members)
        center = "interquartile mean (IQM, of the middle half)" if name == "IQM" else name
        members = f"{center} over members of the mean episode return [95 % bootstrap interval], best and worst one"
        lone = "mean episode return ± standard deviation over episodes, mean episode length"
        self._print_field("rows", lone if info.num_members == 1 else members)
        # Of several processes, only one could draw its bar.
        if self._config.progress_bar and not self._job and self._console.is_interactive and self._terminal:
            self._bar = _progress_bar(self._console)
            fields: dict[str, Any] = {"status": "", "deadline": None}
            fields["phase"] = "training" if info.history else "compiling"
            self._bar.add_task(self._describe(""), total=self._total, completed=info.env_steps, **fields)
            self._bar.start()
        elif not info.history:
            self._print(("  compiling: from seconds to minutes, less if the programs are cached", "dim"))

    def log(self, record: Mapping[str, Any]) -> None:
        """Print one line for an evaluation and advance the progress bar."""
        result, cells = (_of_population if "eval/episode_return_iqm" in record else _of_one)(record)
        self._print_row(record, cells)
        self._advance(record, f"return {result}")
        if self._info.absolute_episodes and record["env_steps"] >= self._total:
            text = f"  evaluating the {self._info.kept} parameters on {self._info.absolute_episodes:,} episodes"
            self._print((text, "dim"))

    def _print_row(self, record: Mapping[str, Any], results: Sequence[Cell]) -> None:
        """Print one line, on a terminal without the cells that do not fit its width."""
        steps, width = record["env_steps"], len(f"{self._total:,}")
        # The progress bar shows the time left, too.
        left = None if self._bar is not None else _seconds_left(self._last, record, self._total, self._info.num_members)
        cells = [
            Cell(f"  {steps:>{width},}", 3, "dim"),
            Cell(f" {steps / self._total:>4.0%}", 0, "dim"),
            *results,
            Cell(f"  {format_rate(record.get('steps_per_second')):>5} steps/s", 2, "dim"),
            Cell(f"  {format_seconds(record.get('wall_seconds'))}", 3, "dim"),
            *([Cell(f"  {format_seconds(left)} left", 6, "dim")] if left else []),
        ]
        if self._terminal:
            cells = fitting(cells, self._console.width - len(self._job))
        self._print(*((cell.text, cell.style) for cell in cells))

    def _advance(self, record: Mapping[str, Any], status: str) -> None:
        """Advance the progress bar."""
        if self._bar is not None:
            (task,), left = self._bar.task_ids, _seconds_left(self._last, record, self._total, self._info.num_members)
            status = f"{status}  {format_rate(record.get('steps_per_second'))} steps/s"
            if not self._last:
                self._bar.reset(task, completed=record["env_steps"])  # its clock, which includes compilation
            deadline, label = None if left is None else time.monotonic() + left, self._describe(status)
            fields: dict[str, Any] = {"status": status, "deadline": deadline, "phase": "training"}
            self._bar.update(task, completed=record["env_steps"], description=label, **fields)
        self._last = dict(record)

    def _describe(self, status: str) -> str:
        """Return the text before the bar: the system, as far as there is room."""
        room = self._console.width - len(status) - _BAR_WIDTH
        for text in (self._info.system, self._info.system.rpartition("/")[2]):
            if len(text) <= room:
                return text
        return ""

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Remove the progress bar and print the summary."""
        self.close()
        steps = f"{summary.get('env_steps', self._last.get('env_steps', 0)):,} {self._info.step_unit}"
        self._print(("finished", "bold"), f": {steps}")
        of_kept = _ABSOLUTE_METRIC.format(self._info.kept)
        for label, prefix, meaning in (("last evaluation", "eval", ""), ("absolute metric", "absolute", of_kept)):
            iqm = summary.get(f"{prefix}/episode_return_iqm")
            mean = summary.get(f"{prefix}/episode_return_mean")
            if iqm is None and mean is not None:
                self._print_field(label, f"{format_number(mean)} mean episode return{meaning}", "bold green")
            elif iqm is not None:
                ends = (format_number(summary.get(f"{prefix}/episode_return_{end}")) for end in ("ci_low", "ci_high"))
                name = center_name(summary.get("population/size", MIN_IQM))
                value = f"{format_number(iqm)} [{', '.join(ends)}] {name} over members"
                self._print_field(label, value + meaning, "bold green")
        if (best := summary.get("population/best")) is not None:
            varied = {name: best[name] for name in best if name in summary.get("population/varied", ())}
            described = "".join(f", {name}={value:.3g}" for name, value in varied.items())
            measure = "absolute metric" if "absolute/episode_return_mean" in summary else "last evaluation"
            self._print_field("best member", f"#{best['member']} by the {measure}, seed {best['seed']}{described}")
        if "population/points" in summary:
            self._print_field("best point", describe_point(summary["population/best_point"]), "bold green")
            for line in table_of_points(summary["population/points"]):
                self._print(f"{'':{_LABEL_WIDTH}}{line}")
        self._print_field("time", format_timing(summary["timing"]))
        if "profile" in summary:
            self._print_field("trace", f"{short_path(self._info.run_dir / summary['profile'])}, for ui.perfetto.dev")
        self._print_field("speed", f"{format_rate(summary.get('steps_per_second'))} {self._info.step_unit}/s")
        self._print_field("written to", short_path(self._info.run_dir))

    def close(self) -> None:
        """Remove the progress bar and restore the terminal."""
        if self._bar is not None:
            bar, self._bar = self._bar, None
            bar.stop()

    def _print_field(self, label: str, value: str, style: str = "") -> None:
        if self._terminal:
            # Paths are not broken, so that they can be copied.
            room = max(self._console.width - len(self._job) - _LABEL_WIDTH, 20)
            lines = textwrap.wrap(value, room, break_long_words=False, break_on_hyphens=False)
            value = f"\n{' ' * _LABEL_WIDTH}".join(lines)
        self._print((f"  {label:<{_LABEL_WIDTH - 2}}", "dim"), (value, style))

    def _print(self, *parts: str | tuple[str, str]) -> None:
        line = Text.assemble(self._job, *parts)
        # Characters that the terminal cannot encode become question marks instead of errors.
        line.plain = line.plain.encode(self._console.encoding, "replace").decode(self._console.encoding)
        self._console.print(line, soft_wrap=True)


class Cell(NamedTuple):
    """A part of a row: its text, its rank, and its style. Where there is little room, the highest rank goes first."""

    text: str
    rank: int
    style: str = ""


def _of_one(record: Mapping[str, Any]) -> tuple[str, list[Cell]]:
    """Return the result of a single run, and its cells."""
    names = ("return_mean", "return_std", "length_mean")
    mean, std, length = (format_number(record.get(f"eval/episode_{name}")) for name in names)
    return mean, [
        Cell("   return ", 0),
        Cell(f"{mean:>8}", 0, "bold green"),
        Cell(f" ± {std:<7}", 1),
        Cell(f"  length {length:>7}", 4),
    ]


def _of_population(record: Mapping[str, Any]) -> tuple[str, list[Cell]]:
    """Return the aggregate of a population, and its cells, with its best and worst member."""
    scores = record["eval/episode_return_mean"]
    iqm, low, high = (format_number(record[f"eval/episode_return_{name}"]) for name in ("iqm", "ci_low", "ci_high"))
    name = center_name(len(scores))
    best, worst, failed = (record[f"population/{name}"] for name in ("best_member", "worst_member", "failed"))
    # The return of a frozen policy is no result.
    shown = {member: "diverged" if member in failed else format_number(scores[member]) for member in (best, worst)}
    return f"{name} {iqm}", [
        Cell(f"   return {name} ", 0),
        Cell(f"{iqm:>8}", 0, "bold green"),
        Cell(f" [{low}, {high}]", 1),
        Cell(f"  best {shown[best]} (#{best})", 4),
        Cell(f"  worst {shown[worst]} (#{worst})", 5),
    ]


def fitting(cells: Sequence[Cell], width: int) -> list[Cell]:
    """Leave out the cells that do not fit."""
    kept = list(cells)
    while sum(len(cell.text) for cell in kept) > width and any(cell.rank for cell in kept):
        kept.remove(max(kept, key=lambda cell: cell.rank))
    return kept


def in_notebook() -> bool:
    """Return whether output goes to a Jupyter notebook, where rich sees no terminal."""
    shell = getattr(builtins, "get_ipython", lambda: None)()
    return any(kind.__name__ == "ZMQInteractiveShell" for kind in type(shell).__mro__)


class _LineConsole(Console):
    """Rich console that raises on a broken pipe (`| head`) instead of exiting the program."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Otherwise Python's final flush of standard output would report the error again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise BrokenPipeError("the reader of standard output has closed it")


class _TimeLeft(ProgressColumn):
    """Countdown to the task's `deadline` on the monotonic clock; its phase so far while the deadline is unknown."""

    def render(self, task: Task) -> Text:
        if (deadline := task.fields["deadline"]) is None:
            return Text(f"{task.fields['phase']} {format_seconds(task.elapsed)}", style="dim")
        return Text(f"{format_seconds(max(0.0, deadline - time.monotonic()))} left", style="cyan")


def _progress_bar(console: Console) -> Progress:
    def one_line() -> Column:
        return Column(no_wrap=True)

    return Progress(
        TextColumn("{task.description}", markup=False, table_column=one_line()),
        BarColumn(bar_width=None),
        TaskProgressColumn(table_column=one_line()),
        TextColumn("{task.fields[status]}", markup=False, table_column=one_line()),
        _TimeLeft(table_column=one_line()),
        console=console,
        # Elsewhere than on the terminal, standard error stays what it is.
        redirect_stderr=sys.stderr is not None and sys.stderr.isatty(),
        expand=True,
        transient=True,
        # Redrawing competes with training for the CPU.
        refresh_per_second=2,
    )


def _seconds_left(last: Mapping[str, Any], record: Mapping[str, Any], total: int, num_members: int) -> float | None:
    """Estimate the seconds left at the current pace, evaluations included."""
    steps = record["env_steps"]
    since = last.get("env_steps", steps)
    if steps > since and "wall_seconds" in last and "wall_seconds" in record:
        return float((total - steps) * (record["wall_seconds"] - last["wall_seconds"]) / (steps - since))
    # The first record of a resumed run has none before it.
    speed = record.get("steps_per_second")
    # It counts the steps of all members, and the budget the steps of one.
    return (total - steps) * num_members / speed if steps and speed else None
