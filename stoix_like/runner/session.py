"""The host's loop around the compiled programs."""

from __future__ import annotations

import dataclasses
import sys
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.errors import TrainingError
from stoix_like.loggers import Logger
from stoix_like.runner import anakin, report
from stoix_like.runner.checkpoint import Checkpoint, Writer
from stoix_like.runner.prepared import Prepared, environment_name
from stoix_like.runner.programs import compile_programs, fold_in, make_keys, traced_hyperparams
from stoix_like.runner.signals import Signals

ABSOLUTE_FACTOR = 10
# Between two calls of the program the host looks whether it was asked to stop.
SECONDS_PER_CALL = 1.0


class Best(NamedTuple):
    """The best parameters seen, by member: copies of what was evaluated, its return, and when it was."""

    shared: Any
    episode_return: np.ndarray
    env_steps: np.ndarray


@dataclasses.dataclass
class Progress:
    """How far a run has come, as JSON can hold it.

    Attributes:
        updates: so far, of each member.
        begun: how many they were when the present window began.
        history: one record per evaluation.
        failures: by member, what went bad when.
        train_seconds: spent in updates.
        window_seconds: of them, since the last evaluation.
        wall_seconds: since the run began, those between being stopped and resumed left out.
    """

    updates: int = 0
    begun: int = 0
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    train_seconds: float = 0.0
    window_seconds: float = 0.0
    wall_seconds: float = 0.0


class Session:
    """The host's loop around the compiled programs: windows of updates, an evaluation after each.

    Attributes:
        prepared: the run.
        progress: how far it has come.
        writer: of its checkpoints, or None.
        exact: False where it was restored without its replay buffer, and so is not quite the run it was.

    Args:
        prepared: the run.
        logger: is given each record.
        writer: of checkpoints; None writes none.
    """

    def __init__(self, prepared: Prepared, logger: Logger, writer: Writer | None = None) -> None:
        self.prepared = prepared
        self.progress = Progress()
        self._logger = logger
        self.writer = writer
        self._started = time.perf_counter()
        self._logged = 0
        # Updates per call of the program, so that a call takes about as long as the host may be deaf.
        self._pace = 1
        self._best: Best | None = None
        self._absolute: dict[str, Any] = {}
        self._state: anakin.LearnerState | None = None
        self.exact = True

        self._keys = make_keys(prepared)
        self._hyperparams = traced_hyperparams(prepared.population)
        self._compiled = compile_programs(prepared, self._keys, self._hyperparams)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One record per evaluation."""
        return self.progress.history

    @property
    def state(self) -> anakin.LearnerState:
        """The learner state after the last update."""
        if self._state is None:
            self._state = self._compiled.init(self._hyperparams, self._keys.agent, self._keys.shards)
        return self._state

    @property
    def env_steps(self) -> int:
        """Environment steps of each member so far, warm-up included."""
        plan = self.prepared.plan
        return plan.warmup_steps + self.progress.updates * plan.steps_per_update

    @property
    def _alone(self) -> bool:
        return self.prepared.population.size == 1

    def targets(self) -> dict[str, Any]:
        """What a checkpoint of this run holds, as shapes and layouts."""
        state = self._compiled.state
        return _items(state, state.shared, self.prepared.run.checkpoint.replay)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on where a checkpoint was written.

        Args:
            checkpoint: with the items of `targets`; without `local`, replay and episodes begin anew, after a warm-up.
        """
        items, session = checkpoint.items, checkpoint.session
        local = items.get("local", self._compiled.state.shards.local)
        self.exact = "local" in items or not jax.tree.leaves(local)
        learner = items["learner"]
        if not self.exact:
            # Episodes, too: what the warm-up stored last is followed by its own next step.
            local, learner = self.state.shards.local, {**learner, "actor": self.state.shards.actor}
        self._state = jax.tree.map(_own, _state(items["shared"], learner, local))
        progress = dict(session["progress"])
        progress["failures"] = {int(member): failure for member, failure in progress["failures"].items()}
        self.progress = Progress(**progress)
        self._logged = len(self.history)
        self._started -= self.progress.wall_seconds
        if "best" in items:
            best = session["best"]
            self._best = Best(items["best"], np.asarray(best["episode_return"]), np.asarray(best["env_steps"]))

    def train(self) -> None:
        """Spend what is left of the budget, then evaluate the best parameters once more.

        Raises:
            TrainingError: a metric or a parameter was no finite number any more.
            KeyboardInterrupt: SIGINT came, and a checkpoint has been written.
            SystemExit: SIGTERM came, and a checkpoint has been written.
        """
        with Signals() as signals:
            if not self.history:
                self._record({"steps_per_second": None, **self._evaluate()})
            begun = self.progress.begun
            for target in self.prepared.plan.evaluations:
                if target > begun and target >= self.progress.updates:
                    trained = self._train_until(target, signals)
                    self._record({**trained, **self._evaluate()})
                    self._save_regularly()
                    self._stop_if_asked(signals)
            self._log()
            if self.prepared.run.arch.absolute_metric and self._best is not None:
                self._absolute = self._evaluate_best(self._best, signals)
            self._stop_if_asked(signals)

    def advance(self, num_updates: int) -> dict[str, Any]:
        """Train so many updates more, without evaluating, logging or saving.

        Args:
            num_updates: at least one.

        Returns:
            The numbers of their window.
        """
        return self._train_until(self.progress.updates + num_updates, Signals())

    def summary(self) -> dict[str, Any]:
        """What the run came to, for `summary.json`."""
        run, devices = self.prepared.run, self.prepared.mesh.devices
        trained_steps = self.progress.updates * self.prepared.plan.steps_per_update * self.prepared.population.size
        return {
            "system": run.system_name,
            "environment": environment_name(run),
            "seed": run.arch.seed,
            "env_steps": self.env_steps,
            "updates": self.progress.updates,
            **{name: value for name, value in self.history[-1].items() if name.startswith(("eval/", "population/"))},
            **self._absolute,
            **({} if self._alone else self._population_summary()),
            "compile_seconds": self._compiled.seconds,
            "steps_per_second": trained_steps / self.progress.train_seconds,
            "wall_seconds": self._elapsed(),
            "notes": list(self.prepared.plan.notes),
            "versions": report.versions(),
            "devices": [f"{device.platform}:{device.device_kind}" for device in devices.flat],
        }

    def _population_summary(self) -> dict[str, Any]:
        population = self.prepared.population
        members = report.members(population, self.history[-1], self._absolute, self.progress.failures)
        return {
            "population/size": len(members),
            "population/varied": list(population.hyperparams),
            "population/best": members[self.history[-1]["population/best_member"]],
            "population/members": members,
        }

    def _train_until(self, target: int, signals: Signals) -> dict[str, Any]:
        """Train up to so many updates, in calls of about `SECONDS_PER_CALL`, which leave the numbers as they are."""
        progress, plan = self.progress, self.prepared.plan
        while True:
            num_updates = min(self._pace, target - progress.updates)
            begin = np.bool_(progress.updates == progress.begun)
            start = time.perf_counter()
            self._state, window = self._compiled.train(self.state, self._hyperparams, np.int32(num_updates), begin)
            # The device is busy with this window while the host logs the one before.
            self._log()
            window = jax.device_get(window)
            seconds = time.perf_counter() - start
            progress.updates += num_updates
            progress.train_seconds += seconds
            progress.window_seconds += seconds
            self._check_health(window)
            if progress.updates == target:
                break
            self._pace = max(1, min(8 * num_updates, int(num_updates * SECONDS_PER_CALL / seconds)))
            self._stop_if_asked(signals)
        steps = (target - progress.begun) * plan.steps_per_update * self.prepared.population.size
        rate = steps / progress.window_seconds
        progress.begun, progress.window_seconds = target, 0.0
        return {"steps_per_second": rate, **report.training(window)}

    def _check_health(self, window: anakin.Window) -> None:
        """Report members that went bad in the present window; a lone run ends there."""
        begun = self.progress.begun
        if self.prepared.run.arch.on_nan == "ignore":
            return
        for member, healthy_updates in enumerate(np.atleast_1d(window.healthy_updates)):
            if begun + healthy_updates == self.progress.updates or member in self.progress.failures:
                continue
            bad = [name for name, flags in window.bad_metrics.items() if np.atleast_1d(flags)[member]]
            what = f"train/{bad[0]} was not finite" if bad else "a parameter was not finite"
            failure = f"{what} in update {begun + int(healthy_updates) + 1}"
            if self._alone:
                self._log()
                raise TrainingError(f"training went bad: {failure}; {self._last_good()}")
            self.progress.failures[member] = failure
            print(f"member {member} went bad and is frozen: {failure}", file=sys.stderr)

    def _last_good(self) -> str:
        where = "no checkpoint had been written"
        if self.writer is not None:
            self.writer.wait()
            if self.writer.newest is not None:
                where = f"the last good checkpoint is {self.writer.directory / str(self.writer.newest)}"
        return f"{where}; arch.on_nan=ignore goes on regardless"

    def _save_regularly(self) -> None:
        """Save after every so many evaluations, and after the last one."""
        every = self.prepared.run.checkpoint.every_evals
        complete = self.progress.updates == self.prepared.plan.num_updates
        if complete or (every is not None and (len(self.history) - 1) % every == 0):
            self._save()

    def _save(self) -> None:
        if self.writer is None:
            return
        self.progress.wall_seconds = self._elapsed()
        items = _items(self.state, None, self.prepared.run.checkpoint.replay)
        session: dict[str, Any] = {
            "config": self.prepared.run.resolved,
            "num_shards": self.prepared.plan.num_shards,
            "num_updates": self.prepared.plan.num_updates,
            "progress": dataclasses.asdict(self.progress),
        }
        if self._best is not None:
            items["best"] = self._best.shared
            session["best"] = {
                "episode_return": self._best.episode_return.tolist(),
                "env_steps": self._best.env_steps.tolist(),
            }
        self.writer.save(self.env_steps, items, session)

    def _stop_if_asked(self, signals: Signals) -> None:
        """Save and leave where a signal has come."""
        if signals.received is None:
            return
        self._log()
        saved = "nothing was saved"
        if self.writer is not None:
            self.writer.wait()
            if self.writer.newest != self.env_steps:
                self._save()
                self.writer.wait()
            if self.writer.newest is not None:
                since = "" if self.writer.newest == self.env_steps else f" those after {self.writer.newest:,}"
                saved = f"saved{since}; stoix-like resume {self.writer.run_dir} goes on"
        signals.leave(f"stopped after {self.env_steps:,} env steps, {saved}")

    def _evaluate(self) -> dict[str, Any]:
        arch = self.prepared.run.arch
        episodes = self._play(self.state.shared, self.progress.updates)
        record = report.evaluation("eval", episodes, arch.num_eval_episodes)
        scores = np.asarray(record["eval/episode_return_mean"])
        if arch.absolute_metric or self.prepared.run.checkpoint.keep_best:
            self._keep_best(scores)
        return record if self._alone else {**record, **self._aggregate("eval", scores)}

    def _keep_best(self, scores: np.ndarray) -> None:
        """Keep copies of the members that were never better, since training donates its state."""
        steps = np.full(scores.shape, self.env_steps)
        best = self._best or Best(self.state.shared, np.full(scores.shape, -np.inf), steps)
        better = scores > best.episode_return
        if self._best is not None and not better.any():
            return
        self._best = Best(
            self._compiled.select(better, self.state.shared, best.shared),
            np.where(better, scores, best.episode_return),
            np.where(better, steps, best.env_steps),
        )

    def _evaluate_best(self, best: Best, signals: Signals) -> dict[str, Any]:
        count = self.prepared.run.arch.num_eval_episodes
        # Numbers that no evaluation of the run has folded in.
        first = self.prepared.plan.num_updates + 1
        batches = []
        for batch in range(ABSOLUTE_FACTOR):
            batches.append(self._play(best.shared, first + batch))
            self._stop_if_asked(signals)
        trimmed = [jax.tree.map(lambda leaf: leaf[..., :count], batch) for batch in batches]
        episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *trimmed)
        record = report.evaluation("absolute", episodes, ABSOLUTE_FACTOR * count)
        record["absolute/env_steps"] = best.env_steps.tolist()
        if self._alone:
            return record
        return {**record, **self._aggregate("absolute", np.asarray(record["absolute/episode_return_mean"]))}

    def _play(self, shared: Any, number: int) -> Any:
        """Evaluate on start states of their own for every `number`."""
        key = fold_in(self._keys.evaluation, number)
        return jax.device_get(self._compiled.evaluate(shared, self._hyperparams, key))

    def _aggregate(self, prefix: str, scores: np.ndarray) -> dict[str, Any]:
        population = self.prepared.population
        statistics = report.aggregate(scores.tolist(), population.strata)
        named = {f"{prefix}/episode_return_{name}": value for name, value in statistics.items()}
        if prefix != "eval":
            return named
        return {
            **named,
            "population/best_member": int(np.argmax(scores)),
            "population/worst_member": int(np.argmin(scores)),
            "population/failed": sorted(self.progress.failures),
            **{f"hyperparams/{name}": list(values) for name, values in population.hyperparams.items()},
        }

    def _record(self, numbers: dict[str, Any]) -> None:
        self.history.append(
            {
                "env_steps": self.env_steps,
                "updates": self.progress.updates,
                "wall_seconds": self._elapsed(),
                **numbers,
            }
        )

    def _log(self) -> None:
        """Hand over what has been recorded since the last time."""
        for record in self.history[self._logged :]:
            self._logger.log(record)
        self._logged = len(self.history)

    def _elapsed(self) -> float:
        return time.perf_counter() - self._started


def _items(state: anakin.LearnerState, best: Any, replay: bool) -> dict[str, Any]:
    """The parts of a checkpoint: a policy can be read without the rest, and replay can be left out."""
    shards = state.shards
    learner = {
        "actor": shards.actor,
        "key": shards.key,
        "episodes": shards.episodes,
        "healthy": state.healthy,
        "tally": state.tally,
    }
    return {"shared": state.shared, "learner": learner, "local": shards.local if replay else (), "best": best}


def _own(leaf: jax.Array) -> jax.Array:
    """A copy that a program made, since a buffer that a file was read into must not be donated.

    What lies on an accelerator was copied there already, and a replay might not fit twice.
    """
    if any(device.platform != "cpu" for device in leaf.devices()):
        return leaf
    copy = jax.jit(jnp.copy, out_shardings=leaf.sharding)(leaf)
    leaf.delete()
    return copy


def _state(shared: Any, learner: dict[str, Any], local: Any) -> anakin.LearnerState:
    shard = anakin.Shard(local, learner["actor"], learner["key"], learner["episodes"])
    return anakin.LearnerState(shared, shard, learner["healthy"], learner["tally"])
