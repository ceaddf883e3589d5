"""Damage one file of a checkpoint: the fault is noticed or harmless, and never a silent difference."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from tiny_runs import Bench, Outcome, complaints, systems

# Results of an evaluation that a damaged checkpoint must not change silently.
COMPARED = ("episode_returns", "episode_lengths", "env_steps")


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Damage a file of the newest checkpoint, then evaluate the run or resume it to its end."""
    system = bench.in_turn(systems(), index)
    run_dir = bench.unfinished(system)
    resuming = rng.random() < 0.5
    which = rng.choice(("best", "last"))
    evaluate = ["evaluate", run_dir, "--episodes", 2, "--which", which]
    expected = None if resuming else bench.once(f"{system} {which}", lambda: _evaluated(run_dir, bench, evaluate))
    newest = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    what = damage(newest, rng)
    bench.commands.append(f"# {what}")
    done = bench.cli("resume", run_dir) if resuming else bench.cli(*evaluate)
    problems = complaints(done)
    if not problems and done.code == 0:
        if resuming:
            problems = bench.same_end(run_dir, bench.reference(system))
        elif not done.err.strip() and _newest_result(run_dir) != expected:
            problems = ["DIFFERENCE: the evaluation differs, and nothing is said"]
    return Outcome(f"{system}, {'resume' if resuming else which}, {what}", problems, bench.commands)


def damage(directory: Path, rng: random.Random) -> str:
    """Flip a bit of a random file, truncate it or delete it; return what was done."""
    files = sorted(path for path in directory.rglob("*") if path.is_file())
    path = rng.choice(files)
    size = path.stat().st_size
    how = rng.choice(("flip", "flip", "truncate", "delete")) if size else "delete"
    name = f"checkpoints/{path.relative_to(directory.parent)}"
    if how == "delete":
        path.unlink()
        return f"delete {name}"
    content = bytearray(path.read_bytes())
    position = rng.randrange(size)
    if how == "truncate":
        path.write_bytes(content[:position])
        return f"truncate {name} to {position} of {size} bytes"
    bit = rng.randrange(8)
    content[position] ^= 1 << bit
    path.write_bytes(content)
    return f"flip bit {bit} of byte {position} of {name}"


def _evaluated(run_dir: Path, bench: Bench, command: list[Any]) -> dict[str, Any]:
    done = bench.cli(*command)
    if done.code:
        raise RuntimeError(f"an undamaged run cannot be evaluated: {done.err[-2000:]}")
    return _newest_result(run_dir)


def _newest_result(run_dir: Path) -> dict[str, Any]:
    newest = max((run_dir / "evaluations").glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    record = json.loads(newest.read_text())
    return {name: record[name] for name in COMPARED}
