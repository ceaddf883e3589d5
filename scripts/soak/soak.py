"""Soak test: kill, starve, damage, fuzz and deceive tiny runs for a given time, and print what did not survive.

    python scripts/soak --minutes 10
    python scripts/soak --only kills/3          # one try again, as a failure names it
    python scripts/soak --kinds kills --rounds 204 --minutes 300 --journal soak.jsonl    # resumable

kills     runs of systems in turn are stopped at random moments, resumed, and compared with an uninterrupted run
disks     the disk is full during training
faults    a file of a checkpoint loses a bit, its end or its existence
sweeps    sweeps are stopped at random moments, started again, and compared with an uninterrupted one
sebulba   runs of Sebulba with environments of the host are stopped at random moments, and resumed
fuzz      a key of the configuration has a wrong value; the keys of all groups in turn
hostile   a run directory links elsewhere, blocks, explodes or names foreign code

The order of systems, options, keys and traps is random. Moments are fractions of a measured duration, so that `--seed`
determines all tries. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import collections
import importlib
import json
import os
import random
import shutil
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tiny_runs import Bench, Outcome, References, Worker

# Tries of each kind in one round.
ROUND = {"kills": 1, "disks": 1, "faults": 2, "sweeps": 1, "sebulba": 1, "fuzz": 8, "hostile": 2}
HEADER = ("kind", "tried", "survived", "differences", "tracebacks", "other", "seconds")


class Try(NamedTuple):
    """One finished try: the seed of all tries, its kind, its number, its outcome and its duration in seconds."""

    seed: int
    kind: str
    index: int
    outcome: Outcome
    seconds: float


class Journal:
    """Finished tries, also those of earlier calls with the same file."""

    def __init__(self, path: Path | None) -> None:
        self.tries: list[Try] = []
        self._path = path
        for line in path.read_text().splitlines() if path is not None and path.exists() else ():
            seed, kind, index, outcome, seconds = json.loads(line)
            self.tries.append(Try(seed, kind, index, Outcome(*outcome), seconds))

    def add(self, tried: Try) -> None:
        """Add a try."""
        self.tries.append(tried)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(tried) + "\n")


def main() -> None:
    """Run the soak test."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0, help="no try starts later (default: 10)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all tries (default: 0)")
    parser.add_argument("--rounds", type=int, help="stop after this number of rounds")
    parser.add_argument("--kinds", default=",".join(ROUND), help="kinds to run (default: all)")
    parser.add_argument("--journal", type=Path, help="file of finished tries, which are reported and not repeated")
    parser.add_argument("--only", metavar="KIND/NUMBER,…", help="run these tries, and print their commands")
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="parallel tries (default: one per core)")
    args = parser.parse_args()
    only = [one.partition("/") for one in args.only.split(",")] if args.only else []
    if {*args.kinds.split(","), *(kind for kind, _, _ in only)} - set(ROUND):
        parser.error(f"choose kinds from {', '.join(ROUND)}")
    journal = Journal(args.journal)
    done = {(tried.kind, tried.index) for tried in journal.tries if tried.seed == args.seed}
    tries = iter([(kind, int(number)) for kind, _, number in only] or planned(args.kinds.split(","), args.rounds))
    plan = (attempted for attempted in tries if attempted not in done)
    start = time.monotonic()
    run(plan, args.seed, args.jobs, start + 60 * args.minutes, journal)
    tries = journal.tries
    print("\n".join([*report(tries), *by_name(tries)]))
    if args.only:
        print("\n".join(line for tried in tries for line in (tried.outcome.what, *tried.outcome.commands)))
    print(f"\n{time.monotonic() - start:.0f} s, seed {args.seed}, {args.jobs} jobs")
    sys.exit(any(tried.outcome.problems for tried in tries))


def planned(kinds: list[str], rounds: int | None) -> Iterator[tuple[str, int]]:
    """Yield the kind and the number of every try, in rounds of all kinds."""
    numbers: collections.Counter[str] = collections.Counter()
    done = 0
    while rounds is None or done < rounds:
        for kind in kinds:
            for _ in range(ROUND[kind]):
                yield kind, numbers[kind]
                numbers[kind] += 1
        done += 1


def run(plan: Iterator[tuple[str, int]], seed: int, jobs: int, deadline: float, journal: Journal) -> None:
    """Run the planned tries in parallel until the deadline."""
    with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
        references = References(Path(scratch) / "references")
        lock = threading.Lock()

        def work() -> None:
            worker = Worker()
            while True:
                with lock:
                    job = None if time.monotonic() > deadline else next(plan, None)
                if job is None:
                    break
                journal.add(attempt(worker, *job, seed, Path(scratch), references))
            worker.close()

        threads = [threading.Thread(target=work) for _ in range(jobs)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def attempt(worker: Worker, kind: str, index: int, seed: int, scratch: Path, references: References) -> Try:
    """Run one try in a directory of its own."""
    start = time.monotonic()
    directory = scratch / f"{kind}-{index}"
    directory.mkdir()
    bench = Bench(worker, directory, references, seed)
    try:
        outcome = importlib.import_module(kind).attempt(bench, random.Random(f"{seed} {kind} {index}"), index)
    except Exception as error:  # The soak itself failed; the other tries continue.
        reason = traceback.format_exception_only(error)[-1].strip()
        outcome = Outcome(kind, [f"the try failed: {reason}"], bench.commands)
    shutil.rmtree(directory, ignore_errors=True)
    for problem in outcome.problems:
        print(f"{kind}/{index}: {outcome.what}: {problem}", flush=True)
    return Try(seed, kind, index, outcome, time.monotonic() - start)


def report(tries: list[Try]) -> list[str]:
    """Return the failures with their commands, and a table of figures per kind."""
    lines = []
    for tried in tries:
        if tried.outcome.problems:
            lines += ["", f"{tried.kind}/{tried.index}: {tried.outcome.what}"]
            lines += [f"  {problem}" for problem in tried.outcome.problems]
            lines += [f"  again: python scripts/soak --seed {tried.seed} --only {tried.kind}/{tried.index}"]
            lines += [f"    {command}" for command in tried.outcome.commands]
    rows = [HEADER, *(figures(kind, tries) for kind in ROUND if any(tried.kind == kind for tried in tries))]
    return [*lines, "", *("  ".join(f"{cell:<12}" for cell in row).rstrip() for row in rows)]


def figures(kind: str, tries: list[Try]) -> tuple[str, ...]:
    """Return the row of one kind."""
    own = [tried for tried in tries if tried.kind == kind]
    failed = [" ".join(tried.outcome.problems) for tried in own if tried.outcome.problems]
    different = sum("DIFFERENCE" in text or "HARM" in text for text in failed)
    traced = sum("TRACEBACK" in text and "DIFFERENCE" not in text for text in failed)
    counts = (len(own), len(own) - len(failed), different, traced, len(failed) - different - traced)
    return (kind, *(str(count) for count in counts), f"{sum(tried.seconds for tried in own):.0f}")


def by_name(tries: list[Try]) -> list[str]:
    """Return a table of what was killed: the run, how often it was tried, the signals, and the failures."""
    rows = [("killed", "tried", "signals", "failed")]
    names = sorted({tried.outcome.what.partition(",")[0] for tried in tries if tried.kind == "kills"})
    for name in names:
        own = [
            tried.outcome for tried in tries if tried.kind == "kills" and tried.outcome.what.partition(",")[0] == name
        ]
        signals = sum(outcome.what.count(" at ") for outcome in own)
        rows.append((name, str(len(own)), str(signals), str(sum(bool(outcome.problems) for outcome in own))))
    return ["", *("| " + " | ".join(row) + " |" for row in rows)] if names else []
