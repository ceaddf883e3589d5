"""Kill sweeps at random moments, start them again, and compare their trials with those of an uninterrupted one."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from kills import survive
from tiny_runs import Bench, Outcome, overrides, records

SYSTEM = "ppo/ff_ppo"
# Two populations of two members.
SWEEP = ("sweep.trials=4", "sweep.parallel=2", "sweep.space={actor_lr: {log_uniform: [0.001, 0.1]}}")

TUNE = "tune"
TUNED = ("--budget", "3000", "--slots", "2", "arch.total_timesteps=64")


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Kill one sweep a few times."""

    from stoix_like.lab.tuning.study import SAMPLERS

    sampler = bench.in_turn((*SAMPLERS, TUNE), index)

    def command(directory: Path) -> list[str]:
        if sampler == TUNE:
            # Its search, its finalists and its fresh seeds take a third of the time each.
            return ["tune", "probe/policy", *overrides(SYSTEM)[2:], *TUNED, f"--out={directory}"]
        return ["sweep", *overrides(SYSTEM), *SWEEP, f"sweep.sampler={sampler}", f"sweep.dir={directory}"]

    return survive(bench, rng, f"sweep by {sampler}", command, trials)


def trials(directory: Path) -> dict[str, Any]:
    """Return the trials of a sweep, its best setting with returns on fresh seeds, and what the runs recorded."""
    if (tuned := directory / "configs" / "experiment" / "tuned.yaml").exists():
        files = (tuned, directory / "search" / "trials.csv", directory / "fresh.csv")
        return {path.name: path.read_text() for path in files}
    runs = sorted((directory / "runs").iterdir())
    recorded = {f"{run.name}.{number}": record for run in runs for number, record in enumerate(records(run))}
    return {name: (directory / name).read_text() for name in ("trials.csv", "best.json")} | recorded
