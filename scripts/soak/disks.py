"""Let the disk be full during training: the run survives, and what it keeps is right."""

from __future__ import annotations

import json
import os
import random
import resource
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tiny_runs import (
    ENVIRONMENT,
    REFUSED,
    ROOT,
    TIMES,
    Bench,
    Done,
    Outcome,
    complaints,
    overrides,
    systems,
    train_command,
)


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Train with files of limited size, with such a limit for a part of the run, or on a small tmpfs."""
    system = bench.in_turn(systems(), index)
    how = rng.choice((_small_files, _full_for_a_while, _small_tmpfs))
    run_dir = bench.scratch / "run"
    what, done = how(bench, rng, system, run_dir)
    reference = bench.reference(system)
    # 1: the end of the run could not be written, and its message says where the parameters are.
    problems = complaints(done, allowed=(0, 1, REFUSED))
    if (run_dir / "metrics.jsonl").exists():
        expected = [json.dumps(reference.digest[name]) for name in reference.digest if name.startswith("metrics.")]
        problems += wrong_lines((run_dir / "metrics.jsonl").read_text(), expected)
    if not problems and done.code in (0, 1) and any((run_dir / "checkpoints").glob("[0-9]*")):
        (run_dir / "summary.json").unlink(missing_ok=True)
        done = bench.cli("resume", run_dir)
        problems = complaints(done, allowed=(0,)) or bench.same_end(run_dir, reference)
    return Outcome(f"{system}, {what}", problems, bench.commands)


def wrong_lines(text: str, expected: list[str]) -> list[str]:
    """Return the complete records of a metrics file that the uninterrupted run does not have."""
    known = set(expected)
    for line in text.splitlines(keepends=True):
        try:
            record = json.loads(line)
        except ValueError:
            if not line.endswith("\n"):
                continue  # the last line, torn by the limit
            return [f"a torn line inside metrics.jsonl: {line[:60]!r}"]
        if json.dumps({name: value for name, value in record.items() if name not in TIMES}) not in known:
            return ["DIFFERENCE: a record of metrics.jsonl differs from the uninterrupted run"]
    return []


def _small_files(bench: Bench, rng: random.Random, system: str, run_dir: Path) -> tuple[str, Done]:
    limit = int(2 ** rng.uniform(8, 17))
    return f"files of {limit} bytes", bench.cli(*train_command(run_dir, overrides(system)), RLIMIT_FSIZE=limit)


def _full_for_a_while(bench: Bench, rng: random.Random, system: str, run_dir: Path) -> tuple[str, Done]:
    """Limit the size of files from outside, and lift the limit again."""
    start, end = sorted(rng.uniform(0.3, 1.0) for _ in range(2))
    seconds = bench.reference(system).seconds
    events = [
        (start * seconds, "full disk", _limit(rng.randrange(1, 4096))),
        (end * seconds, "free disk", _limit(None)),
    ]
    return f"full from {start:.2f} to {end:.2f}", bench.cli(*train_command(run_dir, overrides(system)), events=events)


def _limit(size: int | None) -> Callable[[int], Any]:
    """Return a function that limits the files of a process to `size` bytes; None lifts the limit."""

    def limit(pid: int) -> None:
        hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard if size is None else size, hard))

    return limit


def _small_tmpfs(bench: Bench, rng: random.Random, system: str, run_dir: Path) -> tuple[str, Done]:
    """Train on a tmpfs of a user namespace, which needs no root; copy what it kept."""
    size = rng.randrange(64, 1024)
    mount = bench.scratch / "disk"
    mount.mkdir()
    if not _can_mount(mount):
        return _small_files(bench, rng, system, run_dir)
    words = train_command(mount / "run", overrides(system))
    train = [sys.executable, "-c", "from stoix_like.cli import main; main()", *words]
    script = (
        f"mount -t tmpfs -o size={size}k none {shlex.quote(str(mount))}; {shlex.join(train)}; code=$?;"
        f" cp -r {shlex.quote(str(mount))}/run {shlex.quote(str(run_dir))} 2>/dev/null; exit $code"
    )
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    bench.commands.append(shlex.join(command))
    environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=600)
    return f"tmpfs of {size} KiB", Done(done.returncode, done.stdout, done.stderr, 0.0)


def _can_mount(mount: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    script = f"mount -t tmpfs -o size=64k none {shlex.quote(str(mount))}"
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0
