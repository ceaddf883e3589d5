"""Train three tasks until an evaluation reaches a return, and print the seconds from the command to the trained policy.

The seconds are those of the whole process: imports, compilation, training, evaluations and checkpoints. The returns are
frozen, so that machines and versions compare: gymnasium's thresholds of CartPole-v1 and InvertedDoublePendulum-v5, and
a third of what PPO reaches on MinAtar Breakout after ten million steps. The first run of a version compiles for longer
than later ones, which find their programs in the cache.

    make speedrun ARGS="--seeds 3 --tasks CartPole-v1"
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from stoix_like.storage.recorded_runs import read_run


class Task(NamedTuple):
    """A task, the return that ends it, and how it is trained."""

    episode_return: float
    overrides: tuple[str, ...]


TASKS = {
    "CartPole-v1": Task(475.0, ("+experiment=ppo_cartpole", "arch.total_timesteps=2e5", "arch.num_evaluation=20")),
    "Breakout-MinAtar": Task(9.0, ("+experiment=ppo_breakout", "arch.total_timesteps=1e6", "arch.num_evaluation=20")),
    "InvertedDoublePendulum-v5": Task(
        9_100.0,
        (
            *("+experiment=ppo_inverted_double_pendulum", "env=mjx/inverted_double_pendulum"),
            *("arch.total_timesteps=5e5", "arch.num_evaluation=20"),
        ),
    ),
}
TITLES = ("task", "return", "reached at", "env steps", "seconds", "of them compiling")


def run(task: Task, seed: int, directory: Path) -> tuple[float, dict[str, float]]:
    """Train once; return the seconds of the process, and what the run recorded."""
    command = [
        sys.executable,
        "-m",
        "stoix_like",
        "train",
        *task.overrides,
        f"arch.stop_at_return={task.episode_return}",
    ]
    command += [f"arch.seed={seed}", "arch.absolute_metric=false", f"hydra.run.dir={directory}"]
    start = time.monotonic()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - start
    summary = read_run(directory).summary
    assert summary is not None
    return seconds, summary


def row(name: str, task: Task, runs: list[tuple[float, dict[str, float]]]) -> list[str]:
    """Format the runs of a task: medians over seeds, and how many of them reached the return."""
    reached = [one for one in runs if one[1]["eval/episode_return_mean"] >= task.episode_return]
    steps, seconds, compiling = (
        statistics.median(values)
        for values in zip(*((s["env_steps"], wall, s["compile_seconds"]) for wall, s in runs), strict=True)
    )
    cells = (name, f"{task.episode_return:g}", f"{len(reached)} of {len(runs)}", f"{steps:,.0f}")
    return [*cells, f"{seconds:.1f}", f"{compiling:.1f}"]


def main() -> None:
    """Print a row of the table after each task."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--seeds", type=int, default=1, help="runs per task, from seed 0; the median counts")
    args = parser.parse_args()
    print(f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        for name in args.tasks:
            runs = [run(TASKS[name], seed, Path(directory, f"{name}-{seed}")) for seed in range(args.seeds)]
            print(f"| {' | '.join(row(name, TASKS[name], runs))} |", flush=True)


if __name__ == "__main__":
    main()
