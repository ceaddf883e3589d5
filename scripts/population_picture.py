"""Train a population and plot its final returns over a hyperparameter.

python scripts/population_picture.py --out docs/images/population.png
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import stoix_like


def main() -> None:
    """Train and plot as the command line asks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", default="ppo/ff_ppo", help="as in `stoix-like list systems`")
    parser.add_argument("--env", default="gymnax/acrobot", help="as in `stoix-like list envs`")
    parser.add_argument("--hyperparam", default="actor_lr", help="a float of the system's configuration")
    parser.add_argument(
        "--range", type=float, nargs=2, default=(1e-5, 1e-1), metavar=("LOW", "HIGH"), help="sampled log-uniformly"
    )
    parser.add_argument("--members", type=int, default=32, help="size of the population")
    parser.add_argument("--out", type=Path, default=Path("population.png"), help="the image file")
    parser.add_argument("overrides", nargs="*", help="further hydra overrides")
    args = parser.parse_args()

    low, high = args.range
    overrides = [
        f"env={args.env}",
        f"arch.population.size={args.members}",
        f"arch.population.hyperparams={{{args.hyperparam}: {{log_uniform: [{low}, {high}]}}}}",
        *args.overrides,
    ]
    with tempfile.TemporaryDirectory() as directory:
        result = stoix_like.train(args.system, overrides, run_dir=Path(directory) / "run")
    values = np.asarray([member[args.hyperparam] for member in result.members])
    means = np.asarray([member["eval/episode_return_mean"] for member in result.members])
    deviations = np.asarray([member["eval/episode_return_std"] for member in result.members])

    figure, axis = plt.subplots(figsize=(7, 4), layout="constrained")
    axis.errorbar(values, means, yerr=deviations, fmt="o", markersize=5, elinewidth=0.7, color="tab:blue")
    axis.set_xscale("log")
    axis.set_xlabel(args.hyperparam)
    axis.set_ylabel("final episode return, mean ± deviation")
    steps = f"{args.members} members, {result.summary['env_steps']:,} steps each"
    axis.set_title(f"{args.system} on {result.summary['environment']}\n{steps}", fontsize=10)
    axis.grid(alpha=0.3)
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(args.out, dpi=120)
    print(f"drawn to {args.out}")


if __name__ == "__main__":
    main()
