"""The command line, `stoix-like train|resume|evaluate|list`, and the entry point shared by every system file."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.metadata
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from stoix_like import config as configuration
from stoix_like.errors import ConfigError, TrainingError

FAILED = 1
REFUSED = 2
INTERRUPTED = 130
_SHOWN = ("system", "env", "network", "logger", "experiment")
_TRUST = "allow the run's configuration to name code from outside this package"

_DESCRIPTION = """\
Reinforcement learning in JAX with whole training runs compiled into one program.

  stoix-like train system=ppo/ff_ppo env=gymnax/cartpole arch.seed=1
  stoix-like train -m arch.seed=0,1,2 system.clip_eps=0.1,0.2
  stoix-like train --help
  stoix-like resume RUN_DIR [arch.total_timesteps=1e6]
  stoix-like evaluate RUN_DIR --episodes 100 --render out.gif
  stoix-like list systems|envs|networks
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run `stoix-like`."""
    parser = argparse.ArgumentParser(
        "stoix-like", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action="version", version=importlib.metadata.version("stoix_like"))
    commands = parser.add_subparsers(dest="command", metavar="train|resume|evaluate|list", required=True)
    commands.add_parser("train", add_help=False, help="train a system; takes Hydra overrides")
    resuming = commands.add_parser("resume", help="resume a run that was stopped, or extend its budget")
    resuming.add_argument("run_dir", type=Path, help="directory of the run")
    resuming.add_argument(
        "overrides", nargs="*", help="key=value for the budget, logging or checkpoints: arch.total_timesteps=1e6"
    )
    resuming.add_argument("--trust", action="store_true", help=_TRUST)
    evaluating = commands.add_parser("evaluate", help="evaluate a trained policy on complete episodes")
    _add_evaluation(evaluating)
    listing = commands.add_parser("list", help="list the available systems, environments or networks")
    listing.add_argument("what", choices=tuple(_LISTINGS))
    known, rest = parser.parse_known_args(argv)
    if known.command == "train":
        launch(None, rest)
    elif known.command == "resume" and not any(word.startswith("-") for word in rest):
        known.overrides += rest  # those after an option
        with _one_line_errors():
            _resume(known)
    elif rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    elif known.command == "evaluate":
        with _one_line_errors():
            _evaluate(known)
    else:
        print("\n".join(_LISTINGS[known.what]()))


def launch(system: str | None = None, argv: Sequence[str] | None = None) -> None:
    """Train with Hydra's command line.

    A run that cannot work is refused with one line and exit code 2, before it creates a directory or compiles anything.

    Args:
        system: default system; None uses that of the configuration.
        argv: Hydra's arguments; by default those of the process.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    args = get_args_parser().parse_args(arguments)
    flags = list(arguments)
    for override in args.overrides:
        flags.remove(override)
    if system is not None and not any(override.startswith("system=") for override in args.overrides):
        args.overrides.insert(0, f"system={system}")
    _make_working_directory_importable()
    with _one_line_errors():
        if args.help:
            print(_help(args))
            return
        if not (args.hydra_help or args.shell_completion):
            flags += _check(args)
        _run_hydra([*args.overrides, *flags])


def _make_working_directory_importable() -> None:
    """Append the working directory to the import path, for the user's own modules."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        _stop(str(error), REFUSED)
    except TrainingError as error:
        _stop(str(error), FAILED)
    except KeyboardInterrupt:
        _stop("interrupted", INTERRUPTED)


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, help="directory of the run")
    parser.add_argument("--episodes", type=int, default=100, help="complete episodes per member (default: 100)")
    parser.add_argument("--which", default="best", help="best, last, or the environment steps of a kept checkpoint")
    parser.add_argument("--member", default="best", help="member of a population: best, all, or a number")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start states (default: 0)")
    parser.add_argument("--render", type=Path, metavar="OUT.gif", help="render one more episode to this file")
    parser.add_argument("--trust", action="store_true", help=_TRUST)


def _evaluate(args: argparse.Namespace) -> None:
    from stoix_like.inference import evaluation

    if args.trust:
        _make_working_directory_importable()
    evaluation.main(args)


def _resume(args: argparse.Namespace) -> None:
    from stoix_like.run import experiment

    if args.trust:
        _make_working_directory_importable()
    experiment.resume(args.run_dir, args.overrides, args.trust)


def _config_dirs(args: argparse.Namespace) -> list[str]:
    return [args.config_dir] if args.config_dir else []


def _check(args: argparse.Namespace) -> list[str]:
    """Check every run that Hydra is about to start; return further arguments for Hydra."""
    from stoix_like.run import devices
    from stoix_like.run.setup import set_up
    from stoix_like.storage import run_dir

    extra = _config_dirs(args)
    swept = configuration.expand_sweep(args.overrides, extra) if args.multirun else [args.overrides]
    composed = [configuration.compose_config(chosen, extra, return_hydra_config=True) for chosen in swept]
    if args.cfg or args.info:
        return []
    runs = [configuration.parse_config(config) for config in composed]
    if args.multirun:
        _check_sweep_dir(Path(composed[0].hydra.sweep.dir))
        if not composed[0].hydra.launcher._target_.endswith("BasicLauncher"):
            return []  # The launcher may use other machines: each run checks its own devices.
    elif not _resumes(runs[0].arch.resume_from, Path(composed[0].hydra.run.dir)):
        run_dir.check_new(Path(composed[0].hydra.run.dir))
    else:
        run_dir.check_is_run(Path(runs[0].arch.resume_from))
    devices.reserve(max((run.arch.num_devices or 1) for run in runs))
    for run in runs:
        set_up(run)
    if args.multirun or not _resumes(runs[0].arch.resume_from, Path(composed[0].hydra.run.dir)):
        return []
    # The run continues in its own directory, which has Hydra's output already.
    return [f"hydra.run.dir={configuration.quoted(runs[0].arch.resume_from)}", "hydra.output_subdir=null"]


def _resumes(resume_from: str | None, run_dir: Path) -> bool:
    from stoix_like.storage.run_dir import is_to_start

    return resume_from is not None and not is_to_start(resume_from, run_dir)


def _check_sweep_dir(directory: Path) -> None:
    from stoix_like.storage import run_dir

    run_dir.check_new(directory)
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"hydra.sweep.dir={directory} is not empty: choose another directory")


def _run_hydra(arguments: Sequence[str]) -> None:
    program = sys.argv
    sys.argv = [program[0], *arguments]
    main = hydra.main(
        version_base="1.3", config_path=str(configuration.config_dir()), config_name=configuration.PRIMARY
    )
    try:
        main(_task)()
    except OSError as error:
        raise ConfigError(f"cannot write the run: {error}") from error
    finally:
        sys.argv = program


def _task(config: DictConfig) -> float:
    from stoix_like.run.experiment import run_experiment

    # Hydra would print a traceback.
    with _one_line_errors():
        return run_experiment(config)


def _stop(message: str, code: int) -> NoReturn:
    print(f"stoix-like: {message}", file=sys.stderr)
    sys.exit(code)


def _help(args: argparse.Namespace) -> str:
    """Return the choices of each group, and the commented configuration of the chosen system."""
    extra = _config_dirs(args)
    grouped = tuple(f"{group}=" for group in configuration.GROUPS)
    chosen = [override for override in args.overrides if override.startswith(grouped)]
    composed = configuration.compose_config(chosen, extra, return_hydra_config=True)
    choices = composed.hydra.runtime.choices
    module = importlib.import_module(composed.system.module)
    lines = [
        f"{choices.system}: {(module.__doc__ or '').strip()}",
        "",
        f"usage: stoix-like train [-m] [--cfg job] [key=value ...]      (or python -m {module.__name__})",
        "",
        *(f"  {group + '=…':<10} {', '.join(configuration.group_choices(group, extra))}" for group in _SHOWN),
        "",
        "  -m runs every combination of the values in key=1,2   --cfg job prints the configuration and exits",
        "  hydra.run.dir=DIR sets the run directory   --config-dir DIR adds your own YAML files",
        "  --hydra-help shows more options   stoix-like list envs lists every environment",
        "",
        "Set any key below with group.key=value; add a new key with +group.key=value.",
    ]
    for group in configuration.GROUPS:
        # Groups whose choices share their keys define them in `_base`.
        for name, title in ((choices[group], f"{group}={choices[group]}"), ("_base", f"every {group}")):
            for directory in (*map(Path, extra), configuration.config_dir()):
                path = directory / group / f"{name}.yaml"
                if path.exists():
                    lines += ["", f"[{title}]", path.read_text().strip()]
                    break
    return "\n".join(lines)


def _list_envs() -> list[str]:
    from stoix_like.envs.factory import list_scenarios

    lines = [f"env={choice}" for choice in configuration.group_choices("env")]
    for suite, scenarios in list_scenarios().items():
        lines += [f"env={suite} env.scenario.name={scenario}" for scenario in scenarios]
    return lines


_LISTINGS = {
    "systems": lambda: [f"system={choice}" for choice in configuration.group_choices("system")],
    "envs": _list_envs,
    "networks": lambda: [f"network={choice}" for choice in configuration.group_choices("network")],
}
