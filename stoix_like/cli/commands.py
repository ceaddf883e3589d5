"""Commands of `stoix-like` around runs: `runs`, `compare`, `export`, `eject`, `report`, `sweep`, `fetch` and their kin.

Everything but the parsers is imported when a command runs.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import re
from pathlib import Path
from textwrap import wrap
from typing import Any

from stoix_like.cli.options import RUNS, TRUST, add_choice, add_run, add_selection, load_policy
from stoix_like.errors import MissingExtraError
from stoix_like.interpreter import make_importable


def add(commands: Any) -> None:
    """Add the parsers of the commands, with functions `run` that return what to print."""
    listing = commands.add_parser("runs", help="list runs with their status, return and budget")
    about = f"{RUNS} (default: runs)"
    listing.add_argument("runs", type=Path, nargs="*", default=[Path("runs")], metavar="RUN", help=about)
    listing.set_defaults(run=_runs)

    comparing = commands.add_parser("compare", help="compare algorithms by their returns over seeds and environments")
    add_selection(comparing)
    add_option = comparing.add_argument
    add_option("--score", default="final", help="final (default) return of each seed, or that of its best policy")
    add_option("--test", default="welch", help="welch (default), mann_whitney or permutation")
    add_option("--level", type=float, default=0.05, help="significance level (default: 0.05)")
    about = "for several comparisons: holm (default), bonferroni, fdr_bh or none"
    add_option("--correction", default="holm", help=about)
    add_option("--target", type=float, help="optimal return, for the optimality gap (default: the best)")
    comparing.set_defaults(run=_compare)

    commands.add_parser("plot", add_help=False, help="plot runs, or what a run has learned; see plot --help")

    rating = commands.add_parser("ladder", help="let the kept checkpoints of a self-play run play each other, with Elo")
    _add_ladder(rating)
    rating.set_defaults(run=_ladder)

    reporting = commands.add_parser("report", help="write one page about runs, which needs no network")
    add_selection(reporting)
    reporting.add_argument("--out", type=Path, required=True, help="the file: .html")
    reporting.add_argument("--no-animation", action="store_true", help="do not render an episode of the best policy")
    reporting.set_defaults(run=_report)

    exporting = commands.add_parser("export", help="write a policy to one file that runs without this package")
    add_run(exporting)
    exporting.add_argument("--out", type=Path, required=True, help="the file: .stablehlo, .onnx or .npz")
    exporting.add_argument("--format", help="stablehlo, onnx or npz (default: that of the ending, or stablehlo)")
    about = "act by the mode of the policy, or by sampling (default: as arch.evaluation_greedy of the run)"
    exporting.add_argument("--greedy", action=argparse.BooleanOptionalAction, help=about)
    add_choice(exporting)
    exporting.add_argument("--agent", type=int, help="with network.share=false, the agent whose policy is written")
    exporting.set_defaults(run=_export)

    ejecting = commands.add_parser("eject", help="write an algorithm as one file that imports nothing of this package")
    ejecting.add_argument("source", metavar="SYSTEM|RUN", help="ppo/ff_ppo, or directory or address of a run")
    about = "key=value, as for train; of a run, of existing keys"
    ejecting.add_argument("overrides", nargs="*", default=[], help=about)
    ejecting.add_argument("--out", type=Path, help="the file to write, which must not exist (default: print it)")
    ejecting.set_defaults(run=_eject)

    pushing = commands.add_parser("push", help="upload a trained run and a model card to the Hugging Face Hub")
    add_run(pushing)
    pushing.add_argument("repo", help="the repository: owner/name")
    pushing.add_argument("--private", action="store_true", help="create a private repository")
    pushing.set_defaults(run=_push)

    raw: dict[str, Any] = {"add_help": False, "formatter_class": argparse.RawDescriptionHelpFormatter}
    sweeping = commands.add_parser("sweep", help="optimise hyperparameters by Optuna", **raw)
    sweeping.add_argument("-h", "--help", action=_SweepHelp, nargs=0, help="show this help message and exit")
    about = "sweep.space={actor_lr: {log_uniform: [1e-5, 1e-2]}} sweep.trials=64, and overrides of all trials"
    sweeping.add_argument("overrides", nargs="+", help=about)
    sweeping.add_argument("--config-dir", help="directory of your YAML files")
    sweeping.set_defaults(run=_sweep)

    tuning = commands.add_parser("tune", help="tune a system for an environment within a wall time")
    tuning.add_argument("env", metavar="ENV", help="gymnax/acrobot, or the import path of yours, my_module.MyEnv")
    tuning.add_argument("--system", default="ppo/ff_ppo", help="the system (default: ppo/ff_ppo)")
    about = "wall time, 10min or 2h, or environment steps, 5e7; arch=offline: gradient steps (default: 10min)"
    tuning.add_argument("--budget", default="10min", help=about)
    about = "further ranges, or others: {clip_eps: {uniform: [0.1, 0.3]}, gamma: null} (default: the system's)"
    tuning.add_argument("--space", help=about)
    tuning.add_argument("--slots", type=int, help="settings that train at a time (default: 16, or 8 for short budgets)")
    tuning.add_argument("--out", type=Path, help="the directory (default: sweeps/tune/SYSTEM/ENV)")
    about = "overrides of all trials; what they set is not searched"
    tuning.add_argument("overrides", nargs="*", default=[], help=about)
    tuning.add_argument("--config-dir", help="directory of your YAML files")
    tuning.set_defaults(run=_tune)

    fetching = commands.add_parser("fetch", help="download data that a system needs: the weights of Disco103")
    fetching.add_argument("data", choices=("disco103",), help="disco103: the meta-network of disco_rl/ff_disco103")
    fetching.add_argument("--out", type=Path, help="the file to write (default: in a directory of this user)")
    fetching.add_argument("--url", help="another address of the same file: https://…, or file://…")
    fetching.set_defaults(run=_fetch)


class _SweepHelp(argparse.Action):
    """Prints the help with the settings of a sweep; reading them takes imports that other commands do not need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        with contextlib.suppress(MissingExtraError):  # the rest of the help needs no extra
            from stoix_like.lab.tuning import SweepConfig

            parser.epilog = "\n".join(["settings, each sweep.NAME=VALUE:", *_settings(SweepConfig)])
        parser.print_help()
        parser.exit()


def _settings(schema: Any) -> list[str]:
    """Return the fields of a dataclass, with what its documentation says about each and the default."""
    attributes = inspect.cleandoc(schema.__doc__).partition("Attributes:\n")[2]
    text = dict(re.findall(r"^ {4}(\w+): ((?:.+\n?)(?: {8}.+\n?)*)", attributes, re.MULTILINE))
    listed = []
    for field in dataclasses.fields(schema):
        # Without references to code, and as the command line writes it.
        about = re.sub(r", see `[^`]+`|`", "", " ".join(text[field.name].split())).replace("None:", "null:").rstrip(".")
        default = "" if field.default in (dataclasses.MISSING, None) else f" (default: {field.default})"
        listed += wrap(f"{about}{default}", 100, initial_indent=f"  {field.name:13}", subsequent_indent=" " * 15)
    return listed


def _add_ladder(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    add("--games", type=int, default=100, help="games of each match, half from each seat (default: 100)")
    add("--openings", type=int, default=2, help="random moves at the start of each game (default: 2)")
    about = "play against the N checkpoints before and the first one (default: against all, K (K - 1) / 2 matches)"
    add("--neighbours", type=int, metavar="N", help=about)
    add("--members", action="store_true", help="let the members of a population play each other, not checkpoints")
    add("--which", help="of members: last (default), best, or the environment steps of a checkpoint")
    add("--member", default="best", help="of checkpoints: best (default), or a number")
    add("--seed", type=int, default=0, help="seed of the games (default: 0)")
    add("--trust", action="store_true", help=TRUST)


def _runs(args: argparse.Namespace) -> str:
    from stoix_like.cli.listings import run_lines

    return "\n".join(run_lines(args.runs))


def _compare(args: argparse.Namespace) -> str:
    from stoix_like.lab import analysis

    settings = analysis.Settings(args.score, args.test, args.level, args.correction, args.target)
    return "\n\n".join(map(str, analysis.compare_all(args.runs, settings, args.by)))


def _ladder(args: argparse.Namespace) -> str:
    from stoix_like.lab import ladder

    names = ("openings", "neighbours", "members", "which", "member", "seed", "trust")
    return ladder.describe(ladder.ladder(args.run_dir, args.games, **{name: getattr(args, name) for name in names}))


def _report(args: argparse.Namespace) -> str:
    from stoix_like.lab.analysis import report

    report.write(args.runs, args.out, by=args.by, animation=not args.no_animation)
    return f"written to {args.out}"


def _export(args: argparse.Namespace) -> str:
    from stoix_like.policies.export import choose_format
    from stoix_like.storage.files import check_writable

    # What cannot be written is reported before anything is loaded.
    format = choose_format(args.out, args.format)
    check_writable(args.out, "--out")
    with contextlib.closing(load_policy(args, args.greedy, args.agent)) as policy:
        policy.export(args.out, format)
    return f"{policy}\nwritten to {args.out} and {args.out}.json"


def _eject(args: argparse.Namespace) -> str:
    from stoix_like.lab.eject import eject

    text = eject(args.source, args.overrides, args.out)
    return text.rstrip("\n") if args.out is None else f"written to {args.out}"


def _push(args: argparse.Namespace) -> str:
    from stoix_like.lab import hub

    return f"pushed to {hub.push(args.run_dir, args.repo, private=args.private)}"


def _sweep(args: argparse.Namespace) -> str:
    from stoix_like.lab import tuning

    make_importable()
    return tuning.describe(tuning.from_command_line(_overrides_of(args)))


def _overrides_of(args: argparse.Namespace) -> list[str]:
    """Return the overrides, with the directory of `--config-dir`."""
    from stoix_like.cli.train import config_dirs
    from stoix_like.composition import with_search

    return with_search(args.overrides, config_dirs(args))


def _tune(args: argparse.Namespace) -> str:
    from stoix_like.composition import parse_overrides
    from stoix_like.lab.tuning import describe_tuned, tune
    from stoix_like.lab.tuning.results import plain

    make_importable()
    space = None if args.space is None else plain(parse_overrides([f"space={args.space}"])[0].value())
    env, system = args.env.removeprefix("env="), args.system.removeprefix("system=")
    options = {"space": space, "slots": args.slots, "directory": args.out}
    return describe_tuned(tune(env, system, args.budget, _overrides_of(args), **options))


def _fetch(args: argparse.Namespace) -> str:
    from stoix_like.cli.fetch import fetch
    from stoix_like.weights import URL

    return fetch(args.out, args.url or URL)
