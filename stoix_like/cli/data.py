"""The commands `collect` and `data`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoix_like.cli.options import TRUST, add_run

if TYPE_CHECKING:
    from stoix_like.data.dataset import DataSet

_BINS = 40


def add(commands: Any) -> None:
    """Add the parsers of the commands, with functions `run` that return what to print."""
    collecting = commands.add_parser("collect", help="record episodes of a trained run as a data set to learn from")
    add_run(collecting)
    collecting.add_argument("--out", type=Path, required=True, help="the file to write: data.npz")
    option = collecting.add_argument
    option("--steps", type=count, default=100_000, help="steps, in whole episodes: at least these (default: 1e5)")
    about = (
        "best (default) or last parameters, as in evaluations; sampled: the last policy; random; mix:0.3: a random"
        " action in 30 %% of the steps, or else the best policy's; or the environment steps of a kept checkpoint"
    )
    option("--policy", default="best", help=about)
    option("--noise", type=float, default=0.0, help="normal noise on continuous actions, in halves of their range")
    option("--replay", action="store_true", help="take the replay buffer of the last checkpoint")
    option("--member", default="best", help="member of a population: best, or a number")
    option("--seed", type=int, default=0, help="seed of the episodes (default: 0)")
    option("--num-envs", type=count, default=32, help="episodes played side by side (default: 32)")
    option("--format", default="npz", help="npz (default), or minari: a directory of Minari")
    option("--trust", action="store_true", help=TRUST)
    collecting.set_defaults(run=_collect)
    looking = commands.add_parser("data", help="print what a data set holds, and draw its episode returns")
    looking.add_argument("file", type=Path, metavar="FILE", help="a file of collect, OGBench or D4RL, or one of Minari")
    looking.add_argument("--plot", type=Path, metavar="FILE.png", help="draw a histogram of the episode returns")
    looking.set_defaults(run=_data)


def count(text: str) -> int:
    """Read a whole number, which may be written `1e5`."""
    number = float(text)
    if not number.is_integer():
        raise ValueError(text)
    return int(number)


def _collect(args: argparse.Namespace) -> str:
    from stoix_like.lab import collect

    names = ("policy", "noise", "replay", "member", "seed", "num_envs", "out", "format", "trust")
    data = collect.collect(args.run_dir, args.steps, **{name: getattr(args, name) for name in names})
    return f"{describe(data)}\nwritten to {args.out}"


def _data(args: argparse.Namespace) -> str:
    from stoix_like.data.files import read_data
    from stoix_like.lab.analysis.figures import check_output

    if args.plot is not None:
        check_output(args.plot, option="--plot")
    data = read_data(args.file, key="file")
    if args.plot is None:
        return describe(data)
    plot_returns(data, args.plot)
    return f"{describe(data)}\nwritten to {args.plot}"


def describe(data: DataSet) -> str:
    """Format what a data set holds for the terminal."""
    from stoix_like.loggers.formats import columns, format_number

    header, lengths = data.header, data.episode_lengths
    arguments = ", ".join(f"{name}={value}" for name, value in header.arguments.items())
    span = f"{lengths.min():,} to {lengths.max():,} steps" if lengths.size else "no step"
    returns = [format_number(value) for value in (header.return_mean, header.return_min, header.return_max)]
    rows = [
        ["environment", f"{header.environment or 'not recorded'}{f' ({arguments})' if arguments else ''}"],
        ["recorded by", f"{header.system} ({header.policy})" if header.policy else header.system or "not recorded"],
        ["steps", f"{header.steps:,} in {header.episodes:,} episodes of {span}"],
        ["ends", f"{data.terminated.sum():,} terminated, {data.truncated.sum():,} truncated"],
        ["return", "mean {}, least {}, largest {}".format(*returns)],
    ]
    for name, array in data.arrays().items():
        if name not in ("terminated", "truncated", "valids"):
            # What stands in the rows of last observations does not count.
            array = array[data.valid] if name in ("actions", "rewards") else array
            low, high = (format_number(float(value)) for value in (array.min(), array.max())) if array.size else "--"
            rows.append([name, f"{array.dtype} {list(array.shape[1:])}, {low} to {high}"])
    return "\n".join([*columns(rows), *header.notes])


def plot_returns(data: DataSet, path: Path) -> None:
    """Draw a histogram of the returns of the episodes."""
    import numpy as np
    from matplotlib.figure import Figure

    from stoix_like.lab.analysis.figures import save

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.add_subplot()
    axes.hist(data.episode_returns[np.isfinite(data.episode_returns)], _BINS)
    axes.set(xlabel="episode return", ylabel="episodes", title=data.header.environment)
    save(figure, path)
