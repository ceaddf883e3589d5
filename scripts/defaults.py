"""Train every system by its defaults on CartPole or Pendulum, and write the returns as one table.

A system trains with its own hyperparameters and network; the environment and the budget are all that is set. Runs that
are finished are not repeated, and those that were interrupted resume; `--table` only reads them. Systems without a
finished run keep their rows of the page, so that several machines can fill one table. Exits with 1 if a run failed.

    python scripts/defaults.py runs/defaults --into docs/defaults.md
    python scripts/defaults.py runs/defaults --systems ppo/ff_ppo search/ff_az
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

import results
from stoix_like.composition import compose_config, group_choices
from stoix_like.config import parse_config
from stoix_like.envs.spaces import Discrete
from stoix_like.errors import ConfigError
from stoix_like.storage.run_files import is_locked

# Those of `offline` learn from data or a teacher, those of `goals` from goals.
SYSTEMS = [system for system in group_choices("system") if not system.startswith(("offline/", "goals/"))]
SEEDS = 3
DIVERGED = "diverged"
# What a policy that has learned the task returns, and a random one does not: 23 and -1,230.
LEARNED = {"cartpole": 450.0, "pendulum": -250.0}
# Environment steps of each seed, where those of the kind would take too long or are too few.
STEPS = {
    "awr/ff_awr": 200_000,
    "ddpg/ff_ddpg": 10_000,
    "ddpg/rec_td3": 20_000,
    "dreamer/dreamer_v3": 8_000,
    "sac/ff_sac": 10_000,
    "sac/ff_tqc": 10_000,
    "sac/rec_sac": 20_000,
    "search/ff_az": 50_000,
    "search/ff_sampled_az": 50_000,
    "spo/ff_spo": 50_000,
}


class Task(NamedTuple):
    """Environment and budget on which the defaults of a system are measured."""

    environment: str
    steps: int


def main(argv: Sequence[str] | None = None) -> None:
    """Train what is missing, and print the table or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="of the runs, one for each system")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=SYSTEMS)
    parser.add_argument("--table", action="store_true", help="only write the table of the finished runs")
    parser.add_argument("--into", type=Path, help="page whose text between the markers of results.py is replaced")
    args = parser.parse_args(argv)
    trained = () if args.table else args.systems
    for system in trained:
        train(args.directory, system)
    # Another process may still train some.
    runs = {system: args.directory / system for system in trained}
    failed = [system for system, run in runs.items() if not (results.format_run(run) or is_locked(run))]
    text = table(args.directory, SYSTEMS if args.into else args.systems, written_rows(args.into) if args.into else {})
    results.replace_block(args.into, text) if args.into else print(text)
    if failed:
        sys.exit(f"defaults.py: the runs of {', '.join(failed)} failed: a page keeps the rows that it has of them")


def task_of(system: str) -> Task:
    """Choose the environment that fits the actions of a system, and the budget."""
    config = parse_config(compose_config([f"system={system}"])).system
    off_policy = config.has_replay
    if Discrete in getattr(config, "action_spaces", (Discrete,)):
        return Task("cartpole", STEPS.get(system, 100_000))
    return Task("pendulum", STEPS.get(system, 6_000 if off_policy else 200_000))


def command_of(system: str) -> list[str]:
    """Return the arguments of `stoix-like` that train the seeds of a system."""
    task = task_of(system)
    budget = [f"arch.total_timesteps={task.steps}", "arch.num_evaluation=5", "arch.absolute_metric=false"]
    seeds = [f"arch.population.size={SEEDS}", "arch.seed=0", "arch.num_devices=1"]
    return ["train", f"system={system}", f"env=gymnax/{task.environment}", *budget, *seeds]


def train(directory: Path, system: str) -> None:
    """Train the seeds of a system, unless its run is finished; a failure is reported, and the next one continues."""
    results.train(directory / system, command_of(system))


def written_rows(page: Path) -> dict[str, list[str]]:
    """Return the cells of each system in the table of a page."""
    lines = [line.strip("|").split("|") for line in page.read_text().splitlines() if line.startswith("| `")]
    rows = ([cell.strip() for cell in line] for line in lines)
    return {name.strip("`"): cells for name, *cells in rows}


def table(directory: Path, systems: Sequence[str], written: Mapping[str, list[str]]) -> str:
    """Return the markdown table: the final return of each seed, and whether all of them have learned the task."""
    titles = "system", "environment", "env steps", "final return of each seed", "learned"
    cells = ((system, _cells(directory, system) or written.get(system)) for system in systems)
    rows = [dict(zip(titles, (f"`{system}`", *found), strict=True)) for system, found in cells if found]
    if not rows:
        raise SystemExit(f"{directory} holds no finished run of {', '.join(systems)}: leave out --table to train them")
    return "\n".join(results.format_table(rows))


def _cells(directory: Path, system: str) -> list[str] | None:
    """Return what a finished run of a system has reached, or that it diverged; None without one."""
    task = task_of(system)
    try:
        members = results.read_members(directory / system)
    except results.DivergedError:
        return [task.environment, results.format_steps(task.steps), DIVERGED, f"0 of {SEEDS}"]
    except ConfigError:
        return None
    finals = np.asarray([member.final for member in members])
    learned = int(np.sum(finals >= LEARNED[task.environment]))
    steps = results.format_steps(members[0].run.summary["env_steps"])
    verdict = "yes" if learned == len(finals) else f"{learned} of {len(finals)}"
    shown = (DIVERGED if np.isnan(final) else f"{final:.1f}" for final in finals)
    return [task.environment, steps, ", ".join(shown), verdict]


if __name__ == "__main__":
    main()
