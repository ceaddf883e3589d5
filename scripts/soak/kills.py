"""Kill runs at random moments, resume them to their end, and compare with an uninterrupted run, byte by byte."""

from __future__ import annotations

import functools
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tiny_runs import Bench, Done, Outcome, Reference, complaints, differences, overrides, systems, train_command

MAX_KILLS = 3
SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
# A process that still runs for this part of a whole run after a signal has ignored it.
IGNORED = 0.5


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Kill one run a few times."""
    system = systems()[index % len(systems())]
    return survive(bench, rng, system, functools.partial(next_command, overrides(system)), bench.digest)


def survive(
    bench: Bench,
    rng: random.Random,
    name: str,
    command: Callable[[Path], list[str]],
    digest: Callable[[Path], dict[str, Any]],
) -> Outcome:
    """Kill a command a few times, at fractions of the duration of an uninterrupted one, and let it end.

    Args:
        bench: see `Bench`.
        rng: draws signals and moments.
        name: of the command.
        command: returns the arguments that start or continue it in a directory.
        digest: returns what must not differ from the uninterrupted one.
    """
    reference = bench.measured(name, command, digest)
    run_dir, problems, what = bench.scratch / "run", [], []
    for _ in range(rng.randint(1, MAX_KILLS)):
        number, fraction = rng.choice(SIGNALS), rng.uniform(0.02, 1.0)
        moment = fraction * reference.seconds
        event = (moment, number.name, functools.partial(_send, number))
        done = bench.cli(*command(run_dir), events=[event])
        what.append(f"{number.name} at {fraction:.2f}")
        problems += [f"{what[-1]}: {problem}" for problem in killed_badly(done, number, moment, reference)]
    done = bench.cli(*command(run_dir))
    problems += complaints(done, allowed=(0,)) or differences(digest(run_dir), reference)
    return Outcome(f"{name}, {', '.join(what)}", problems, bench.commands)


def killed_badly(done: Done, number: int, moment: float, reference: Reference) -> list[str]:
    """Return what is wrong with the end of a process that was sent a signal."""
    allowed = (0, -number, 128 + number)  # it may have ended before, and has no handlers yet at its start
    if problems := complaints(done, allowed):
        return problems
    if number != signal.SIGKILL and done.code == 0 and done.seconds - moment > max(3.0, IGNORED * reference.seconds):
        return [f"IGNORED: ran on for {done.seconds - moment:.1f} s"]
    return []


def next_command(words: Sequence[str], run_dir: Path) -> list[str]:
    """Return the arguments that start a run, or resume it."""
    return ["resume", str(run_dir)] if (run_dir / "config.yaml").exists() else train_command(run_dir, words)


def _send(number: int, pid: int) -> None:
    os.kill(pid, number)
