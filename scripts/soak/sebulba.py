"""Kill runs of Sebulba in environments of the host, and resume them: they end where an uninterrupted run does."""

from __future__ import annotations

import functools
import random
from pathlib import Path
from typing import Any

from kills import next_command, survive
from tiny_data import offline
from tiny_runs import Bench, Outcome, overrides, records, systems


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Kill one run a few times."""
    system = bench.in_turn([system for system in systems() if not offline(system)], index)
    command = functools.partial(next_command, overrides(system, on_host=True))
    return survive(bench, rng, f"sebulba {system}", command, evaluations)


def evaluations(run_dir: Path) -> dict[str, Any]:
    """Return at which steps a run was evaluated: no checkpoint holds what is inside an environment of the host."""
    steps = {f"metrics.{number}": record["env_steps"] for number, record in enumerate(records(run_dir))}
    return {**steps, "finished": (run_dir / "summary.json").exists()}
