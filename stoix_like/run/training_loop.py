"""The host's loop around the compiled programs."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import IntervalMetrics, LearnerState
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import CallbackError, HostEnvironmentError, LostDirectoryError, TrainingError
from stoix_like.interpreter import no_collection
from stoix_like.loggers import MultiLogger
from stoix_like.run.callbacks import Callbacks
from stoix_like.run.failures import divergences, last_good, rescue
from stoix_like.run.host.saved_state import Best, to_items, to_state
from stoix_like.run.population.halving import Halving
from stoix_like.run.population.members import Population
from stoix_like.run.population.pbt import Evolution
from stoix_like.run.population.selection import Selection
from stoix_like.run.programs.compile import compile_run
from stoix_like.run.programs.functions import make_keys, restart_size, traced_hyperparams
from stoix_like.run.programs.profile import Profile
from stoix_like.run.records import records
from stoix_like.run.records.clock import Clock
from stoix_like.run.records.recording import Progress, Recording, aggregated, evaluated
from stoix_like.run.records.videos import Videos
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.run.summary import LOGGING_MEANWHILE, summarise, timing
from stoix_like.signals import Signals, stop_if_received
from stoix_like.storage.checkpoint import Checkpoint, Writer
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.utils.replay import end_episodes
from stoix_like.versions import versions

ABSOLUTE_FACTOR = 10
# Signals are handled between two calls of the program.
SECONDS_PER_CALL = 1.0
_REGARDLESS = "arch.on_nan=ignore continues regardless"


class TrainingLoop:
    """Intervals of updates, with an evaluation after each.

    Attributes:
        setup: the run.
        progress: its progress.
        writer: writer of checkpoints, or None.
        missing: state that was not restored; results may differ from an uninterrupted run.
        clock: measures where the time goes.

    Args:
        setup: the run.
        logger: receives each record.
        writer: writer of checkpoints; None writes none.
        videos: recorder of videos; None records none.
        callbacks: called at evaluations and checkpoints; None for none.
        profile: where the time of an update goes; None measures nothing.
        directory: the run directory; None where nothing is written.
    """

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
        # A lone member's hyperparameters are in no record of an evaluation.
        lone = setup.population.hyperparams if setup.population.num_members == 1 else {}
        self.progress = Progress(hyperparams={name: list(values) for name, values in lone.items()})
        self.writer = writer
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
        self._best: Best | None = None
        self._absolute: dict[str, Any] = {}
        self._state: LearnerState | None = None
        with self.clock("compilation"), no_collection():
            self._compiled = compile_run(setup)
            self._selection = self._make_selection()
            self._population, self._keys = setup.population, make_keys(setup)
            self._set_population(setup.population)
        stop_if_received(setup.processes)

    def _make_selection(self) -> Selection | None:
        setup, state = self.setup, self._compiled.state
        if setup.halves:
            return Halving(setup.config, setup.plan, self._restart)
        return Evolution(setup.config, setup.population, state, setup.processes) if setup.evolves else None

    def _init(self, population: Population) -> LearnerState:
        """Return the initial state of members."""
        keys = make_keys(self.setup._replace(population=population))
        state: LearnerState = self._compiled.init(traced_hyperparams(population), keys.agent, keys.shards)
        return jax.block_until_ready(state)

    def _restart(self, state: LearnerState, population: Population, members: Sequence[int]) -> LearnerState:
        """Start some members of a population anew, a few at a time."""
        assert self._compiled.restart is not None
        size = restart_size(self.setup)
        for first in range(0, len(members), size):
            own = list(members[first : first + size])
            some = population.take([*own, *own[:1] * (size - len(own))])
            keys = make_keys(self.setup._replace(population=some))
            # What fills the program up has no place in the population.
            places = np.asarray([*own, *[population.num_members] * (size - len(own))], np.int32)
            state = self._compiled.restart(state, traced_hyperparams(some), keys.agent, keys.shards, places)
        return state

    def _check(self, env: VectorEnvironment) -> None:
        """Raise the failure of an environment on the host, of any process."""
        if env.on_host:
            self.setup.processes.together(env.check)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per evaluation."""
        return self.progress.history

    @property
    def state(self) -> LearnerState:
        """The learner state after the last update."""
        if self._state is None:
            with self.clock("initialisation"):
                state = self._init(self._population)
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
        self._set_population(self.progress.of(self._population))
        self._recording = Recording(self.setup, self.progress, self._logger, self.clock, self._videos)
        self._started -= self.progress.wall_seconds
        self.clock.add(self.progress.seconds)
        if self._callbacks:
            lost = self._callbacks.restore(host_state.get("callbacks", ()), checkpoint.step)
            self.missing += tuple(f"the callback {name}" for name in lost)
        if "best" in items:
            best = Best.from_checkpoint(items["best"], host_state["best"])
            self._best = best._replace(hyperparams=self._population.arrays() | dict(best.hyperparams))
        if self.history:
            # A run that ended in between, or that continues after all, has yet to make its last selection.
            self._select()

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
            LostDirectoryError: the run directory was deleted, and a checkpoint has been written.
            KeyboardInterrupt: SIGINT was received, and a checkpoint has been written.
            SystemExit: SIGTERM was received, and a checkpoint has been written.
        """
        updates_left = self.setup.plan.num_updates - self.progress.updates
        with Signals() as signals, self._saved_on_failure(signals), self._compiled.running(updates_left):
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
                    self._select()
                    if len(self.history) == 2:
                        self._recording.log()  # The first record of training does not wait for the first checkpoint.
                    self._save_regularly()
                    self._stop_if_asked(signals)
            self._recording.log()
            if self.setup.config.arch.absolute_metric and self._best is not None:
                self._absolute = self._evaluate_best(self._or_last(self._best), signals)
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
        self.progress.end_interval()
        return metrics

    def summary(self) -> dict[str, Any]:
        """Return the results of the run, for `summary.json`."""
        return summarise(
            self.setup, self._population, self.progress, self._compiled, self._absolute, self._profile, self._elapsed()
        )

    def timing(self) -> dict[str, float]:
        """Return where the time of the run went, see `summary.timing`."""
        return timing(self.clock.read(), self._elapsed(), self.progress.updates, self._profile)

    def _train_until(self, target: int, signals: Signals) -> dict[str, Any]:
        """Train up to `target` updates, in calls of about `SECONDS_PER_CALL`, which do not change the results."""
        progress, plan = self.progress, self.setup.plan
        while True:
            is_traced = self._start_trace()
            most = 1 if self._profile is not None and self._profile.pending else self._updates_per_call
            num_updates = self._recording.fit(min(most, target - progress.updates), target)
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
                        self._recording.pass_on()
                    interval = self.setup.processes.fetch(interval)
                    self._check(self.setup.env)
            except HostEnvironmentError:
                # What was computed since the failure is meaningless, and the replay buffer holds steps of that time.
                self._state = before
                raise
            seconds = self.setup.processes.largest(time.perf_counter() - start)
            if is_traced:
                self._stop_trace()
            self._recording.take_blocks(interval, num_updates, target)
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

    def _copy_without_replay(self) -> LearnerState:
        """Copy what the next call donates, but for a replay buffer, of which there might not be room for two."""
        shards = self.state.shards._replace(local=())
        return jax.tree.map(jnp.copy, self.state._replace(shards=shards))

    def _check_health(self, interval: IntervalMetrics) -> None:
        """Report members that diverged in the current interval; stop if none is left."""
        if self.setup.config.arch.on_nan == "ignore":
            return
        known, updates = self.progress.failures, (self.progress.interval_start, self.progress.updates)
        for member, failure in divergences(self.setup, interval, self.state, updates, known).items():
            if self._alone:
                self._recording.log()
                raise TrainingError(f"training diverged: {failure}; {last_good(self.writer)}; {_REGARDLESS}")
            known[member] = failure
            self.setup.processes.say(f"member {member} diverged and is frozen: {failure}")
        if self._selection is not None and self._selection.restarts:
            return
        if len(known) == self.setup.population.num_members:
            self._recording.log()
            raise TrainingError(f"training diverged: all {len(known)} members; {last_good(self.writer)}; {_REGARDLESS}")

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
        message = f"stopped after {self.env_steps:,} env steps, {self._save_now()}"
        signals.leave(message if self.setup.processes.is_first else None)

    @contextlib.contextmanager
    def _saved_on_failure(self, signals: Signals) -> Iterator[None]:
        """Save before an error that leaves the state intact ends the run."""
        try:
            yield
        except (HostEnvironmentError, CallbackError, LostDirectoryError) as error:
            saved = "nothing was saved" if self._state is None else self._save_now()
            message = f"{error}; stopped after {self.env_steps:,} env steps, {saved}"
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
        return f"saved{since}; continue with: stoix-like resume {self.writer.run_dir}"

    def _evaluate(self) -> dict[str, Any]:
        arch = self.setup.config.arch
        episodes = self._play(self.state.shared, self._hyperparams, self.progress.updates)
        record = records.evaluation("eval", episodes, arch.num_eval_episodes)
        self._recording.advise(self.progress.trained or {}, episodes.finished[..., : arch.num_eval_episodes])
        scores = np.asarray(record["eval/episode_return_mean"])
        if arch.absolute_metric or self.setup.config.checkpoint.keep_best:
            steps = np.full(scores.shape, self.env_steps)
            current = Best(self.state.shared, scores, steps, self._population.arrays())
            improved = None
            if self._selection is not None and self._best is not None:
                members, failures = self._population, self.progress.failures
                improved = self._selection.improved(members, scores, failures, self.history, self._best)
            warmup_steps = self.setup.plan.warmup_steps
            self._best = current.unless_better(self._best, self._compiled.select, warmup_steps, improved)
        if self._alone:
            return record
        described = {} if self._selection is None else self._selection.describe(self._population)
        return {**record, **evaluated(self._population, scores, self.progress.failures), **described}

    def _or_last(self, best: Best) -> Best:
        """Return the best parameters; of a member without any from after an update, its last ones.

        Of successive halving, those are members whose slot has no complete trial. A loaded policy has the same ones.
        """
        warmup_steps = self.setup.plan.warmup_steps
        untrained = best.env_steps <= warmup_steps
        returns, steps = (
            np.asarray(self.history[-1]["eval/episode_return_mean"]),
            np.full(untrained.shape, self.env_steps),
        )
        last = Best(self.state.shared, returns, steps, self._population.arrays())
        return last.unless_better(best, self._compiled.select, warmup_steps, untrained)

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
        return {**record, **aggregated("absolute", self._population, record["absolute/episode_return_mean"])}

    def _play(self, shared: Any, hyperparams: Mapping[str, Any], number: int) -> Any:
        """Evaluate; every `number` has its own start states."""
        with self.clock("evaluation"):
            episodes = self._compiled.evaluate(shared, dict(hyperparams), self._keys.evaluation, np.uint32(number))
            episodes = self.setup.processes.fetch(episodes)
            self._check(self.setup.eval_env)
        return episodes

    def _record(self, metrics: dict[str, Any]) -> None:
        """Record an evaluation, which ends its interval, and tell the callbacks."""
        self.progress.end_interval()
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
        if population.seeds != self._population.seeds:
            self._keys = make_keys(self.setup._replace(population=population))
        self._population, self._hyperparams = population, traced_hyperparams(population)

    def _select(self) -> None:
        """Select after every evaluation for which a selection is due, but the last one."""
        record, evaluation = self.history[-1], len(self.history) - 1
        complete = self.progress.updates == self.setup.plan.num_updates or self.progress.stopped_by is not None
        if self._selection is None or complete or record["updates"] != self.progress.updates:
            return
        if self._selection.entry in record or not self._selection.is_due(evaluation):
            return
        with self.clock("selection"):
            selected = self._selection(self.state, self._population, self.history)
            self._state = jax.block_until_ready(selected.state)
        self._set_population(selected.population)
        record.update(selected.entries)
        self.progress.keep(selected.population)
        for member in selected.healthy:
            self.progress.failures.pop(member, None)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started
