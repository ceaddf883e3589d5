"""Compare the samplers of sweeps at equal environment steps, by the returns of what they find on fresh seeds.

    python scripts/compare_samplers.py --tasks gymnax/acrobot gymnax/pendulum --steps 1e5 --out sweeps/samplers

Each repetition is a sweep with seeds of its own. A sweep that is complete is read, and one that was stopped continues.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from scipy import stats

import stoix_like
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.lab.analysis.statistics import aggregates
from stoix_like.lab.tuning.default_space import default_space
from stoix_like.run.set_up.setup import set_up

# Repetitions have different seeds throughout: of the sampler, of the trials and of the confirmation.
SEEDS_APART = 10_000


def find(task: str, sampler: str, repetition: int, args: argparse.Namespace) -> float:
    """Run a sweep, and return the interquartile mean of the best setting's returns on fresh seeds."""
    overrides = [f"env={task}", f"arch.total_timesteps={args.steps}", "arch.absolute_metric=false", *args.overrides]
    space = default_space(set_up(parse_config(compose_config([f"system={args.system}", *overrides]))))
    result = stoix_like.sweep(
        args.system,
        [*overrides, f"arch.seed={repetition * SEEDS_APART}", "logger.console.enabled=false"],
        space,
        trials=args.trials,
        parallel=args.parallel,
        sampler=sampler,
        seed=repetition,
        fresh_seeds=args.fresh_seeds,
        dir=str(args.out / task.replace("/", "-") / f"{sampler}-{repetition}"),
    )
    return iqm(result.fresh_returns)[0]


def iqm(values: list[float]) -> tuple[float, float, float]:
    """Return the interquartile mean with the ends of its 95 % bootstrap interval."""
    found = aggregates(np.asarray(values, np.float64)[:, None], target=0.0)["iqm"]
    return found.estimate, found.low, found.high


def main() -> None:
    """Print a row per task and sampler."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", required=True)
    parser.add_argument("--samplers", nargs="+", default=["random", "tpe"])
    parser.add_argument("--system", default="ppo/ff_ppo")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--trials", type=int, default=48, help="budget of each sweep, in whole trials")
    parser.add_argument("--parallel", type=int, default=16)
    parser.add_argument("--steps", default="1e5", help="environment steps of a trial")
    parser.add_argument("--fresh-seeds", type=int, default=16)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("overrides", nargs="*", help="overrides of all trials")
    args = parser.parse_args()
    print(
        "| task | sampler | fresh return | by repetition | p against the first sampler (Welch) |\n|---|---|---|---|---|"
    )
    for task in args.tasks:
        first: list[float] = []
        for sampler in args.samplers:
            values = [find(task, sampler, repetition, args) for repetition in range(args.repetitions)]
            first = first or values
            estimate, low, high = iqm(values)
            p = "" if values is first else f"{stats.ttest_ind(values, first, equal_var=False).pvalue:.2g}"
            each = ", ".join(f"{value:.4g}" for value in values)
            print(f"| {task} | {sampler} | {estimate:.4g} [{low:.4g}, {high:.4g}] | {each} | {p} |", flush=True)


if __name__ == "__main__":
    main()
