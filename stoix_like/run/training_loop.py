"""The host's loop around the compiled programs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import IntervalMetrics, LearnerState
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import CallbackError, HostEnvironmentError, TrainingError
from stoix_like.interpreter import no_collection
from stoix_like.loggers import MultiLogger
from stoix_like.run import blocks, records, warm_start
from stoix_like.run.callbacks import Callbacks
from stoix_like.run.clock import Clock
from stoix_like.run.compile import compile_run, traced_hyperparams
from stoix_like.run.pbt import Evolution
from stoix_like.run.population import Population
from stoix_like.run.profile import Profile
from stoix_like.run.saved_state import Best, to_items, to_state
from stoix_like.run.setup import RunSetup
from stoix_like.run.videos import Videos
from stoix_like.signals import Signals, stop_if_received
from stoix_like.storage.checkpoint import Checkpoint, Writer
from stoix_like.utils.replay import end_episodes
from stoix_like.versions import versions

ABSOLUTE_FACTOR = 10
# Signals are handled between two calls of the program.
SECONDS_PER_CALL = 1.0
LOGGING_MEANWHILE = "logging_while_training"
ENVIRONMENT = "training_environment"
LEARNING = "training_learning"
_REGARDLESS = "arch.on_nan=ignore continues regardless"


@dataclasses.dataclass
class Progress:
    """The progress of a run, in JSON values.

    Attributes:
        updates: number of updates so far.
        interval_start: updates before the current interval.
        history: one record per evaluation.
        failures: by member, what became non-finite and in which update.
        train_seconds: time spent in updates.
        interval_seconds: time spent in updates since the last evaluation.
        wall_seconds: time since the run started, without the pause between a stop and its resumption.
        stopped_by: name of the callback that stopped the run before its budget was spent; None otherwise.
        hyperparams: by name, the hyperparameters of the members, where population-based training has changed them.
        block_start: with `logger.every_updates`, sums of the interval before the current block of updates.
        seconds: time spent, by phase.
        trained: metrics of an interval that is complete and not yet evaluated; None otherwise.
    """

    updates: int = 0
    interval_start: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    train_seconds: float = 0.0
    interval_seconds: float = 0.0
    wall_seconds: float = 0.0
    stopped_by: str | None = None
    hyperparams: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    block_start: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    trained: dict[str, Any] | None = None

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Progress:
        """Return the progress that a checkpoint holds in JSON, where keys are strings."""
        failures = {int(member): failure for member, failure in values["failures"].items()}
        return Progress(**{**values, "failures": failures})


class TrainingLoop:
    """Intervals of updates, with an evaluation after each.

    Attributes:
        setup: the run.
        progress: its progress.
        writer: writer of checkpoints, or None.
        missing: what it was restored without, and so differs from an uninterrupted run.
        clock: measures where the time goes.

    Args:
        setup: the run.
        logger: receives each record.
        writer: writer of checkpoints; None writes none.
        videos: recorder of videos; None records none.
        callbacks: called at evaluations and checkpoints; None for none.
        profile: where the time of an update goes; None measures nothing.
    """

    def __init__(
        self,
        setup: RunSetup,
        logger: MultiLogger,
        writer: Writer | None = None,
        videos: Videos | None = None,
        callbacks: Callbacks | None = None,
        profile: Profile | None = None,
    ) -> None:
        self.setup = setup
        # A lone member's hyperparameters are in no record of an evaluation.
        lone = setup.population.hyperparams if setup.population.num_members == 1 else {}
        self.progress = Progress(hyperparams={name: list(values) for name, values in lone.items()})
        self.writer = writer
        self.missing: tuple[str, ...] = ()
        self._logger = logger
        self._videos = videos
        self._callbacks = callbacks
        self._profile = profile
        self._started = time.perf_counter()
        self.clock = Clock()
        self.clock.add({"startup": self._started - setup.started})
        self._num_logged = 0
        # Records of blocks of updates that are not logged yet; they come before the next evaluation.
        self._blocks: list[dict[str, Any]] = []
        # Updates per call of the program, adapted so that a call takes about `SECONDS_PER_CALL`.
        self._updates_per_call = 1
        self._best: Best | None = None
        self._absolute: dict[str, Any] = {}
        self._state: LearnerState | None = None
        self._set_population(setup.population)
        with self.clock("compilation"), no_collection():
            self._compiled = compile_run(setup)
            self._evolution = self._make_evolution()
        stop_if_received(setup.processes)

    def _check(self, env: VectorEnvironment) -> None:
        """Raise the failure of an environment on the host, of any process."""
        if env.on_host:
            self.setup.processes.together(env.check)

    def _make_evolution(self) -> Evolution | None:
        setup = self.setup
        if not setup.evolves:
            return None
        return Evolution(setup.config, setup.population, self._compiled.state, setup.processes)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per evaluation."""
        return self.progress.history

    @property
    def state(self) -> LearnerState:
        """The learner state after the last update."""
        if self._state is None:
            with self.clock("initialisation"):
                state = self._compiled.init(self._hyperparams, self._compiled.keys.agent, self._compiled.keys.shards)
                jax.block_until_ready(state)
                self._check(self.setup.env)
            self._state = state
        return self._state

    @property
    def env_steps(self) -> int:
        """Environment steps of each member so far, warm-up included."""
        plan = self.setup.plan
        return plan.warmup_steps + self.progress.updates * plan.steps_per_update

    @property
    def _alone(self) -> bool:
        return self.setup.population.num_members == 1

    def targets(self) -> dict[str, Any]:
        """Return the shapes and layouts of the items of a checkpoint."""
        state = self._compiled.state
        return to_items(state, state.shared, self._saves_local)

    @property
    def _saves_local(self) -> bool:
        """Whether checkpoints hold the local state; other than a replay buffer, it is small."""
        return self.setup.config.checkpoint.replay or not self.setup.config.system.has_replay

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint.

        Args:
            checkpoint: has the items of `targets`; without `local`, a new warm-up fills the replay buffer and restarts
                the episodes. Environments on the host always start new episodes.
        """
        items, host_state = checkpoint.items, checkpoint.host_state
        local = items.get("local", self._compiled.state.shards.local)
        has_replay = "local" in items or not jax.tree.leaves(local)
        missing = {
            "its replay buffer": not has_replay,
            "the episodes of its environments, which start anew": self.setup.env.on_host,
        }
        self.missing = tuple(name for name, is_missing in missing.items() if is_missing)
        rest = items["rollout_state"]
        if self.missing:
            # The episodes, too, so that the last step of the warm-up is followed by its own next step.
            local = end_episodes(local) if has_replay else self.state.shards.local
            rest = {**rest, "rollout_state": self.state.shards.rollout_state}
        self._state = to_state(items["shared"], rest, local)
        self.progress = Progress.from_json({**host_state["progress"], "stopped_by": None})
        self._set_population(self._population.with_hyperparams(self.progress.hyperparams))
        self._num_logged = len(self.history)
        self._started -= self.progress.wall_seconds
        self.clock.add(self.progress.seconds)
        if self._callbacks:
            lost = self._callbacks.restore(host_state.get("callbacks", ()), checkpoint.step)
            self.missing += tuple(f"the callback {name}" for name in lost)
        if "best" in items:
            best = Best.from_checkpoint(items["best"], host_state["best"])
            self._best = best._replace(hyperparams=self._population.arrays() | dict(best.hyperparams))
        if self.history:
            # A run that ended in between, or that goes on after all, has yet to make its last selection.
            self._evolve()

    def warm_start(self, source: warm_start.Source) -> None:
        """Start from the parameters and statistics of another run.

        Args:
            source: the checkpoint, from `warm_start.find`.

        Raises:
            ConfigError: the checkpoint is damaged.
        """
        arrays = self.setup.processes.together(source.read)
        self._state = self.state._replace(shared=warm_start.replace(self.state.shared, arrays))

    def train(self) -> None:
        """Spend the rest of the budget, then evaluate the best parameters once more.

        Raises:
            TrainingError: a metric or a parameter became non-finite.
            HostEnvironmentError: an environment on the host failed, and a checkpoint has been written.
            KeyboardInterrupt: SIGINT was received, and a checkpoint has been written.
            SystemExit: SIGTERM was received, and a checkpoint has been written.
        """
        updates_left = self.setup.plan.num_updates - self.progress.updates
        with Signals() as signals, self._saved_on_failure(), self._compiled.running(updates_left):
            if not self.history:
                self._record({"steps_per_second": None, **self._evaluate()})
                if self.progress.stopped_by is not None:
                    self.save()
            self._measure_rollouts()
            start = self.progress.interval_start
            for target in self.setup.plan.evaluations:
                if target > start and target >= self.progress.updates and not self.progress.stopped_by:
                    # An environment may have failed in the evaluation, after the interval.
                    trained = self.progress.trained or self._train_until(target, signals)
                    self._record({**trained, **self._evaluate()})
                    self._record_video()
                    self._evolve()
                    if len(self.history) == 2:
                        self._log()  # The first record of training does not wait for the first checkpoint.
                    self._save_regularly()
                    self._stop_if_asked(signals)
            self._log()
            if self.setup.config.arch.absolute_metric and self._best is not None:
                self._absolute = self._evaluate_best(self._best, signals)
            self._stop_if_asked(signals)
            if self._videos is not None:
                self._videos.log(self._logger, wait=True)

    def advance(self, num_updates: int) -> dict[str, Any]:
        """Train without evaluating, logging or saving.

        Args:
            num_updates: at least one.

        Returns:
            The metrics of the interval.
        """
        metrics = self._train_until(self.progress.updates + num_updates, Signals())
        self._end_interval()
        return metrics

    def summary(self) -> dict[str, Any]:
        """Return the results of the run, for `summary.json`."""
        config, devices = self.setup.config, self.setup.mesh.devices
        trained_steps = self.progress.updates * self.setup.plan.steps_per_update * self.setup.population.num_members
        return {
            "system": config.system_name,
            "environment": self.setup.config.environment_name,
            "seed": config.arch.seed,
            "env_steps": self.env_steps,
            "updates": self.progress.updates,
            **{name: value for name, value in self.history[-1].items() if name.startswith(("eval/", "population/"))},
            **self._absolute,
            **({} if self._alone else self._population_summary()),
            "stopped_by": self.progress.stopped_by,
            **({} if self._profile is None else self._profile.summary()),
            "compile_seconds": self._compiled.seconds,
            "programs": self._compiled.program_seconds,
            "steps_per_second": trained_steps / self.progress.train_seconds if trained_steps else None,
            "wall_seconds": self._elapsed(),
            "notes": list(self.setup.plan.notes),
            "versions": versions(),
            "devices": [f"{device.platform}:{device.device_kind}" for device in devices.flat],
        }

    def timing(self) -> dict[str, float]:
        """Return where the time of the run went, for `summary.json`.

        Returns:
            Seconds by phase; `total` is their sum, apart from `LOGGING_MEANWHILE`, `ENVIRONMENT` and `LEARNING`, which
            are parts of `training`. The last two are estimates, for a run with a profile alone.
        """
        seconds = self.clock.read()
        total = seconds["startup"] + self._elapsed()
        counted = sum(value for phase, value in seconds.items() if phase != LOGGING_MEANWHILE)
        if self._profile is not None and self._profile.rollout_seconds is not None:
            # Without the sharing of the devices that one program allows.
            training = seconds.get("training", 0.0)
            environment = min(self._profile.rollout_seconds * self.progress.updates, training)
            seconds |= {ENVIRONMENT: environment, LEARNING: training - environment}
        return {**seconds, "other": total - counted, "total": total}

    def _population_summary(self) -> dict[str, Any]:
        population = self._population
        members = records.members(population, self.history[-1], self._absolute, self.progress.failures)
        points = records.points(population, members) if self._evolution is None else []
        return {
            "population/size": len(members),
            "population/varied": list(population.hyperparams),
            "population/best": members[self.history[-1]["population/best_member"]],
            **({"population/best_point": records.best_point(points), "population/points": points} if points else {}),
            "population/members": members,
        }

    def _train_until(self, target: int, signals: Signals) -> dict[str, Any]:
        """Train up to `target` updates, in calls of about `SECONDS_PER_CALL`, which do not change the results."""
        progress, plan = self.progress, self.setup.plan
        while True:
            is_traced = self._start_trace()
            most = 1 if self._profile is not None and self._profile.pending else self._updates_per_call
            num_updates = self._fit(min(most, target - progress.updates), target)
            new_interval = np.bool_(progress.updates == progress.interval_start)
            before = self._copy_without_replay() if self.setup.env.on_host else None
            state = self.state
            start = time.perf_counter()
            try:
                with self.clock("training"):
                    self._state, interval = self._compiled.train(
                        state, self._hyperparams, np.int32(num_updates), new_interval
                    )
                    # The host logs the last interval while the device computes this one.
                    with self.clock.beside(LOGGING_MEANWHILE):
                        self._pass_on_records()
                    interval = self.setup.processes.fetch(interval)
                    self._check(self.setup.env)
            except HostEnvironmentError:
                # What was computed since the failure is meaningless, and the replay buffer holds steps of that time.
                self._state = before
                raise
            seconds = self.setup.processes.largest(time.perf_counter() - start)
            if is_traced:
                self._stop_trace()
            self._take_blocks(interval, num_updates, target)
            progress.updates += num_updates
            progress.train_seconds += seconds
            progress.interval_seconds += seconds
            self._check_health(interval)
            if progress.updates == target:
                break
            self._updates_per_call = max(1, min(8 * num_updates, int(num_updates * SECONDS_PER_CALL / seconds)))
            self._stop_if_asked(signals)
            self.report_checkpoint()
        steps = (target - progress.interval_start) * plan.steps_per_update * self.setup.population.num_members
        rate = steps / progress.interval_seconds
        trained = {"steps_per_second": rate, **records.training(interval), **self._compiled.host_metrics()}
        progress.trained = trained
        return trained

    def _measure_rollouts(self) -> None:
        """Measure how long rollouts alone take, from the current state, unless nothing is left to train."""
        rollouts = self._compiled.rollouts
        is_over = bool(self.progress.stopped_by) or self.progress.updates == self.setup.plan.num_updates
        if self._profile is not None and rollouts is not None and not is_over:
            with self.clock("profile"):
                self._profile.measure_rollouts(lambda number: rollouts(self.state, self._hyperparams, np.int32(number)))

    def _start_trace(self) -> bool:
        """Return whether the next call of the program is traced."""
        if self._profile is None:
            return False
        with self.clock("profile"):
            return self._profile.start(is_last=self.progress.updates + 1 == self.setup.plan.num_updates)

    def _stop_trace(self) -> None:
        """Write the trace, with an evaluation of which nothing else is used."""
        assert self._profile is not None
        with self.clock("profile"):
            self._play(self.state.shared, self._hyperparams, self.progress.updates)
            self._profile.stop()

    def _fit(self, num_updates: int, target: int) -> int:
        """Shorten a call to whole blocks of `logger.every_updates` updates."""
        every = self.setup.config.logger.every_updates
        if every is None:
            return num_updates
        call = self._call(num_updates, target)
        return blocks.fit(call, every, blocks.max_blocks(self.setup.population.num_members)).num_updates

    def _take_blocks(self, interval: IntervalMetrics, num_updates: int, target: int) -> None:
        """Record the blocks of updates that a call completed."""
        every, progress, plan = self.setup.config.logger.every_updates, self.progress, self.setup.plan
        if every is None:
            return
        call = self._call(num_updates, target)
        ends, found, after = blocks.split(interval.blocks, call, every, progress.block_start)
        progress.block_start = dict(after)
        for done, metrics in zip(ends, found, strict=True):
            updates = progress.interval_start + done
            env_steps = plan.warmup_steps + updates * plan.steps_per_update
            self._blocks.append({"env_steps": env_steps, "updates": updates, **metrics})

    def _call(self, num_updates: int, target: int) -> blocks.Call:
        start = self.progress.interval_start
        return blocks.Call(self.progress.updates - start, num_updates, target - start)

    def _end_interval(self) -> None:
        self.progress.interval_start, self.progress.interval_seconds = self.progress.updates, 0.0
        self.progress.trained = None
        self.progress.block_start = {}

    def _copy_without_replay(self) -> LearnerState:
        """Copy what the next call donates, but for a replay buffer, of which there might not be room for two."""
        shards = self.state.shards._replace(local=())
        return jax.tree.map(jnp.copy, self.state._replace(shards=shards))

    def _check_health(self, interval: IntervalMetrics) -> None:
        """Report members that diverged in the current interval; stop if none is left."""
        start = self.progress.interval_start
        if self.setup.config.arch.on_nan == "ignore":
            return
        for member, healthy_updates in enumerate(np.atleast_1d(interval.healthy_updates)):
            if start + healthy_updates == self.progress.updates or member in self.progress.failures:
                continue
            bad = [name for name, flags in interval.bad_metrics.items() if np.atleast_1d(flags)[member]]
            what = f"train/{bad[0]} became non-finite" if bad else "a parameter became non-finite"
            failure = f"{what} in update {start + int(healthy_updates) + 1}"
            if self._alone:
                self._log()
                raise TrainingError(f"training diverged: {failure}; {self._last_good()}; {_REGARDLESS}")
            self.progress.failures[member] = failure
            self.setup.processes.say(f"member {member} diverged and is frozen: {failure}")
        if len(self.progress.failures) == self.setup.population.num_members:
            self._log()
            raise TrainingError(
                f"training diverged: all {len(self.progress.failures)} members; {self._last_good()}; {_REGARDLESS}"
            )

    def _last_good(self) -> str:
        where = "no checkpoint had been written"
        if self.writer is not None:
            self.writer.wait()
            if self.writer.newest is not None:
                where = f"the last good checkpoint is {self.writer.directory / str(self.writer.newest)}"
        return where

    def _save_regularly(self) -> None:
        """Save after every `checkpoint.every_evals` evaluations, and after the last one."""
        every = self.setup.config.checkpoint.every_evals
        complete = self.progress.updates == self.setup.plan.num_updates or self.progress.stopped_by is not None
        if complete or (every is not None and (len(self.history) - 1) % every == 0):
            self.save()

    def save(self) -> None:
        """Start to write a checkpoint of the current state."""
        if self.writer is None:
            return
        # A checkpoint holds the records of evaluations, and no others.
        with self.clock("logging"):
            self._pass_on_blocks()
        self.progress.wall_seconds, self.progress.seconds = self._elapsed(), self.clock.read()
        items = to_items(self.state, None, self._saves_local)
        host_state: dict[str, Any] = {
            "config": self.setup.config.resolved,
            "num_shards": self.setup.plan.num_shards,
            "num_updates": self.setup.plan.num_updates,
            "versions": versions(),
            "progress": dataclasses.asdict(self.progress),
        }
        if self._callbacks:
            host_state["callbacks"] = self._callbacks.state()
        if self._best is not None:
            items["best"] = self._best.shared
            host_state["best"] = self._best.host_values()
        with self.clock("checkpoints"):
            self.writer.save(self.env_steps, items, host_state)

    def report_checkpoint(self) -> None:
        """Tell the callbacks if a checkpoint has become complete."""
        if self._callbacks and self.writer is not None:
            with self.clock("callbacks"):
                self._callbacks.saved(self.writer.newest, self.writer.run_dir)

    def _stop_if_asked(self, signals: Signals) -> None:
        """Save and exit if a signal was received."""
        if signals.agree(self.setup.processes) is None:
            return
        message = f"stopped after {self.env_steps:,} env steps, {self._save_now()}"
        signals.leave(message if self.setup.processes.is_first else None)

    @contextlib.contextmanager
    def _saved_on_failure(self) -> Iterator[None]:
        """Save before an error of an environment on the host, or of a callback, ends the run."""
        try:
            yield
        except (HostEnvironmentError, CallbackError) as error:
            saved = "nothing was saved" if self._state is None else self._save_now()
            raise type(error)(f"{error}; stopped after {self.env_steps:,} env steps, {saved}") from error

    def _save_now(self) -> str:
        """Log and save, unless there is a checkpoint of this step; return what to tell the user."""
        self._log()
        if self.writer is None:
            return "nothing was saved"
        self.writer.wait()
        if self.writer.newest != self.env_steps:
            self.save()
            self.writer.wait()
        if self.writer.newest is None:
            return "nothing was saved"
        since = "" if self.writer.newest == self.env_steps else f" up to {self.writer.newest:,}"
        return f"saved{since}; continue with: stoix-like resume {self.writer.run_dir}"

    def _evaluate(self) -> dict[str, Any]:
        arch = self.setup.config.arch
        episodes = self._play(self.state.shared, self._hyperparams, self.progress.updates)
        record = records.evaluation("eval", episodes, arch.num_eval_episodes)
        scores = np.asarray(record["eval/episode_return_mean"])
        if arch.absolute_metric or self.setup.config.checkpoint.keep_best:
            self._keep_best(scores)
        return record if self._alone else {**record, **self._aggregate("eval", scores)}

    def _keep_best(self, scores: np.ndarray) -> None:
        """Copy the parameters of the members that improved, for training donates its state."""
        steps = np.full(scores.shape, self.env_steps)
        hyperparams = self._population.arrays()
        best = self._best or Best(self.state.shared, np.full(scores.shape, -np.inf), steps, hyperparams)
        better = scores > best.episode_return
        if self._best is not None and not better.any():
            return
        self._best = Best(
            self._compiled.select(self.state.shared, best.shared, better),
            np.where(better, scores, best.episode_return),
            np.where(better, steps, best.env_steps),
            {name: np.where(better, values, best.hyperparams[name]) for name, values in hyperparams.items()},
        )

    def _evaluate_best(self, best: Best, signals: Signals) -> dict[str, Any]:
        count = self.setup.config.arch.num_eval_episodes
        # Numbers that no other evaluation of the run uses.
        first = self.setup.plan.num_updates + 1
        batches = []
        for batch in range(ABSOLUTE_FACTOR):
            batches.append(self._play(best.shared, {} if self._alone else best.hyperparams, first + batch))
            self._stop_if_asked(signals)
        trimmed = [jax.tree.map(lambda leaf: leaf[..., :count], batch) for batch in batches]
        episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *trimmed)
        record = records.evaluation("absolute", episodes, ABSOLUTE_FACTOR * count)
        record["absolute/env_steps"] = best.env_steps.tolist()
        if self._alone:
            return record
        return {**record, **self._aggregate("absolute", np.asarray(record["absolute/episode_return_mean"]))}

    def _play(self, shared: Any, hyperparams: Mapping[str, Any], number: int) -> Any:
        """Evaluate; every `number` has its own start states."""
        with self.clock("evaluation"):
            episodes = self._compiled.evaluate(
                shared, dict(hyperparams), self._compiled.keys.evaluation, np.uint32(number)
            )
            episodes = self.setup.processes.fetch(episodes)
            self._check(self.setup.eval_env)
        return episodes

    def _aggregate(self, prefix: str, scores: np.ndarray) -> dict[str, Any]:
        population = self._population
        statistics = records.aggregate(scores.tolist(), population.strata)
        named = {f"{prefix}/episode_return_{name}": value for name, value in statistics.items()}
        if prefix != "eval":
            return named
        return {
            **named,
            # NaN is worse than any number.
            "population/best_member": int(np.argmax(np.where(np.isnan(scores), -np.inf, scores))),
            "population/worst_member": int(np.argmin(np.where(np.isnan(scores), -np.inf, scores))),
            "population/failed": sorted(self.progress.failures),
            **{f"hyperparams/{name}": list(values) for name, values in population.hyperparams.items()},
        }

    def _record(self, metrics: dict[str, Any]) -> None:
        """Record an evaluation, which ends its interval, and tell the callbacks."""
        self._end_interval()
        self.history.append(
            {
                "env_steps": self.env_steps,
                "updates": self.progress.updates,
                "wall_seconds": self._elapsed(),
                **metrics,
            }
        )

        if self._callbacks:
            with self.clock("callbacks"):
                shared, population = self.state.shared, self._population
                self.progress.stopped_by = self._callbacks.evaluated(self.history[-1], shared, population)

    def _record_video(self) -> None:
        """Record an episode of the best member after every `logger.video.every_evals` evaluations."""
        evaluation = len(self.history) - 1
        if self.setup.drawn_env is None or evaluation % self.setup.config.logger.video.every_evals:
            return
        member = self.history[-1].get("population/best_member", 0)
        hyperparams = self._population.of(member)
        with self.clock("videos"):
            shared = self.setup.processes.readable(self.state.shared)
            if self._videos is not None:
                self._videos.record(shared, hyperparams, evaluation, member, self.env_steps, self._logger)

    def _set_population(self, population: Population) -> None:
        self._population, self._hyperparams = population, traced_hyperparams(population)

    def _evolve(self) -> None:
        """Replace the worst members after every `arch.population.pbt.every_evals` evaluations but the last one."""
        record, evaluation = self.history[-1], len(self.history) - 1
        complete = self.progress.updates == self.setup.plan.num_updates or self.progress.stopped_by is not None
        done = "population/continues" in record or record["updates"] != self.progress.updates
        if self._evolution is None or complete or done or not self._evolution.is_due(evaluation):
            return
        scores = np.asarray(record["eval/episode_return_mean"])
        with self.clock("selection"):
            self._state, population, sources = self._evolution(self.state, self._population, scores, evaluation)
        self._set_population(population)
        record["population/continues"] = sources
        self.progress.hyperparams = {name: list(values) for name, values in population.hyperparams.items()}
        for member, source in enumerate(sources):
            # A copy of a healthy member trains again.
            if member != source:
                self.progress.failures.pop(member, None)

    def _log(self) -> None:
        """Log what has been recorded since the last call."""
        with self.clock("logging"):
            self._pass_on_records()

    def _pass_on_records(self) -> None:
        self._pass_on_blocks()
        for record in self.history[self._num_logged :]:
            self._logger.log(record)
        self._num_logged = len(self.history)
        if self._videos is not None:
            self._videos.log(self._logger)

    def _pass_on_blocks(self) -> None:
        for record in self._blocks:
            self._logger.log_updates(record)
        self._blocks.clear()

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started
