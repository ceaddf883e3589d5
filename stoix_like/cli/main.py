"""The commands of `stoix-like`, and their parsers.

Hydra and jax are imported where they are used: until then a second passes, in which Ctrl-C is handled already.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stoix_like.cli import commands as reading
from stoix_like.cli import data
from stoix_like.cli.options import TRUST, add_run
from stoix_like.cli.process import FAILED, STARTED, program, show
from stoix_like.cli.train import config_dirs, train
from stoix_like.errors import ConfigError, nearest
from stoix_like.interpreter import make_importable

if TYPE_CHECKING:
    from stoix_like.config import RunConfig

# Seconds after which a command says what it waits for.
_PATIENCE = 5.0
# What other libraries call a command.
_USUAL_NAMES = {"enjoy": "evaluate", "fit": "train", "learn": "train", "play": "evaluate", "run": "train"}
_LISTINGS = ("systems", "envs", "networks", "experiments", "heads", "torsos", "cells")

_DESCRIPTION = """\
Reinforcement learning in JAX with whole training runs compiled into one program.

  stoix-like train system=ppo/ff_ppo env=gymnax/cartpole arch.seed=1
  stoix-like train -m arch.seed=0,1,2 system.clip_eps=0.1,0.2
  stoix-like train --help
  stoix-like resume RUN_DIR [arch.total_timesteps=1e6]
  stoix-like evaluate RUN_DIR --episodes 100 --render out.gif
  stoix-like compare RUN_DIR ...
  stoix-like eject ppo/ff_ppo env=gymnax/acrobot
  stoix-like tune gymnax/acrobot --system ppo/ff_ppo --budget 10min
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run `stoix-like`."""
    with program(owns_process=argv is None):
        known, rest = _parse(argv)
        if getattr(known, "trust", False):
            make_importable()
        if known.command == "train":
            train(None, rest, owns_process=argv is None)
        elif known.command == "plot":
            from stoix_like.lab import plotting

            show(plotting.plot(rest))
        elif (text := known.run(known)) is not None:
            show(text)


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments; return those for `train` and `plot`, which have their own parsers, separately."""
    words = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser(
        "stoix-like", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the installed version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("train", add_help=False, help="train a system; takes Hydra overrides")
    resuming = commands.add_parser("resume", help="resume a run that was stopped, or extend its budget")
    add_run(resuming)
    about = "key=value for the budget, logging or checkpoints: arch.total_timesteps=1e6"
    resuming.add_argument("overrides", nargs="*", default=[], help=about)
    resuming.add_argument("--trust", action="store_true", help=TRUST)
    resuming.set_defaults(run=_resume)
    evaluating = commands.add_parser("evaluate", help="evaluate a trained policy on complete episodes")
    _add_evaluation(evaluating)
    evaluating.set_defaults(run=_evaluate)
    reading.add(commands)
    data.add(commands)
    lists = commands.add_parser("list", help="list systems, environments, networks, experiments, or parts of networks")
    lists.add_argument("what", choices=_LISTINGS)
    lists.add_argument("--all", action="store_true", help="of the environments, also the probes")
    lists.set_defaults(run=_list)
    compiling = commands.add_parser("compile", help="compile the programs of a run into the cache, without training")
    compiling.add_argument("overrides", nargs="*", default=[], help="key=value, as for train")
    compiling.add_argument("--config-dir", help="directory of your YAML files")
    kinds = "h200, a100, rtx4090, v5e-4, …, or a file that describes a GPU"
    about = f"report memory and kernels on a device that is not in this machine: {kinds}"
    compiling.add_argument("--for", dest="target", metavar="TARGET", help=about)
    compiling.set_defaults(run=_compile)
    checking = commands.add_parser("check-env", help="check that an environment follows the protocol")
    about = "key=value of the environment: env=own env._target_=module.MyEnv"
    checking.add_argument("overrides", nargs="*", default=[], help=about)
    checking.add_argument("--steps", type=data.count, default=300, help="random steps per environment (default: 300)")
    checking.add_argument("--config-dir", help="directory of your YAML files")
    checking.set_defaults(run=_check_env)
    if words and not words[0].startswith("-") and words[0] not in commands.choices:
        hint = nearest(_USUAL_NAMES.get(words[0], words[0]), commands.choices)
        raise ConfigError(f"'{words[0]}' is not a command: {hint}")
    known, rest = parser.parse_known_args(words)
    if hasattr(known, "overrides") and not any(word.startswith("-") for word in rest):
        known.overrides += rest  # those after an option
    elif rest and known.command not in ("train", "plot"):
        commands.choices[known.command].error(f"unrecognized arguments: {' '.join(rest)}")
    return known, rest


class _Version(argparse.Action):
    """Prints the version; reading it takes an import that other commands do not need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        show(importlib.metadata.version("stoix_like"))
        parser.exit()


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    add_run(parser)
    add = parser.add_argument
    add("overrides", nargs="*", default=[], help="another environment with equal spaces, env=NAME, and keys of it")
    add("--episodes", type=int, default=100, help="complete episodes per member (default: 100)")
    add("--which", default="best", help="best, last, or the environment steps of a kept checkpoint")
    add("--member", default="best", help="member of a population: best, all, or a number")
    add("--seed", type=int, default=0, help="seed of the start states (default: 0)")
    add("--opponent", help="of self-play: random, or the import path of a function (default: env.eval_opponent)")
    physics = "draw parameters of the physics model, of a run with env.randomization"
    evaluations = "(default: as in training's evaluations)"
    add("--randomize", action=argparse.BooleanOptionalAction, help=f"{physics} {evaluations}")
    add("--simulations", type=int, help="of systems that search: simulations per step; 0: only the policy network")
    add("--policy", help="compare on the same episodes with random, or the import path of (observation, key) -> action")
    add("--render", type=Path, metavar="OUT.gif|OUT.mp4", help="render one more episode to this file")
    add("--trust", action="store_true", help=TRUST)


def _evaluate(args: argparse.Namespace) -> str:
    from stoix_like.inference import evaluation

    if args.opponent or args.policy or args.overrides:
        make_importable()
    drawing = "" if args.render is None else f", then drawing one to {args.render}"
    said = f"compiling, then playing {args.episodes:,} episodes{drawing} …"
    waiting = threading.Timer(_PATIENCE, print, (said,), {"file": sys.stderr, "flush": True})
    waiting.daemon = True
    waiting.start()
    try:
        names = ("which", "member", "seed", "render", "opponent", "randomize", "simulations", "policy", "trust")
        options = {name: getattr(args, name) for name in (*names, "overrides")}
        record = evaluation.evaluate(args.run_dir, args.episodes, **options)
    finally:
        waiting.cancel()
    return evaluation.describe(record)


def _resume(args: argparse.Namespace) -> None:
    from stoix_like.run import experiment

    experiment.resume(args.run_dir, args.overrides, args.trust, started=STARTED)


def _compile(args: argparse.Namespace) -> str | None:
    if args.target is not None:
        from stoix_like.lab.aot import plugins, targets

        target = targets.find_target(args.target)
        plugins.prepare(target)
        if note := plugins.stack_note(target):
            print(f"stoix-like: {note}", file=sys.stderr)

        from stoix_like.lab.aot import report

        reported = report.compile_for(_parsed(args), target)
        show("\n".join(reported.lines()))
        reported.check()
        return None
    from stoix_like.run.programs import compile as programs
    from stoix_like.run.set_up.setup import set_up

    config = _parsed(args)
    with contextlib.closing(set_up(config)) as setup:
        compiled = programs.compile_run(setup)
    cached = "" if config.arch.compile_cache else "; arch.compile_cache=false keeps none of it"
    return "\n".join([*programs.describe(compiled.program_seconds), f"compiled in {compiled.seconds:.1f} s{cached}"])


def _parsed(args: argparse.Namespace) -> RunConfig:
    """Compose and convert the configuration of a run that is not started."""
    from stoix_like.composition import compose_config, hydra_job
    from stoix_like.config import parse_config

    make_importable()
    composed = compose_config(args.overrides, config_dirs(args), return_hydra_config=True)
    with hydra_job(composed):
        return parse_config(composed)


def _check_env(args: argparse.Namespace) -> str:
    from stoix_like.envs import check_environment, make_eval
    from stoix_like.envs.factory import check_host_wrappers, make_scenario
    from stoix_like.errors import FaultyEnvironmentError
    from stoix_like.run.host.devices import set_compile_cache

    config = _parsed(args)
    set_compile_cache(config.arch.compile_cache)
    env = config.env
    try:
        # On its own first: wrappers would report its faults as their own. Evaluation starts no process per environment.
        check_environment(make_scenario(env, evaluation=True), args.steps)
        evaluated = make_eval(env)
        check_host_wrappers(evaluated, env)
        checked = check_environment(evaluated, args.steps)
    except FaultyEnvironmentError as error:
        show(str(error))
        sys.exit(FAILED)
    return f"{env.env_name}/{env.scenario.name}: {checked}"


def _list(args: argparse.Namespace) -> str:
    from stoix_like.cli import listings

    return "\n".join(listings.lines(args.what, args.all))
