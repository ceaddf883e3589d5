"""The host's loop around the compiled programs."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from stoix_like.architectures.types import IntervalMetrics, LearnerState
from stoix_like.errors import CallbackError, HostEnvironmentError, LostDirectoryError, TrainingError, resume_command
from stoix_like.interpreter import no_collection
from stoix_like.loggers import MultiLogger
from stoix_like.run.callbacks import Callbacks
from stoix_like.run.evaluations import Evaluations
from stoix_like.run.failures import divergences, last_good, rescue
from stoix_like.run.host.devices import device_names
from stoix_like.run.host.saved_state import to_state
from stoix_like.run.learner import Learner
from stoix_like.run.population.pbt import CONTINUES, Evolution
from stoix_like.run.programs.profile import Profile
from stoix_like.run.records import records
from stoix_like.run.records.clock import Clock
from stoix_like.run.records.recording import Progress, Recording
from stoix_like.run.records.videos import Videos
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.resume_checks import stopped_by
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.run.summary import LOGGING_MEANWHILE, summarise, timing
from stoix_like.signals import Signals, stop_if_received
from stoix_like.storage.checkpoint import Checkpoint, Writer
from stoix_like.storage.recorded_runs import DIVERGED
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.utils.jax_utils import named
from stoix_like.utils.replay import count_from, end_episodes

# Signals are handled between two calls of the program.
SECONDS_PER_CALL = 1.0
_REGARDLESS = "arch.on_nan=ignore continues regardless"


class TrainingLoop:
    """Intervals of updates, with an evaluation after each; parts that are None do nothing."""

    def __init__(
        self,
        setup: RunSetup,
        logger: MultiLogger,
        writer: Writer | None = None,
        videos: Videos | None = None,
        callbacks: Callbacks | None = None,
        profile: Profile | None = None,
        directory: RunDirectory | None = None,
    ) -> None:
        self.setup = setup
        # Records of evaluations have a lone member's hyperparameters as numbers.
        lone = setup.population.hyperparams if setup.population.num_members == 1 else {}
        self.progress = Progress(hyperparams={name: list(values) for name, values in lone.items()})
        self.writer = writer
        self.notes = setup.plan.notes
        self.missing: tuple[str, ...] = ()
        self._logger = logger
        self._videos = videos
        self._callbacks = callbacks
        self._profile = profile
        self._directory = directory
        self._started = time.perf_counter()
        self.clock = Clock()
        self.clock.add({"startup": self._started - setup.started})
        self._recording = Recording(setup, self.progress, logger, self.clock, videos)
        # Updates per call of the program, adapted so that a call takes about `SECONDS_PER_CALL`.
        self._updates_per_call = 1
        self._absolute: dict[str, Any] = {}
        self._learner = Learner(setup, self.clock)
        with self.clock("compilation"), no_collection():
            evolves, state = setup.config.arch.population.evolves, self._learner.programs.state
            self._evolution = Evolution(setup.config, setup.population, state, setup.processes) if evolves else None
        self.evaluations = Evaluations(setup, self._learner)
        stop_if_received(setup.processes)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per evaluation."""
        return self.progress.history

    @property
    def state(self) -> LearnerState:
        """The learner state after the last update."""
        return self._learner.state

    @property
    def env_steps(self) -> int:
        """Environment steps of each member so far, warm-up included."""
        plan = self.setup.plan
        return plan.warmup_steps + self.progress.updates * plan.steps_per_update

    def targets(self) -> dict[str, Any]:
        """Return the shapes and layouts of the items of a checkpoint."""
        return self._learner.targets()

    def restore(self, checkpoint: Checkpoint) -> None:
        """Continue from a checkpoint."""
        items, host_state = checkpoint.items, checkpoint.host_state
        self.notes = tuple(host_state.get("notes", ()))
        self.progress = Progress.from_json({**host_state["progress"], "stopped_by": stopped_by(self.setup, host_state)})
        # A warm-up acts with the members that are under way.
        self._learner.set_population(self.progress.of(self.setup.population))
        local = items.get("local", self._learner.programs.state.shards.local)
        has_replay = "local" in items or not jax.tree.leaves(local)
        missing = {
            "its replay buffer": not has_replay,
            "the episodes of its environments, which restart": self.setup.steps_on_host,
        }
        self.missing = tuple(name for name, is_missing in missing.items() if is_missing)
        rest = items["rollout_state"]
        if self.missing:
            self._learner.take_new_starts(self.progress.updates)
            # With a replay buffer, the steps of a warm-up would be lost, and its episodes would seem the old ones.
            self._learner.start(named(items["shared"]), warm_up=not has_replay)
            local = end_episodes(local) if has_replay else count_from(self.state.shards.local, self.progress.updates)
            rest = {**rest, "rollout_state": self.state.shards.rollout_state}
        if self.setup.config.arch.on_nan == "ignore":
            rest = {**rest, "healthy": rest["healthy"] | True}
            self.progress.failures.clear()
        self._learner.state = to_state(items["shared"], rest, local)
        self._recording = Recording(self.setup, self.progress, self._logger, self.clock, self._videos)
        self._started -= self.progress.wall_seconds
        self.clock.add(self.progress.seconds)
        if self._callbacks:
            lost = self._callbacks.restore(host_state.get("callbacks", ()), checkpoint.step)
            self.missing += tuple(f"the callback {name}" for name in lost)
        if "best" in items and self.setup.config.keeps_best:
            self.evaluations.restore(items["best"], host_state["best"])
        if self.history:
            # A run that ended in between, or that continues after all, has yet to make its last selection.
            self._select()

    def warm_start(self, source: warm_start.Source) -> None:
        """Start from the parameters and statistics of another run."""
        arrays = self.setup.processes.together(lambda: warm_start.read(self.setup, source))
        self._learner.start_from(warm_start.place(arrays, self._learner.programs.state.shared))

    def train(self) -> None:
        """Spend the rest of the budget, then evaluate the best parameters once more."""
        updates_left = self.setup.plan.num_updates - self.progress.updates
        with Signals() as signals, self._saved_on_failure(signals), self._learner.programs.running(updates_left):
            if not self.history:
                self._record({"steps_per_second": None, **self.evaluate()})
                if self.progress.stopped_by is not None:
                    self.save()
            if self.progress.trained:
                # An environment failed in the evaluation after this interval, whatever the schedule is now.
                self._end_interval(self.progress.trained, signals)
            self._measure_rollouts()
            start = self.progress.interval_start
            for target in self.setup.plan.evaluations:
                if target > start and target >= self.progress.updates and not self.progress.stopped_by:
                    self._end_interval(self._train_until(target, signals), signals)
            self._recording.log()
            if self.setup.config.arch.absolute_metric:
                self._absolute = self.evaluations.absolute(
                    self.history[-1], self.env_steps, lambda: self._stop_if_asked(signals)
                )
            self._stop_if_asked(signals)
            if self._videos is not None:
                self._videos.log(self._logger, wait=True)

    def _end_interval(self, trained: dict[str, Any], signals: Signals) -> None:
        """Evaluate, record, select and save after an interval with these metrics."""
        self._record({**trained, **self.evaluate()})
        self._record_video()
        self._select()
        if len(self.history) == 2:
            self._recording.log()  # The first record of training does not wait for the first checkpoint.
        self._save_regularly()
        self._stop_if_asked(signals)

    def advance(self, num_updates: int) -> dict[str, Any]:
        """Train without evaluating, logging or saving."""
        metrics = self._train_until(self.progress.updates + num_updates, Signals())
        self.progress.end_interval()
        return metrics

    def summary(self) -> dict[str, Any]:
        """Return the results of the run, for `summary.json`."""
        learner = self._learner
        measured = self._absolute, self._profile, self._elapsed()
        return summarise(self.setup, self.notes, learner.population, self.progress, learner.programs, *measured)

    def timing(self) -> dict[str, float]:
        """Return where the time of the run went."""
        return timing(self.clock.read(), self._elapsed(), self.progress.updates, self._profile)

    def _train_until(self, target: int, signals: Signals) -> dict[str, Any]:
        """Train up to `target` updates, in calls of about `SECONDS_PER_CALL`, which do not change the results."""
        progress, plan = self.progress, self.setup.plan
        if progress.updates == target:
            # The run ends where it was stopped within an interval: nothing of it is left to train.
            return {}
        while True:
            is_traced = self._start_trace()
            most = 1 if self._profile is not None and self._profile.pending else self._updates_per_call
            num_updates = self._recording.fit(min(most, target - progress.updates), target)
            new_interval = progress.updates == progress.interval_start
            before = self._learner.copy_without_replay() if self.setup.steps_on_host else None
            self._learner.start()
            if self.setup.actor_devices:  # the call returns when it has trained
                self._recording.log()
            start = time.perf_counter()
            try:
                with self.clock("training"):
                    interval = self._learner.train(num_updates, new_interval)
                    # The host logs the last interval while the device computes this one.
                    began = time.perf_counter()
                    self._recording.pass_on()
                    self.clock.add({LOGGING_MEANWHILE: time.perf_counter() - began})
                    interval = self._learner.wait(interval)
            except HostEnvironmentError:
                # What was computed since the failure is meaningless, and the replay buffer holds steps of that time.
                if before is not None:
                    self._learner.state = before
                raise
            seconds = self.setup.processes.largest(time.perf_counter() - start)
            self._recording.take_blocks(interval, num_updates, target)
            progress.updates += num_updates
            progress.train_seconds += seconds
            progress.interval_seconds += seconds
            if is_traced:
                self._stop_trace()
            self._check_health(interval)
            if progress.updates == target:
                break
            self._updates_per_call = max(1, min(8 * num_updates, int(num_updates * SECONDS_PER_CALL / seconds)))
            self._stop_if_asked(signals)
            self.report_checkpoint()
        steps = (target - progress.interval_start) * plan.steps_per_update * self.setup.population.num_members
        rate = steps / progress.interval_seconds
        trained = {"steps_per_second": rate, **records.training(interval), **self._learner.programs.host_metrics()}
        progress.trained = trained
        self.report_checkpoint()
        return trained

    def _measure_rollouts(self) -> None:
        """Measure how long rollouts alone take, from the current state, unless nothing is left to train."""
        own, rollouts = self._learner, self._learner.programs.rollouts
        is_over = bool(self.progress.stopped_by) or self.progress.updates == self.setup.plan.num_updates
        if self._profile is not None and rollouts is not None and not is_over:
            with self.clock("profile"):
                self._profile.measure_rollouts(lambda number: rollouts(own.state, own.hyperparams, np.int32(number)))

    def _start_trace(self) -> bool:
        """Return whether the next call of the program is traced."""
        if self._profile is None:
            return False
        with self.clock("profile"):
            return self._profile.start(is_last=self.progress.updates + 1 == self.setup.plan.num_updates)

    def _stop_trace(self) -> None:
        """Write the trace, with an evaluation that is otherwise unused."""
        assert self._profile is not None
        with self.clock("profile"):
            self._learner.play(self.progress.updates)
            self._profile.stop()

    def _check_health(self, interval: IntervalMetrics) -> None:
        """Report members that diverged in the current interval; stop if none is left."""
        if self.setup.config.arch.on_nan == "ignore":
            return
        known, updates = self.progress.failures, (self.progress.interval_start, self.progress.updates)
        for member, failure in divergences(self.setup, interval, self.state, updates, known).items():
            if self.setup.population.num_members == 1:
                self._recording.log()
                raise TrainingError(f"{DIVERGED}: {failure}; {last_good(self.writer)}; {_REGARDLESS}")
            known[member] = failure
            self.setup.processes.say(f"member {member} diverged and is frozen: {failure}")
        if len(known) == self.setup.population.num_members:
            self._recording.log()
            raise TrainingError(f"{DIVERGED}: all {len(known)} members; {last_good(self.writer)}; {_REGARDLESS}")

    def _save_regularly(self) -> None:
        """Save after every `checkpoint.every_evals` evaluations, and after the last one."""
        every = self.setup.config.checkpoint.every_evals
        complete = self.progress.updates == self.setup.plan.num_updates or self.progress.stopped_by is not None
        if complete or (every is not None and (len(self.history) - 1) % every == 0):
            self.save()

    def save(self) -> None:
        """Start to write a checkpoint of the current state."""
        self._check_directory()
        if self.writer is None:
            return
        # A checkpoint holds the records of evaluations, and no others.
        with self.clock("logging"):
            self._recording.pass_on_blocks()
        self.progress.wall_seconds, self.progress.seconds = self._elapsed(), self.clock.read()
        items = self._learner.items()
        host_state: dict[str, Any] = {
            "config": self.setup.config.resolved,
            "num_shards": self.setup.plan.num_shards,
            "num_updates": self.setup.plan.num_updates,
            "contents": dict(self.setup.contents),
            "versions": self.setup.config.versions,
            "devices": device_names(self.setup.mesh),
            "progress": vars(self.progress),
            "notes": self.notes,
        }
        if self._callbacks:
            host_state["callbacks"] = self._callbacks.state()
        if (best := self.evaluations.best) is not None:
            items["best"] = best.shared
            host_state["best"] = best.host_values()
        with self.clock("checkpoints"):
            self.writer.save(self.env_steps, items, host_state)

    def rescue(self) -> str:
        """Write the trained parameters where no checkpoint could be written; return where they are."""
        assert self.writer is not None
        return rescue(self.state.shared, self.writer, self.setup.processes)

    def report_checkpoint(self) -> None:
        """Tell the callbacks if a checkpoint has become complete."""
        if self._callbacks and self.writer is not None:
            with self.clock("callbacks"):
                self._callbacks.saved(self.writer.newest, self.writer.run_dir)

    def _stop_if_asked(self, signals: Signals) -> None:
        """Save and exit if a signal was received."""
        self._check_directory()
        if signals.agree(self.setup.processes) is None:
            return
        message = f"stopped after {self.env_steps:,} {self.setup.config.arch.step_unit}, {self._save_now()}"
        self.report_checkpoint()
        signals.leave(message if self.setup.processes.is_first else None)

    @contextlib.contextmanager
    def _saved_on_failure(self, signals: Signals) -> Iterator[None]:
        """Save before an error that leaves the state intact ends the run."""
        try:
            yield
        except (HostEnvironmentError, CallbackError, LostDirectoryError) as error:
            saved = "nothing was saved" if not self._learner.has_started else self._save_now()
            message = f"{error}; stopped after {self.env_steps:,} {self.setup.config.arch.step_unit}, {saved}"
            with contextlib.suppress(CallbackError):
                self.report_checkpoint()
            if signals.agree(self.setup.processes) is not None:
                # The environment may hang, which a signal does not wait for.
                signals.leave(message if self.setup.processes.is_first else None)
            raise type(error)(message) from error

    def _check_directory(self) -> None:
        """Raise an error if the run directory was deleted."""
        if self._directory is not None:
            try:
                self._directory.check_present(self.setup.config.resolved, self.history)
            except LostDirectoryError:
                if self.writer is not None:
                    self.writer.restart()
                raise

    def _save_now(self) -> str:
        """Log and save, unless there is a checkpoint of this step; return what to tell the user."""
        self._recording.log()
        if self.writer is None:
            return "nothing was saved"
        self.writer.wait()
        if self.writer.newest != self.env_steps:
            self.save()
            self.writer.wait()
        if not self.writer.usable:
            return f"without a usable checkpoint: {self.rescue()}"
        since = "" if self.writer.newest == self.env_steps else f" up to {self.writer.newest:,}"
        return f"saved{since}; continue with: {resume_command(self.writer.run_dir)}"

    def evaluate(self) -> dict[str, Any]:
        """Evaluate the current parameters; return the entries of a record."""
        episodes, count = self._learner.play(self.progress.updates), self.setup.config.arch.num_eval_episodes
        self._recording.advise(self.progress.trained or {}, episodes.finished[..., :count])
        return self.evaluations.record(episodes, self.env_steps, self.progress.failures)

    def _record(self, metrics: dict[str, Any]) -> None:
        """Record an evaluation, which ends its interval, and tell the callbacks."""
        self.progress.end_interval()
        done = {"env_steps": self.env_steps, "updates": self.progress.updates, "wall_seconds": self._elapsed()}
        self.history.append({**done, **metrics})
        if self._callbacks:
            with self.clock("callbacks"):
                self._callbacks.evaluated(self.progress, self.state.shared, self._learner.population)

    def _record_video(self) -> None:
        """Record an episode of the best member after every `logger.video.every_evals` evaluations."""
        evaluation = len(self.history) - 1
        if self.setup.drawn_env is None or evaluation % self.setup.config.logger.video.every_evals:
            return
        member = self.history[-1].get("population/best_member", 0)
        hyperparams = self._learner.population.of(member)
        with self.clock("videos"):
            shared = self.setup.processes.readable(self.state.shared)
            if self._videos is not None:
                self._videos.record(shared, hyperparams, evaluation, member, self.env_steps, self._logger)

    def _select(self) -> None:
        """Select after every evaluation for which a selection is due, but the last one."""
        record, evaluation = self.history[-1], len(self.history) - 1
        complete = self.progress.updates == self.setup.plan.num_updates or self.progress.stopped_by is not None
        if self._evolution is None or complete or record["updates"] != self.progress.updates:
            return
        if CONTINUES in record or not self._evolution.is_due(evaluation):
            return
        with self.clock("selection"):
            selected = self._evolution(self.state, self._learner.population, self.history)
            self._learner.state = jax.block_until_ready(selected.state)
        self._learner.set_population(selected.population)
        record[CONTINUES] = selected.sources
        self.progress.keep(selected.population)
        for member in selected.healthy:
            self.progress.failures.pop(member, None)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started
