"""A run from its configuration, or from its directory, to its result."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from stoix_like.callbacks import Callback
from stoix_like.composition import default_run_dir
from stoix_like.config import Build, RunConfig, parse_config, with_env
from stoix_like.errors import ConfigError, TrainingError, resume_command
from stoix_like.loggers import Logger, MultiLogger, RunInfo, make_logger
from stoix_like.overrides import quoted
from stoix_like.processes import is_agreed
from stoix_like.run.callbacks import Callbacks
from stoix_like.run.evaluations import ABSOLUTE_FACTOR
from stoix_like.run.prepare import Prepared, find_source, mirror_job, prepare
from stoix_like.run.programs.profile import Profile
from stoix_like.run.records import records
from stoix_like.run.records.recording import Progress
from stoix_like.run.records.videos import Videos
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.custom import as_tuple
from stoix_like.run.set_up.resume_checks import check_same_config, check_unchanged, other_conditions, stopped_by
from stoix_like.run.set_up.setup import RunSetup, set_up
from stoix_like.run.set_up.suggestions import tuned_experiment
from stoix_like.run.summary import shown_failures
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.signals import stop_if_received
from stoix_like.storage import checkpoint, remote
from stoix_like.storage.config_file import plain_config, read_config
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.storage.run_files import METRICS, is_address, read_records
from stoix_like.storage.store import normalised
from stoix_like.user_code import name_of


class Launch(NamedTuple):
    """How a run begins."""

    source: warm_start.Source | None = None  # the parameters that a new run starts from
    notes: tuple[str, ...] = ()  # for the user
    resumes: bool = False  # whether the directory holds the run
    restores: bool = False  # whether it has a checkpoint, too


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """The result of a run."""

    # Mean episode return of the last evaluation; of a population, the interquartile mean over members.
    eval_return: float
    run_dir: Path  # the directory of the run
    summary: dict[str, Any]  # the content of `summary.json`
    history: list[dict[str, Any]]  # one record per evaluation, the one at step 0 first; the content of `metrics.jsonl`
    members: list[dict[str, Any]]  # one record per member of the population, ready for a data frame
    step_unit: str = "env steps"  # what the `env_steps` of its records count, `env steps` or `gradient steps`

    def __repr__(self) -> str:
        """Return one line; the records have one entry per evaluation and per member."""
        run = f"{self.summary.get('system')} on {self.summary.get('environment')}"
        counts = f"{len(self.history)} evaluations" + (f", {len(self.members)} members" if self.members[1:] else "")
        steps = f"{self.history[-1]['env_steps']:,} {self.step_unit}"
        return f"Result({run}: eval_return={self.eval_return:.6g} after {steps}, {counts}, run_dir='{self.run_dir}')"


def run_experiment(config: DictConfig, build: Build | None = None) -> float:
    """Train a composed configuration.

    Args:
        config: composed by Hydra; it is not changed.
        build: the system's `build(config, spec)`; by default from `system.module`.

    Returns:
        The mean episode return of the last evaluation, for sweepers to maximise; of a population, the interquartile
        mean over its members.

    Raises:
        ConfigError: the configuration cannot be run.
        TrainingError: a metric or a parameter became non-finite.
    """
    started = time.perf_counter()
    parsed, run_dir = parse_config(config, build), _output_dir()
    if run_dir is None:
        return run(prepare(parsed, default_run_dir(config), started)).eval_return
    if HydraConfig.get().mode == RunMode.MULTIRUN:
        parsed = _resuming_job(parsed, run_dir)
    return run_job(prepare(parsed, run_dir, started))


def run_job(prepared: Prepared) -> float:
    """Train as Hydra's current job."""
    return run(prepared, _tuned(prepared.setup.config)).eval_return


def _output_dir() -> Path | None:
    """Return the directory of Hydra's current job; None outside of jobs."""
    if not HydraConfig.initialized() or OmegaConf.is_missing(HydraConfig.get().runtime, "output_dir"):
        return None
    return Path(HydraConfig.get().runtime.output_dir)


def _resuming_job(config: RunConfig, run_dir: Path) -> RunConfig:
    """Return the configuration of a job of a multirun, which a scheduler may queue again: it then resumes its run."""
    config = mirror_job(config, HydraConfig.get().sweep.subdir)
    if config.arch.resume_from is not None:
        return config
    return config._replace(arch=dataclasses.replace(config.arch, resume_from=str(run_dir)))


def _tuned(config: RunConfig) -> tuple[str, ...]:
    """Return a note that names the experiment for this environment, unless the command line tunes the system itself."""
    hydra = HydraConfig.get()
    if "experiment" in hydra.runtime.choices or any(word.startswith("system.") for word in hydra.overrides.task):
        return ()
    task = config.env.scenario.task_name
    experiment = tuned_experiment(config.system_name, config.env.env_name, task)
    return () if experiment is None else (f"tuned settings for {task}: +experiment={experiment}",)


def run(prepared: Prepared, notes: tuple[str, ...] = ()) -> Result:
    """Train, evaluate and write a run."""
    setup, directory = prepared.setup, prepared.directory
    stop_if_received(setup.processes)
    if prepared.resumes:
        return _resume(setup, directory)
    with directory.own(setup.config.checkpoint) as start_mirror:
        directory.write_config(setup.config.resolved, setup.description)
        try:
            return _train(setup, directory, start_mirror, Launch(prepared.source, notes))
        except ConfigError:
            # Nothing was trained: a corrected run may use the same directory.
            directory.discard()
            raise


def resume(
    run_dir: str | Path,
    overrides: Sequence[str] = (),
    trust: bool = False,
    env: Any = None,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    started: float | None = None,
) -> Result:
    """Resume a run in its directory, or in a copy of its address on an object store; see `stoix_like.resume`."""
    started = time.perf_counter() if started is None else started
    address = normalised(run_dir) if is_address(run_dir) else None
    if address is not None:
        # After a choice of the group, which would replace it.
        groups = [word for word in overrides if re.match(r"\+{0,2}checkpoint=", word)]
        rest = [word for word in overrides if word not in groups]
        overrides = [*groups, f"+checkpoint.mirror={quoted(address)}", *rest]
        run_dir = remote.working_copy(run_dir)
    run_dir = Path(run_dir).expanduser().absolute()
    config = with_env(parse_config(read_config(run_dir, overrides, trust)), env)
    config = config._replace(
        custom_callbacks=as_tuple("callbacks", callbacks), custom_loggers=as_tuple("loggers", loggers)
    )
    if address is not None and getattr(config.arch, "distributed", None) is not None:
        raise ConfigError(
            f"arch.distributed: {address} is copied to one machine, and all processes have to share the directory: use"
            f" stoix-like train … hydra.run.dir=SHARED arch.resume_from=SHARED checkpoint.mirror={address}"
        )
    setup = set_up(config, started)
    directory = RunDirectory(run_dir, setup.processes)
    directory.check_is_run()
    return _resume(setup, directory)


def _resume(setup: RunSetup, directory: RunDirectory) -> Result:
    """Restore the newest readable checkpoint of a run, and spend the rest of the budget."""
    path, processes = directory.path, setup.processes
    with directory.own(setup.config.checkpoint) as start_mirror:
        read = functools.partial(checkpoint.read_host_state, path, processes=processes)
        host_state = checkpoint.newest_readable(path, read, processes)
        complete = _complete_result(setup, directory, host_state)
        if complete is not None:
            start_mirror()
            return complete

        restores = host_state is not None
        if restores and setup.config.logger.console.enabled:
            # The header follows the restored checkpoint, which has the history: an older one if this one is damaged.
            text = f"resuming {path}: compiling takes half a minute to two, or seconds if the programs are cached"
            processes.say(text, sys.stdout)
        source = None if restores else find_source(setup)
        return _train(setup, directory, start_mirror, Launch(source, resumes=True, restores=restores))


def _complete_result(setup: RunSetup, directory: RunDirectory, host_state: dict[str, Any] | None) -> Result | None:
    """Return the result of a run that is complete; check that any other one may continue."""
    summary, say = directory.read_summary(), setup.processes.say
    if host_state is not None:
        check_unchanged(setup, host_state)
        # It spent its budget, or was stopped by a callback under the same conditions.
        is_over = host_state["progress"]["updates"] == setup.plan.num_updates or stopped_by(setup, host_state)
        if not (is_over and summary):
            if not setup.config.checkpoint.keep:
                raise ConfigError(
                    f"checkpoint.keep=0 would leave the checkpoints of {directory.path} behind its results: keep one"
                )
            return None
        say(f"{directory.path} is complete: {_how_to_continue(host_state)}, to continue it", sys.stdout)
        return _result(setup, directory.path, Progress.from_json(host_state["progress"]), summary)
    check_same_config(setup, plain_config(directory.path))
    complete = _result_without_checkpoint(setup, directory.path, summary)
    if complete is not None:
        say(f"{directory.path} is complete, and keeps no checkpoint to continue from (checkpoint.keep=0)", sys.stdout)
    elif summary:
        raise ConfigError(f"{directory.path} is complete, but has no checkpoint to continue from: start a new run")
    else:
        say(f"{directory.path} has no checkpoint yet: the run starts from step 0")
    return complete


def _how_to_continue(host_state: dict[str, Any]) -> str:
    if (name := host_state["progress"].get("stopped_by")) is not None:
        return (
            f"{name} stopped it; change callbacks (in Python, pass one of another class), arch.stop_at_return, or the"
            " budget, arch.total_timesteps=…"
        )
    return "set a larger budget, arch.total_timesteps=…"


def _result_without_checkpoint(setup: RunSetup, run_dir: Path, summary: dict[str, Any]) -> Result | None:
    """Return the result of a run that is complete and was to write no checkpoints; None for other runs."""
    is_complete = summary.get("stopped_by") is not None or summary.get("updates") == setup.plan.num_updates
    if "checkpoint/env_steps" in summary or not is_complete:
        return None
    try:
        history = list(read_records(run_dir / METRICS))
        # The file has null in place of NaN.
        evaluation = {name: value for name, value in history[-1].items() if name.startswith("eval/")}
        history[-1] |= {name: np.asarray(value, np.float64).tolist() for name, value in evaluation.items()}
        failures = {record["member"]: record["failure"] for record in summary.get("population/members", ())}
        return _result(setup, run_dir, Progress(history=history, failures=failures), summary)
    except (LookupError, TypeError, ValueError):
        return None  # The files are damaged.


def _train(setup: RunSetup, directory: RunDirectory, start_mirror: Callable[[], None], launch: Launch) -> Result:
    """Train in a directory that this process owns; the mirror starts after all checks have passed."""
    path, keep, processes = directory.path, setup.config.checkpoint.keep, setup.processes
    writer = checkpoint.Writer(path, keep, processes) if keep else None
    # Of several processes, only the first one logs.
    logger = make_logger(setup.config.logger, path, setup.loggers) if processes.is_first else MultiLogger([])
    videos = Videos(setup, path) if setup.drawn_env is not None and processes.is_first else None
    callbacks = Callbacks(setup)
    profile = Profile(path, processes) if setup.config.arch.profile else None
    try:
        make_loop = functools.partial(TrainingLoop, setup, logger, writer, videos, callbacks, profile, directory)
        loop, info = _launch(launch, setup, directory, logger, make_loop)
        loop.notes += tuple(note for note in info.notes if note not in loop.notes)
        start_mirror()
        callbacks.start(info)
        loop.train()
        summary = loop.summary()
        if writer is not None:
            with loop.clock("checkpoints"):
                summary["checkpoint/env_steps"] = _secure_last_checkpoint(loop, writer)
        summary["timing"] = loop.timing()
        lost = directory.write_summary(summary)
        loop.report_checkpoint()
        # An error of a callback ends the run, and one of a logger does not.
        logger.finish(summary)
        callbacks.end(summary)
    except Exception as error:
        if writer is not None and processes.count > 1 and not is_agreed(error):
            writer.abandon()
        raise
    finally:
        with contextlib.ExitStack() as closing:  # the first part last: it closes the others although one fails
            for part in (writer, logger, profile, videos, setup.eval_env, setup.env):
                if part is not None:
                    closing.callback(part.close)
    if writer is not None and (newest := summary["checkpoint/env_steps"]) != loop.env_steps:
        found = f"no usable checkpoint was kept in {path}, so the run cannot be resumed or evaluated"
        if newest is not None:
            of = f"{newest:,} of {loop.env_steps:,} {setup.config.arch.step_unit}"
            found = f"the newest checkpoint in {path} is of {of}: none after it could be written"
        raise TrainingError("; ".join(filter(None, (lost, f"{found}: {loop.rescue()}"))))
    if lost is not None:
        raise TrainingError(lost if writer is None else f"{lost}: write them with: {resume_command(path)}")
    return _result(setup, path, loop.progress, summary)


def _launch(
    launch: Launch, setup: RunSetup, directory: RunDirectory, logger: MultiLogger, make_loop: Callable[[], TrainingLoop]
) -> tuple[TrainingLoop, RunInfo]:
    """Return the loop of a run, new or restored, and its description for callbacks."""
    if launch.restores:
        loop = make_loop()
        with loop.clock("checkpoints"):
            notes = _restore(loop, directory.path)
        loop.notes += notes  # also those that an earlier process had
        info = _info(setup, directory.path, notes, loop.history)._replace(env_steps=loop.env_steps)
        logger.start(info)
    else:
        source = () if launch.source is None else (launch.source.note,)
        info = _info(setup, directory.path, (*launch.notes, *source))
        logger.start(info)
        loop = make_loop()
        if launch.source is not None:
            loop.warm_start(launch.source)
    if launch.resumes:
        # Replaces what says how the run ended: until here, nothing of it is lost.
        directory.write_config(setup.config.resolved, setup.description, resumed=True)
    return loop, info


def _secure_last_checkpoint(loop: TrainingLoop, writer: checkpoint.Writer) -> int | None:
    """Wait for the last checkpoint, and try once more if it failed.

    Returns environment steps of the newest checkpoint; None if there is none that can be read.
    """
    writer.wait()
    if not writer.usable or writer.newest != loop.env_steps:
        loop.save()
        writer.wait()
    return writer.newest if writer.usable else None


def _restore(loop: TrainingLoop, run_dir: Path) -> tuple[str, ...]:
    """Restore the newest readable checkpoint; return notes for the user."""
    targets, processes = loop.targets(), loop.setup.processes
    read = functools.partial(checkpoint.read, run_dir, targets=targets, processes=processes)
    found = checkpoint.newest_readable(run_dir, read, processes)
    if found is None or "rollout_state" not in found.items:  # packed, or from the Hub
        raise ConfigError(f"{run_dir} holds no state of its environments: it can be evaluated, but not resumed")
    loop.restore(found)
    notes = [f"resuming after {found.step:,} {loop.setup.config.arch.step_unit}"]
    if found.host_state["num_updates"] != loop.setup.plan.num_updates:
        notes.append(_budget_note(loop, found.host_state["num_updates"]))
    notes += other_conditions(loop.setup, found.host_state)
    if loop.missing:
        missing = " and ".join(loop.missing)
        notes.append(f"resumed without {missing}: the results will differ from those of an uninterrupted run")
    return tuple(notes)


def _budget_note(loop: TrainingLoop, before: int) -> str:
    """Describe what another budget changes: schedules are fractions of the budget, so each moves to another value."""
    system, now, updates = loop.setup.config.system, loop.setup.plan.num_updates, loop.progress.updates
    then, after = system.schedules(updates, before), system.schedules(updates, now)
    moved = [f"{name} from {then[name]:.3g} to {after[name]:.3g}" for name in after if after[name] != then[name]]
    moves = f", and move {', '.join(moved)}" if moved else ""
    return f"schedules and evaluations follow the new budget of {now:,} updates (before: {before:,}){moves}"


def _result(setup: RunSetup, run_dir: Path, progress: Progress, summary: dict[str, Any]) -> Result:
    last = progress.history[-1]
    evaluated = {
        name: np.atleast_1d(last.get(f"hyperparams/{name}", values)).tolist()
        for name, values in setup.population.hyperparams.items()
    }
    population = setup.population.with_hyperparams(evaluated)
    members = records.members(population, last, summary, shown_failures(progress.failures, last))
    return Result(records.score(last), run_dir, summary, progress.history, members, setup.config.arch.step_unit)


def _info(setup: RunSetup, run_dir: Path, notes: Sequence[str] = (), history: Sequence[Any] = ()) -> RunInfo:
    config, plan, devices = setup.config, setup.plan, setup.mesh.devices
    actors = f", {len(setup.actor_devices)} actor(s) on {len(set(setup.actor_devices))}" if setup.actor_devices else ""
    mirrored_to = () if config.checkpoint.mirror is None else (f"mirrored to {config.checkpoint.mirror}",)
    opponent = name_of(config.env.eval_opponent)
    against = (f"evaluations play against {opponent}",) if setup.env.num_players == 2 else ()
    hosts = f" of {setup.processes.count} processes" if setup.processes.count > 1 else ""
    return RunInfo(
        run_dir=run_dir,
        system=config.system_name,
        environment=setup.config.environment_name,
        seed=config.arch.seed,
        num_updates=plan.num_updates,
        total_timesteps=plan.warmup_steps + plan.num_updates * plan.steps_per_update,
        num_evaluations=len(plan.evaluations) + 1,
        config=config.resolved,
        notes=(*plan.notes, *notes, *against, *mirrored_to),
        devices=f"{devices.size} × {devices.flat[0].device_kind}{actors}{hosts}",
        num_members=setup.population.num_members,
        num_seeds=len(set(setup.population.seeds)),
        history=history,
        job=_parallel_job(),
        step_unit=config.arch.step_unit,
        kept="last" if config.arch.keeps_last else "best",
        absolute_episodes=ABSOLUTE_FACTOR * config.arch.num_eval_episodes if config.arch.absolute_metric else 0,
    )


def _parallel_job() -> int | None:
    """Return the number of Hydra's current job if its launcher may run others at the same time."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return None
    hydra = HydraConfig.get()
    return None if hydra.runtime.choices["hydra/launcher"] == "basic" else int(hydra.job.num)
