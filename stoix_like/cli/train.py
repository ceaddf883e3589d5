"""Training with Hydra's command line, the entry point shared by system files."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stoix_like.cli.process import STARTED, one_line_errors, program, show
from stoix_like.errors import ConfigError
from stoix_like.interpreter import exempt_from_collection, make_importable, no_collection
from stoix_like.overrides import is_hydras, quoted

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from stoix_like.config import RunConfig
    from stoix_like.run.prepare import Prepared

_SHOWN = ("system", "env", "network", "arch", "logger", "experiment", "search", "observations")
_FEW = 12
# The file of the keys that all choices of a group share.
_COMMON = "_base"
_EXTENDS = re.compile(r"^ *- (\S+?)(?:@_here_)?$", re.MULTILINE)


def launch(system: str | None = None, argv: Sequence[str] | None = None) -> None:
    """Train with Hydra's command line.

    A run that cannot work is refused with one line and exit code 2, before it creates a directory or compiles anything.

    `system`: default system; None: from the configuration.
    """
    with program(owns_process=argv is None):
        train(system, list(sys.argv[1:] if argv is None else argv), owns_process=argv is None)


def train(system: str | None, arguments: Sequence[str], owns_process: bool) -> None:
    """Train within a program that answers errors and signals already; see `launch` and `program`."""
    with no_collection():
        from stoix_like import composition

        args, flags = _parse_hydra(arguments)
        args.overrides = composition.complete_overrides(args.overrides, config_dirs(args))
        if args.multirun:
            args.overrides = composition.resolve_globs(args.overrides, config_dirs(args))
        if system is not None and not any(re.match(r"system=(?!{)", override) for override in args.overrides):
            args.overrides.insert(0, f"system={system}")
        make_importable()
        if args.help:
            show(_help(args))
            return
        is_hydras_own = args.version or args.hydra_help or args.shell_completion or args.experimental_rerun
        alone = None if is_hydras_own else _check(args)
        if owns_process and alone is not None:
            exempt_from_collection()
    if is_hydras_own or args.cfg or args.info:
        _show_hydra([*args.overrides, *flags])
    else:
        _run_hydra(args, alone)


def _parse_hydra(arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse Hydra's arguments, with overrides and flags in any order; return the flags separately."""
    args, unknown = _hydra_parser().parse_known_intermixed_args(list(arguments))
    if unknown:
        _refuse_options(args, unknown, arguments)
    if args.config_name or args.config_path:
        raise ConfigError(
            "--config-name and --config-path would replace the configuration: use --config-dir to add to it"
        )
    if args.config_dir and not Path(args.config_dir).is_dir():
        raise ConfigError(f"--config-dir={args.config_dir} does not exist: use a directory of YAML files")
    if args.multirun and (args.cfg or args.info):
        raise ConfigError("-m runs, --cfg and --info print: leave one of them out")
    if (args.resolve or args.package) and not (args.cfg or args.help):
        raise ConfigError("--resolve and --package change what --cfg prints: add --cfg job, or leave them out")
    flags = list(arguments)
    for override in args.overrides:
        flags.remove(override)
    return args, flags


def _hydra_parser() -> argparse.ArgumentParser:
    """Return a parser of Hydra's options; its own is private."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("overrides", nargs="*")
    for option in ("--version", "--hydra-help"):
        parser.add_argument(option, action="store_true")
    for option in ("-h --help", "-m --multirun", "-r --run", "-sc --shell-completion", "--resolve"):
        parser.add_argument(*option.split(), action="store_true")
    for option in ("-p --package", "-cd --config-dir", "-cn --config-name", "-cp --config-path"):
        parser.add_argument(*option.split())
    parser.add_argument("--experimental-rerun")
    parser.add_argument("-c", "--cfg", choices=["job", "hydra", "all"])
    parser.add_argument("-i", "--info", nargs="?", const="all")
    return parser


def _refuse_options(args: argparse.Namespace, unknown: Sequence[str], arguments: Sequence[str]) -> NoReturn:
    """Answer options that Hydra does not have, `--env-id CartPole-v1 --seed=1`, as the keys that they stand for."""
    keys, overrides, words = [], list(args.overrides), list(arguments)
    while words:
        if (word := words.pop(0)) not in unknown:
            continue
        name, is_set, value = word.lstrip("-").partition("=")
        if not is_set:
            value = "true" if not words or words[0].startswith("-") or "=" in words[0] else words.pop(0)
            overrides = [override for override in overrides if override != value]
        keys.append(f"{name.replace('-', '_')}={value}")
    from stoix_like import composition

    # Of swept values, the first: the other keys do not depend on them.
    first = next(composition.expand_sweep(overrides, config_dirs(args)))
    composition.compose_config([*first, *keys], config_dirs(args))
    raise ConfigError(f"keys have no dashes: write {' '.join(keys)}")


def config_dirs(args: argparse.Namespace) -> list[str]:
    """Return the directories of YAML files that `--config-dir` adds."""
    return [args.config_dir] if args.config_dir else []


def _check(args: argparse.Namespace) -> Prepared | None:
    """Check every run that Hydra is about to start; return the run if it is neither in a multirun nor elsewhere."""
    from hydra.types import RunMode

    from stoix_like import composition
    from stoix_like.config import parse_config

    extra = config_dirs(args)
    swept = list(composition.expand_sweep(args.overrides, extra)) if args.multirun else [args.overrides]
    composed = []
    for chosen in swept:
        with _naming_job(chosen, args.overrides):
            composed.append(composition.compose_config(chosen, extra, return_hydra_config=True))
    if args.cfg or args.info:
        return None
    if composed[0].hydra.mode == RunMode.MULTIRUN and not args.multirun:
        return None  # Hydra's sweeper has its own parameters: each run checks itself.
    runs = []
    for number, (chosen, config) in enumerate(zip(swept, composed, strict=True)):
        with composition.hydra_job(config, number if args.multirun else None), _naming_job(chosen, args.overrides):
            runs.append(parse_config(config))
    if not args.multirun:
        return _prepare_alone(args, composed[0], runs[0])
    alone = [line for line in args.overrides if all(line in chosen for chosen in swept)]
    used, *others = map(_launcher, [composition.compose_config(alone, extra, return_hydra_config=True), *composed])
    if any(other != used for other in others):
        raise ConfigError(
            "hydra.launcher: Hydra reads no launcher from swept values: give hydra/launcher=… and its keys on the"
            " command line"
        )
    sweep_dir = composition.run_dir_of(composed[0], "sweep")
    _check_sweep_dir(sweep_dir, args.overrides)
    # Its name may depend on swept values: all jobs belong to the directory of the first one.
    args.overrides.append(f"hydra.sweep.dir={quoted(str(sweep_dir))}")
    if not _starts_elsewhere(composed[0]):  # There, each run checks its own devices.
        if any(getattr(run.arch, "distributed", None) for run in runs):
            raise ConfigError(
                "arch.distributed: the processes of one run cannot share the jobs of -m: start one run after the other,"
                " train seeds as a population (arch.population.size), or use hydra/launcher=submitit_slurm"
            )
        _check_runs(runs)
    return None


@contextlib.contextmanager
def _naming_job(chosen: Sequence[str], overrides: Sequence[str]) -> Iterator[None]:
    """Let a refusal name the values of a multirun that it is about."""
    try:
        yield
    except ConfigError as error:
        if not (own := [line for line in chosen if line not in overrides and line not in str(error)]):
            raise
        raise ConfigError(f"{' '.join(own)}: {error}") from error


def _prepare_alone(args: argparse.Namespace, config: DictConfig, run: RunConfig) -> Prepared:
    """Prepare a run, and let Hydra write where it is written."""
    from stoix_like.composition import run_dir_of
    from stoix_like.run.prepare import prepare

    prepared = prepare(run, run_dir_of(config), STARTED)
    args.overrides.append(f"hydra.run.dir={quoted(str(prepared.directory.path))}")
    if prepared.resumes or not prepared.setup.processes.is_first:
        # Hydra's output is there already, or the first process writes it.
        args.overrides.append("hydra.output_subdir=null")
    return prepared


def _check_runs(runs: Sequence[RunConfig]) -> None:
    """Set up runs that start in this process, and refuse parameters to start from that cannot be used."""
    from stoix_like.devices import reserve
    from stoix_like.run.prepare import find_source
    from stoix_like.run.set_up.setup import set_up

    reserve(max((run.arch.devices_needed or 1) for run in runs))
    for run in runs:
        setup = set_up(run, STARTED)
        if run.arch.resume_from is None:
            find_source(setup)


def _launcher(config: DictConfig) -> Any:
    """Return the launcher of a composed configuration, without resolving what depends on the time."""
    from omegaconf import OmegaConf

    group = OmegaConf.to_container(config.hydra, resolve=False)
    assert isinstance(group, dict)
    return group["launcher"]


def _starts_elsewhere(config: DictConfig) -> bool:
    """Return whether the launcher of a multirun may use other machines."""
    from omegaconf import OmegaConf

    launcher = OmegaConf.select(config, "hydra.launcher._target_")
    if launcher.endswith(".SlurmLauncher") and shutil.which("srun") is None:
        raise ConfigError(
            "hydra/launcher=submitit_slurm: there is no srun here: start it on a node of the cluster, or use joblib"
        )
    return not launcher.endswith("BasicLauncher")


def _check_sweep_dir(directory: Path, overrides: Sequence[str]) -> None:
    """Refuse a directory that is neither new nor from the same multirun, which continues."""
    from stoix_like.run.set_up import resume_checks
    from stoix_like.storage.run_directory import RunDirectory

    if os.path.isfile(directory / resume_checks.MULTIRUN):  # False where the directory may not be entered
        own = [override for override in overrides if not is_hydras(override)]
        resume_checks.check_same_sweep(directory, own)
        return
    RunDirectory(directory).check_new(key="hydra.sweep.dir")
    if directory.is_dir() and any(directory.iterdir()):
        raise ConfigError(f"hydra.sweep.dir={directory} is not empty: choose another directory")


def _run_hydra(args: argparse.Namespace, alone: Prepared | None) -> None:
    """Start the one run that is set up already, or the runs of a multirun."""
    from hydra.errors import HydraException
    from omegaconf.errors import OmegaConfBaseException

    from stoix_like.run import experiment, jobs

    def task(config: DictConfig) -> float:
        # Hydra would print a traceback.
        with one_line_errors():
            return jobs.train_in_multirun(config) if alone is None else experiment.run_job(alone)

    try:
        if alone is not None:
            jobs.run(args.overrides, config_dirs(args), task)
        else:
            jobs.check(jobs.run_all(args.overrides, config_dirs(args), task))
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


def _show_hydra(arguments: Sequence[str]) -> None:
    """Print what Hydra's own flags ask for."""
    import hydra

    from stoix_like import composition
    from stoix_like.run import jobs

    program, place = sys.argv, str(composition.config_dir())
    sys.argv = [program[0], *arguments]
    composition.register_environments()
    try:
        hydra.main(version_base="1.3", config_path=place, config_name=composition.PRIMARY)(jobs.train)()
    finally:
        sys.argv = program


def _help(args: argparse.Namespace) -> str:
    """Return the choices of each group, and the commented configuration of the chosen system."""
    from stoix_like import composition
    from stoix_like.config import GROUPS, import_build

    extra = config_dirs(args)
    grouped = (*(f"{group}=" for group in GROUPS), *(f"+{group}=" for group in composition.ADDED))
    chosen = [override for override in args.overrides if override.startswith(grouped)]
    first = next(composition.expand_sweep(chosen, extra), chosen)
    composed = composition.compose_config(first, extra, return_hydra_config=True)
    choices = composed.hydra.runtime.choices
    import_build(composed.system.module)
    module = sys.modules[composed.system.module]
    program = f"      (or python -m {module.__name__})" if hasattr(module, "hydra_entry_point") else ""
    # A choice of a group that the configuration does not have is added.
    shown = {group: f"{group}=…" if group in GROUPS else f"+{group}=…" for group in _SHOWN}
    lines = [
        f"{choices.system}: {(module.__doc__ or '').strip()}",
        "",
        f"usage: stoix-like train [-m] [--cfg job] [key=value ...]{program}",
        "",
        *(f"  {option:<15} {_summary(composition.group_choices(group, extra))}" for group, option in shown.items()),
        "",
        "  -m runs every combination of the values in key=1,2   --cfg job prints the configuration and exits",
        "  hydra.run.dir=DIR sets the run directory   --config-dir DIR adds your own YAML files",
        "  --hydra-help shows more options   stoix-like list systems|envs|networks|experiments lists every choice",
        "",
        "Set any key below with group.key=value; add a new key with +group.key=value.",
    ]
    files = {f"{composition.PRIMARY}.yaml": "every run"}
    for group in (*GROUPS, *composition.ADDED):
        files |= {f"{group}/{choices.get(group)}.yaml": f"{group}={choices.get(group)}"}
        files |= {f"{group}/{_COMMON}.yaml": f"every {group}"}
    for name, title in files.items():
        lines += _file(name, title, [composition.config_dir(), *map(Path, extra)])
    return "\n".join(lines)


def _file(name: str, title: str, directories: Sequence[Path]) -> Iterator[str]:
    """Yield the lines of a configuration file, if it exists, and of those whose keys it extends."""
    import yaml

    from stoix_like.envs.ids import rows

    text = next((path.read_text(encoding="utf-8") for path in (one / name for one in directories) if path.exists()), "")
    group = name.partition("/")[0]
    if not text and (row := rows(directories[0] / "env").get(name.removeprefix("env/").removesuffix(".yaml"))):
        text = yaml.safe_dump(row, sort_keys=False).strip()
    if text:
        yield from ("", f"[{title}]", text.strip())
    for base in (found.removeprefix(f"/{group}/") for found in _EXTENDS.findall(text)):
        if base != _COMMON:
            yield from _file(f"{group}/{base}.yaml", f"{group}={base}, which it extends", directories)


def _summary(choices: Sequence[str]) -> str:
    """Name a few choices; of many, count those of each kind, which is the first part of their names."""
    if len(choices) <= _FEW:
        return ", ".join(choices)
    mark = "/" if any("/" in choice for choice in choices) else "_"
    counts = Counter(choice.partition(mark)[0] for choice in choices)
    kinds = [f"{kind} {count}" for kind, count in counts.most_common(_FEW)]
    return f"{len(choices)}: {', '.join(kinds)}{', …' if len(counts) > _FEW else ''}"
