"""Record data of a task, learn from them offline by several systems, and write the returns as one table.

The data are those of an expert, those of a policy halfway there, and all that a finished run has played. Each method
has one setting for all data. Runs that are finished are not repeated, and those that were interrupted resume; `--table`
only reads them.

    python scripts/offline.py runs/offline
    python scripts/offline.py runs/offline --table
    python scripts/offline.py runs/hopper --task hopper --data medium --methods BC IQL TD3+BC ReBRAC
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import results
import stoix_like
from stoix_like.data.files import open_data

_LAYER_NORM = "network.q_network.pre_torso.use_layer_norm=true"
_SAC_HOPPER = "+experiment=_sac_mujoco", "env=gymnasium/hopper", "arch.total_timesteps=1e5"


def _layers(width: int, *networks: str) -> tuple[str, ...]:
    return tuple(f"network.{name}_network.pre_torso.layer_sizes=[{width},{width}]" for name in networks)


class Task(NamedTuple):
    """An environment, who plays in it, and the settings of the methods.

    Attributes:
        env: its configuration.
        expert: overrides of the run that records the expert's data and the replay buffer.
        halfway: overrides of the run that stops between random actions and the expert.
        methods: by name, the overrides of the command line; bc_coef of TD3+BC is that of the paper.
    """

    env: str
    expert: tuple[str, ...]
    halfway: tuple[str, ...]
    methods: dict[str, tuple[str, ...]]


TASKS = {
    "pendulum": Task(
        "gymnax/pendulum",
        ("+experiment=sac_pendulum", "arch.seed=0", "checkpoint.replay=true"),
        # Random actions return -1,200 and the expert -140.
        ("+experiment=sac_pendulum", "arch.seed=1", "arch.num_evaluation=50", "arch.stop_at_return=-675"),
        {
            "BC": ("system=offline/bc", "network=mlp_ddpg", *_layers(64, "actor")),
            "IQL": (
                "system=offline/ff_iql",
                *_layers(64, "actor", "q", "critic"),
                *("system.expectile=0.8", "system.beta=0.1", "system.reward_scale=0.1"),
            ),
            "TD3+BC": ("system=ddpg/ff_td3", "system.bc_coef=0.4", *_layers(64, "actor", "q")),
            "ReBRAC": (
                *("system=ddpg/ff_td3", "system.bc_coef=0.1", "system.critic_bc_coef=0.01"),
                *(*_layers(64, "actor", "q"), _LAYER_NORM),
            ),
            "CQL": (
                # The authors' weight, of rewards that are not scaled.
                *("system=sac/ff_sac", "system.cql_coef=2.5", "system.cql_actions=4", "system.total_batch_size=64"),
                *("system.actor_lr=1e-3", "system.q_lr=1e-3", "system.alpha_lr=1e-3"),
                *_layers(64, "actor", "q"),
            ),
            "FQL": (
                "system=offline/ff_fql",
                *_layers(64, "actor", "q", "flow"),
                "system.reward_scale=0.1",
            ),
            "SAC": ("system=sac/ff_sac", *_layers(64, "actor", "q")),
        },
    ),
    "hopper": Task(
        "gymnasium/hopper",
        (*_SAC_HOPPER, "arch.seed=0", "checkpoint.replay=true"),
        # Random actions return 20 and the expert 700.
        (*_SAC_HOPPER, "arch.seed=1", "arch.num_evaluation=50", "arch.stop_at_return=350"),
        {
            "BC": ("system=offline/bc", "network=mlp_ddpg", *_layers(128, "actor")),
            "IQL": (
                "system=offline/ff_iql",
                *_layers(128, "actor", "q", "critic"),
            ),
            "TD3+BC": (
                *("system=ddpg/ff_td3", "system.bc_coef=0.133", "system.normalize_observations=true"),
                *_layers(128, "actor", "q"),
            ),
            "ReBRAC": (
                *("system=ddpg/ff_td3", "system.bc_coef=0.05", "system.critic_bc_coef=0.01"),
                *("system.normalize_observations=true", *_layers(128, "actor", "q"), _LAYER_NORM),
            ),
            "SAC": ("system=sac/ff_sac", *_layers(128, "actor", "q")),
        },
    ),
}
# By name, whether the expert plays, and how.
DATA: dict[str, tuple[bool, dict[str, Any]]] = {
    "expert": (True, {"steps": 1e4}),
    "medium": (False, {"steps": 1e5, "policy": "sampled"}),
    "replay": (True, {"replay": True}),
}


def main(argv: Sequence[str] | None = None) -> None:
    """Record, learn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="of the data and the runs, one for each method and data set")
    parser.add_argument("--task", choices=TASKS, default="pendulum")
    parser.add_argument("--methods", nargs="+", help="by default, all of the task's")
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--steps", type=float, default=3e4, help="gradient steps of each seed")
    parser.add_argument("--seeds", type=int, default=5, help="trained together, as the members of a population")
    parser.add_argument("--table", action="store_true", help="only write the table of the finished runs")
    args = parser.parse_args(argv)
    task = TASKS[args.task]
    methods = args.methods or list(task.methods)
    if unknown := set(methods) - set(task.methods):
        parser.error(f"--methods {' '.join(sorted(unknown))}: {args.task} has {', '.join(task.methods)}")
    if not args.table:
        for name in args.data:
            record(args.directory, task, name)
            for method in methods:
                words = command_of(args.directory, task, method, name, args.steps, args.seeds)
                results.train(args.directory / method / name, words, check=True)
    print(table(args.directory, methods, args.data))


def record(directory: Path, task: Task, name: str) -> None:
    """Record a data set, unless it is there, with a run that is trained first, unless it is finished."""
    of_expert, how = DATA[name]
    played_by = directory / ("expert" if of_expert else "halfway")
    results.train(played_by, ["train", *(task.expert if of_expert else task.halfway)], check=True)
    out = path_of(directory, name)
    if not out.exists():
        if results.has_diverged(played_by):
            raise SystemExit(f"{played_by} diverged: delete it, and train it with another seed")
        stoix_like.collect(played_by, out=out, **how)


def path_of(directory: Path, name: str) -> Path:
    """Return the file of a data set."""
    return directory / f"{name}.npz"


def command_of(directory: Path, task: Task, method: str, name: str, steps: float, seeds: int) -> list[str]:
    """Return the arguments of `stoix-like` that train the seeds of one cell of the table."""
    where = ["arch=offline", f"env={task.env}", f"system.data={path_of(directory, name)}"]
    budget = [f"arch.total_timesteps={steps:.0f}", f"arch.population.size={seeds}", "arch.seed=0", "arch.num_devices=1"]
    return ["train", *task.methods[method], *where, *budget, "arch.num_evaluation=5"]


def table(directory: Path, methods: Sequence[str], data: Sequence[str]) -> str:
    """Return the markdown table: interquartile means over seeds of the last policy, with 95 % bootstrap intervals."""
    behaviour = {name: f"{open_data(path_of(directory, name)).header.return_mean:.1f}" for name in data}
    found = {method: {name: results.format_run(directory / method / name) for name in data} for method in methods}
    rows = {"behaviour, mean return": behaviour, **found}
    return "\n".join(results.format_table([{"": name, **cells} for name, cells in rows.items()]))


if __name__ == "__main__":
    main()
