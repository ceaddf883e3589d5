"""The command line, `stoix-like train|resume|evaluate|…`, and the entry point shared by system files."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from stoix_like import commands as reading
from stoix_like import working_directory
from stoix_like.errors import ConfigError, ProcessLostError, TrainingError
from stoix_like.garbage import no_collection
from stoix_like.overrides import is_hydras
from stoix_like.run.signals import Signals, received

# Hydra and jax are imported where they are used: until then a second passes, in which Ctrl-C is handled already.
if TYPE_CHECKING:
    from omegaconf import DictConfig

    from stoix_like.config import RunConfig
    from stoix_like.run.setup import RunSetup

# Importing the package and Hydra is part of the time of a run.
_STARTED = time.perf_counter()

FAILED = 1
REFUSED = 2
INTERRUPTED = 130
_SHOWN = ("system", "env", "network", "logger", "experiment")
_LISTINGS = ("systems", "envs", "networks", "experiments")
_COMMANDS = ("train", "resume", "evaluate", *reading.NAMES, "list", "compile", "check-env")
_FULL_ERROR = "HYDRA_FULL_ERROR"

_DESCRIPTION = """\
Reinforcement learning in JAX with whole training runs compiled into one program.

  stoix-like train system=ppo/ff_ppo env=gymnax/cartpole arch.seed=1
  stoix-like train -m arch.seed=0,1,2 system.clip_eps=0.1,0.2
  stoix-like train --help
  stoix-like resume RUN_DIR [arch.total_timesteps=1e6]
  stoix-like evaluate RUN_DIR --episodes 100 --render out.gif
  stoix-like runs [DIR]
  stoix-like compare RUN_DIR ...
  stoix-like plot RUN_DIR ... --out curves.png
  stoix-like report RUN_DIR ... --out report.html
  stoix-like plot-policy RUN_DIR --out policy.png
  stoix-like plot-critic RUN_DIR --out critic.png
  stoix-like plot-trajectory RUN_DIR --out trajectory.png
  stoix-like export RUN_DIR --out policy.onnx
  stoix-like push RUN_DIR owner/name
  stoix-like sweep system=ppo/ff_ppo 'sweep.space={actor_lr: {log_uniform: [1e-5, 1e-2]}}' sweep.trials=64
  stoix-like list systems|envs|networks|experiments
  stoix-like compile system=ppo/ff_ppo env=brax/ant
  stoix-like check-env env._target_=my_module.MyEnv
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Run `stoix-like`.

    Args:
        argv: the arguments; by default those of the process, which then answers signals and closed output as a program.
    """
    with _program(owns_process=argv is None):
        known, rest = _parse(argv)
        if known.command == "train":
            _launch(None, rest)
        else:
            known.run(known)


def launch(system: str | None = None, argv: Sequence[str] | None = None) -> None:
    """Train with Hydra's command line.

    A run that cannot work is refused with one line and exit code 2, before it creates a directory or compiles anything.

    Args:
        system: default system; None uses that of the configuration.
        argv: Hydra's arguments; by default those of the process.
    """
    with _program(owns_process=argv is None):
        _launch(system, list(sys.argv[1:] if argv is None else argv))


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    """Parse the arguments; return those of `train`, which Hydra parses, separately."""
    parser = argparse.ArgumentParser(
        "stoix-like", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the installed version and exit")
    commands = parser.add_subparsers(dest="command", metavar="|".join(_COMMANDS), required=True)
    commands.add_parser("train", add_help=False, help="train a system; takes Hydra overrides")
    resuming = commands.add_parser("resume", help="resume a run that was stopped, or extend its budget")
    resuming.add_argument("run_dir", type=Path, help="directory or address of the run")
    resuming.add_argument(
        "overrides", nargs="*", help="key=value for the budget, logging or checkpoints: arch.total_timesteps=1e6"
    )
    resuming.add_argument("--trust", action="store_true", help=reading.TRUST)
    resuming.set_defaults(run=_resume)
    evaluating = commands.add_parser("evaluate", help="evaluate a trained policy on complete episodes")
    _add_evaluation(evaluating)
    evaluating.set_defaults(run=_evaluate)
    reading.add(commands, _print)
    listing = commands.add_parser("list", help="list the available systems, environments, networks or experiments")
    listing.add_argument("what", choices=_LISTINGS)
    listing.add_argument("--all", action="store_true", help="of the environments, also the probes")
    listing.set_defaults(run=_list)
    compiling = commands.add_parser("compile", help="compile the programs of a run into the cache, without training")
    compiling.add_argument("overrides", nargs="*", help="key=value, as for train")
    compiling.add_argument("--config-dir", help="directory of your own YAML files")
    compiling.set_defaults(run=_compile)
    checking = commands.add_parser("check-env", help="check that an environment follows the protocol")
    checking.add_argument(
        "overrides", nargs="*", help="key=value of the environment: env=own env._target_=module.MyEnv"
    )
    checking.add_argument("--steps", type=int, default=300, help="random steps per environment (default: 300)")
    checking.add_argument("--config-dir", help="directory of your own YAML files")
    checking.set_defaults(run=_check_env)
    known, rest = parser.parse_known_args(argv)
    if known.command in ("resume", "compile", "check-env") and not any(word.startswith("-") for word in rest):
        known.overrides += rest  # those after an option
    elif rest and known.command != "train":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    return known, rest


class _Version(argparse.Action):
    """Prints the version; reading it takes an import that other commands do not need."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        import importlib.metadata

        _print(importlib.metadata.version("stoix_like"))
        parser.exit()


def _launch(system: str | None, arguments: Sequence[str]) -> None:
    with no_collection():
        from stoix_like import config as configuration

        args, flags = _parse_hydra(arguments)
        args.overrides = configuration.complete_overrides(args.overrides)
        if system is not None and not any(override.startswith("system=") for override in args.overrides):
            args.overrides.insert(0, f"system={system}")
        working_directory.make_importable()
        if args.help:
            _print(_help(args))
            return
        alone = None if args.hydra_help or args.shell_completion or args.experimental_rerun else _check(args)
    _run_hydra([*args.overrides, *flags], alone)


def _parse_hydra(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse Hydra's arguments, with overrides and flags in any order; return the flags separately."""
    from hydra._internal.utils import get_args_parser

    args = get_args_parser().parse_intermixed_args(list(arguments))
    if args.config_name or args.config_path:
        raise ConfigError(
            "--config-name and --config-path would replace the configuration: use --config-dir to add to it"
        )
    if args.config_dir and not Path(args.config_dir).is_dir():
        raise ConfigError(f"--config-dir={args.config_dir} does not exist: use a directory of YAML files")
    if args.multirun and (args.cfg or args.info):
        raise ConfigError("-m runs, --cfg and --info print: leave one of them out")
    flags = list(arguments)
    for override in args.overrides:
        flags.remove(override)
    return args, flags


@contextlib.contextmanager
def _program(owns_process: bool) -> Iterator[None]:
    """Answer errors, signals and closed output of a command.

    Args:
        owns_process: the process has no other purpose than this command.
    """
    with Signals(owns_process), _one_line_errors():
        if owns_process:
            _ignore_interrupted_callbacks()
            sys.stderr = _LastingStream(sys.stderr)
        try:
            yield
            if owns_process and sys.stdout is not None:
                sys.stdout.flush()
        except BrokenPipeError:
            # The reader has what it wanted, as in `| head`.
            _discard_output()


def _ignore_interrupted_callbacks() -> None:
    """Print no traceback of a callback of the interpreter that a signal interrupted."""
    report = sys.unraisablehook

    def report_others(unraisable: Any) -> None:
        if received() is None:
            report(unraisable)

    sys.unraisablehook = report_others


class _LastingStream:
    """Text stream that drops what it cannot write: a message without a reader stops no training."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def _discard_output() -> None:
    """Send standard output to nowhere; otherwise Python's final flush would report it again."""
    null = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(OSError, ValueError):  # replaced by a stream without a file
        os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _print(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:
        raise
    except OSError as error:
        _discard_output()
        _stop(f"cannot write to standard output: {error.strerror}", FAILED)


@contextlib.contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except ConfigError as error:
        _stop(str(error), REFUSED)
    except ProcessLostError as error:
        print(f"stoix-like: {error}", file=sys.stderr)
        _leave_others()
    except TrainingError as error:
        _stop(str(error), FAILED)
    except KeyboardInterrupt:
        _stop("interrupted", INTERRUPTED)
    except BrokenPipeError:
        raise
    except Exception as error:
        _stop_unexpectedly(error)
        raise


def _stop_unexpectedly(error: Exception) -> None:
    """End the program if an error that no part of it raises on purpose has a known cause."""
    if _has_others():
        traceback.print_exc()
        _leave_others()
    if os.environ.get(_FULL_ERROR):
        return
    if isinstance(error, OSError):
        _discard_output()
        _stop(str(error), FAILED)
    # A signal that interrupts an import or a callback of jax causes other errors.
    number = received()
    if number is not None:
        _stop("interrupted", 128 + number)


def _has_others() -> bool:
    """Return whether this process is one of several that train a run."""
    jax = sys.modules.get("jax")
    return jax is not None and jax.distributed.is_initialized() and jax.process_count() > 1


def _leave_others() -> NoReturn:
    """End this process alone; at a regular exit, jax would wait for the others, which wait for this one."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(FAILED)


def _add_evaluation(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_dir", type=Path, help="directory or address of the run")
    parser.add_argument("--episodes", type=int, default=100, help="complete episodes per member (default: 100)")
    parser.add_argument("--which", default="best", help="best, last, or the environment steps of a kept checkpoint")
    parser.add_argument("--member", default="best", help="member of a population: best, all, or a number")
    parser.add_argument("--seed", type=int, default=0, help="seed of the start states (default: 0)")
    parser.add_argument("--render", type=Path, metavar="OUT.gif|OUT.mp4", help="render one more episode to this file")
    parser.add_argument("--trust", action="store_true", help=reading.TRUST)


def _evaluate(args: argparse.Namespace) -> None:
    from stoix_like.inference import evaluation

    if args.trust:
        working_directory.make_importable()
    record = evaluation.evaluate(
        args.run_dir,
        args.episodes,
        which=args.which,
        member=args.member,
        seed=args.seed,
        render=args.render,
        trust=args.trust,
    )
    _print(evaluation.describe(record))


def _resume(args: argparse.Namespace) -> None:
    from stoix_like.run import experiment

    if args.trust:
        working_directory.make_importable()
    experiment.resume(args.run_dir, args.overrides, args.trust, started=_STARTED)


def _compile(args: argparse.Namespace) -> None:
    from stoix_like.config import compose_config, parse_config
    from stoix_like.run import compile as programs
    from stoix_like.run.setup import set_up

    working_directory.make_importable()
    config = parse_config(compose_config(args.overrides, _config_dirs(args)))
    setup = set_up(config)
    try:
        compiled = programs.compile_run(setup)
    finally:
        setup.env.close()
        setup.eval_env.close()
    cached = "" if config.arch.compile_cache else "; arch.compile_cache=false keeps none of it"
    _print("\n".join([*programs.describe(compiled.program_seconds), f"compiled in {compiled.seconds:.1f} s{cached}"]))


def _check_env(args: argparse.Namespace) -> None:
    from stoix_like.config import compose_config, parse_config
    from stoix_like.envs import check_environment, make_eval
    from stoix_like.envs.factory import make_scenario
    from stoix_like.errors import FaultyEnvironmentError
    from stoix_like.run.devices import set_compile_cache

    if args.steps < 1:
        raise ConfigError(f"--steps={args.steps} must be at least 1")
    working_directory.make_importable()
    config = parse_config(compose_config(args.overrides, _config_dirs(args)))
    set_compile_cache(config.arch.compile_cache)
    env = config.env
    try:
        # On its own first: wrappers would report its faults as their own. Evaluation starts no process per environment.
        checked = check_environment(make_scenario(env, evaluation=True), args.steps)
        check_environment(make_eval(env), args.steps)
    except FaultyEnvironmentError as error:
        _print(str(error))
        sys.exit(FAILED)
    _print(f"{env.env_name}/{env.scenario.name}: {checked}")


def _config_dirs(args: argparse.Namespace) -> list[str]:
    return [args.config_dir] if args.config_dir else []


class _LoneRun(NamedTuple):
    """A run that is neither part of a multirun nor started elsewhere.

    Attributes:
        config: its configuration, with that of Hydra.
        setup: its parts.
    """

    config: DictConfig
    setup: RunSetup


def _check(args: argparse.Namespace) -> _LoneRun | None:
    """Check every run that Hydra is about to start; return the run if it is alone."""
    from hydra.types import RunMode

    from stoix_like import config as configuration
    from stoix_like.run import devices
    from stoix_like.run.setup import set_up

    extra = _config_dirs(args)
    swept = configuration.expand_sweep(args.overrides, extra) if args.multirun else [args.overrides]
    composed = [configuration.compose_config(chosen, extra, return_hydra_config=True) for chosen in swept]
    if args.cfg or args.info:
        return None
    if composed[0].hydra.mode == RunMode.MULTIRUN and not args.multirun:
        return None  # Hydra's sweeper has its own parameters: each run checks itself.
    runs = [configuration.parse_config(config) for config in composed]
    resumed, run_dir = None, Path(composed[0].hydra.run.dir)
    if not args.multirun:
        processes = devices.connect(runs[0].arch)
        run_dir = Path(processes.first(lambda: str(run_dir.absolute() if processes.count > 1 else run_dir)))
        resumed = processes.first(lambda: _check_run_dir(run_dir, runs[0]))
    else:
        _check_sweep_dir(Path(composed[0].hydra.sweep.dir), args.overrides)
        if _starts_elsewhere(composed[0]):
            return None  # Each run checks its own devices.
        if any(getattr(run.arch, "distributed", None) for run in runs):
            raise ConfigError(
                "arch.distributed: the processes of one run cannot share the jobs of -m: start one run after the other,"
                " train seeds as a population (arch.population.size), or use hydra/launcher=submitit_slurm"
            )
    devices.reserve(max((run.arch.devices_needed or 1) for run in runs))
    setups = [set_up(run, _STARTED) for run in runs]
    for setup in setups:
        setup.processes.together(lambda setup=setup: _check_sources(setup))  # type: ignore[misc]
    return None if args.multirun else _place(composed[0], setups[0], run_dir, resumed)


def _place(config: DictConfig, setup: RunSetup, run_dir: Path, resumed: str | None) -> _LoneRun:
    """Set the directory of a run that is resumed, or that spans several processes."""
    if resumed is not None:
        # The run continues in its own directory, which has Hydra's output already.
        config.hydra.run.dir, config.hydra.output_subdir = resumed, None
    elif setup.processes.count > 1:
        # All processes have the directory of the first one, which writes Hydra's output.
        config.hydra.run.dir = str(run_dir)
        if not setup.processes.is_first:
            config.hydra.output_subdir = None
    return _LoneRun(config, setup)


def _starts_elsewhere(config: DictConfig) -> bool:
    """Return whether the launcher of a multirun may use other machines."""
    from omegaconf import OmegaConf

    launcher = OmegaConf.select(config, "hydra.launcher._target_")
    if launcher is None:
        raise ConfigError("hydra.launcher has no _target_: choose one with hydra/launcher=basic")
    return not launcher.endswith("BasicLauncher")


def _check_sources(setup: RunSetup) -> None:
    """Refuse callbacks, loggers and parameters to start from that cannot be used."""
    from stoix_like.run import warm_start
    from stoix_like.run.experiment import check_own

    check_own(setup.config)
    if setup.config.arch.resume_from is None:
        warm_start.find(setup)


def _check_run_dir(directory: Path, config: RunConfig) -> str | None:
    """Return the directory of the run to resume; None where a new run starts, which is then possible."""
    from stoix_like.run.experiment import check_new
    from stoix_like.storage import mirror, run_dir

    resumed = mirror.resumed_dir(config.arch.resume_from, directory, config.checkpoint.mirror)
    if resumed is None:
        check_new(directory, config.checkpoint.mirror)
    else:
        run_dir.check_is_run(resumed)
    return None if resumed is None else str(resumed)


def _check_sweep_dir(directory: Path, overrides: Sequence[str]) -> None:
    """Refuse a directory that is neither new nor that of the same multirun, which continues."""
    from stoix_like.run import resume_checks
    from stoix_like.storage import run_dir

    if (directory / resume_checks.MULTIRUN).is_file():
        own = [override for override in overrides if not is_hydras(override)]
        resume_checks.check_same_sweep(directory, own)
        return
    run_dir.check_new(directory)
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"hydra.sweep.dir={directory} is not empty: choose another directory")


def _run_hydra(arguments: Sequence[str], alone: _LoneRun | None) -> None:
    """Start what Hydra's command line starts, or the one run that is set up already."""
    import hydra
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from stoix_like import config as configuration
    from stoix_like.run import jobs

    chosen = os.environ.get(_FULL_ERROR)

    def task(config: DictConfig) -> float:
        from stoix_like.run import experiment

        _set_environment(_FULL_ERROR, chosen)
        # Hydra would print a traceback.
        with _one_line_errors():
            score = jobs.train(config) if alone is None else experiment.run_under_hydra(alone.setup)
        _set_environment(_FULL_ERROR, "1")
        return score

    program = sys.argv
    sys.argv = [program[0], *arguments]
    main = hydra.main(
        version_base="1.3", config_path=str(configuration.config_dir()), config_name=configuration.PRIMARY
    )
    # Of a file that it cannot write, Hydra would print a traceback, too.
    _set_environment(_FULL_ERROR, "1")
    try:
        if alone is not None:
            jobs.run_composed(alone.config, task)
            return
        with jobs.recorded() as multirun:
            main(task)()
        jobs.check(multirun)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot write the run: {error}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(" ".join(str(error).split())) from error
    except Exception as error:
        if not jobs.is_lost(error):
            raise
        raise jobs.failure(error) from error
    finally:
        _set_environment(_FULL_ERROR, chosen)
        sys.argv = program


def _set_environment(name: str, value: str | None) -> None:
    os.environ.pop(name, None)
    if value is not None:
        os.environ[name] = value


def _stop(message: str, code: int) -> NoReturn:
    print(f"stoix-like: {message}", file=sys.stderr)
    sys.exit(code)


def _help(args: argparse.Namespace) -> str:
    """Return the choices of each group, and the commented configuration of the chosen system."""
    from stoix_like import config as configuration

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


def _list(args: argparse.Namespace) -> None:
    from stoix_like import listings

    _print("\n".join(listings.lines(args.what, args.all)))
