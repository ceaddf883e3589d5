"""Arguments that several commands take, and what they load."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stoix_like.policies.policy import Policy

TRUST = "allow the run's configuration to name code from outside this package"
RUNS = "run directories, or directories that contain runs, or their addresses"


def add_run(parser: argparse.ArgumentParser) -> None:
    """Add the argument `run_dir`."""
    parser.add_argument("run_dir", type=Path, metavar="RUN", help="directory or address of the run")


def add_runs(parser: argparse.ArgumentParser) -> None:
    """Add the argument `runs`, several of them."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUNS)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Add the runs, and the keys that make algorithms of them."""
    add_runs(parser)
    parser.add_argument(
        "--by",
        action="append",
        default=[],
        metavar="KEY",
        help="key whose value makes an algorithm, such as system.name; may be repeated (default: all but seeds and"
        " environments)",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add the choice of a policy of a run."""
    parser.add_argument("--which", default="best", help="best, last, or the environment steps of a kept checkpoint")
    parser.add_argument("--member", default="best", help="member of a population: best, or a number")
    parser.add_argument("--trust", action="store_true", help=TRUST)


def load_policy(args: argparse.Namespace, greedy: bool | None = None, agent: int | None = None) -> Policy:
    """Load the policy that `add_run` and `add_choice` name."""
    from stoix_like.policies import load

    return load.load_policy(args.run_dir, args.which, args.member, greedy, trust=args.trust, agent=agent)
