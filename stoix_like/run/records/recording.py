"""Progress and records of a run, and which of these the loggers have yet to receive."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from stoix_like.architectures.types import IntervalMetrics
from stoix_like.loggers import MultiLogger
from stoix_like.run.population.members import Population
from stoix_like.run.records import blocks, records
from stoix_like.run.records.clock import Clock
from stoix_like.run.records.videos import Videos
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.returns import at_members, best_member
from stoix_like.systems.parts.distributional import AtomsConfig

# Share of clipped value targets above which the support is too narrow. A new critic is uniform, and may have a few.
_MAX_CLIPPED = 0.05
_ENDS = ("vmin", "vmax")


@dataclasses.dataclass
class Progress:
    """The progress of a run, in JSON values."""

    updates: int = 0  # number of updates so far
    interval_start: int = 0  # updates before the current interval
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)  # one record per evaluation
    # By member, what became non-finite and in which update.
    failures: dict[int, str] = dataclasses.field(default_factory=dict)
    train_seconds: float = 0.0  # time spent in updates
    interval_seconds: float = 0.0  # time spent in updates since the last evaluation
    wall_seconds: float = 0.0  # time since the run started, without the pause between a stop and its resumption
    # Name of the callback that stopped the run before its budget was spent; None otherwise.
    stopped_by: str | None = None
    # By name, the hyperparameters of the members, where a selection has changed them.
    hyperparams: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    # With `logger.every_updates`, sums of the interval before the current block of updates.
    block_start: dict[str, Any] = dataclasses.field(default_factory=dict)
    seconds: dict[str, float] = dataclasses.field(default_factory=dict)  # time spent, by phase
    # Metrics of an interval that is complete and not yet evaluated; None otherwise.
    trained: dict[str, Any] | None = None

    def keep(self, population: Population) -> None:
        """Keep what a selection has changed, for a resume."""
        self.hyperparams = {name: list(values) for name, values in population.hyperparams.items()}

    def of(self, population: Population) -> Population:
        """Return the members as selections have left them."""
        return population.with_hyperparams(self.hyperparams)

    def end_interval(self) -> None:
        """Start the next interval."""
        self.interval_start, self.interval_seconds = self.updates, 0.0
        self.trained, self.block_start = None, {}

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> Progress:
        """Return the progress that a checkpoint holds in JSON, where keys are strings."""
        failures = {int(member): failure for member, failure in values["failures"].items()}
        known = {field.name: values[field.name] for field in dataclasses.fields(Progress) if field.name in values}
        return Progress(**{**known, "failures": failures})


class Recording:
    """The records of a run on their way to its loggers. `videos`: videos that the logger receives; None for none."""

    def __init__(
        self, setup: RunSetup, progress: Progress, logger: MultiLogger, clock: Clock, videos: Videos | None
    ) -> None:
        self._setup, self._progress, self._logger = setup, progress, logger
        self._clock, self._videos = clock, videos
        self._num_logged = len(progress.history)
        self._advised: set[str] = set()
        # Records of blocks of updates that are not logged yet; they come before the next evaluation.
        self._blocks: list[dict[str, Any]] = []

    def fit(self, num_updates: int, target: int) -> int:
        """Shorten a call to whole blocks of `logger.every_updates` updates."""
        every = self._setup.config.logger.every_updates
        if every is None:
            return num_updates
        call = self._call(num_updates, target)
        return blocks.fit(call, every, blocks.max_blocks(self._setup.population.num_members)).num_updates

    def take_blocks(self, interval: IntervalMetrics, num_updates: int, target: int) -> None:
        """Record the blocks of updates that a call completed."""
        every, progress, plan = self._setup.config.logger.every_updates, self._progress, self._setup.plan
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
        start = self._progress.interval_start
        return blocks.Call(self._progress.updates - start, num_updates, target - start)

    def advise(self, record: Mapping[str, Any], finished: np.ndarray) -> None:
        """Print what the user should know of an evaluation, each kind once."""
        config, found = self._setup.config, {}
        if cut := int(np.sum(~finished)):
            found["cut"] = (
                f"{cut} of {finished.size} evaluation episodes did not end within"
                f" arch.max_eval_steps={config.arch.max_eval_steps:,}: raise arch.max_eval_steps, or truncate them with"
                " env.time_limit"
            )
        # None for members that have not learned anything since the last evaluation.
        clipped = np.nan_to_num(np.asarray(record.get("train/clipped_targets", 0.0), np.float64))
        share, member = float(clipped.max()), int(clipped.argmax())
        if share > _MAX_CLIPPED and (support := self._support(member)):
            whose = f" of member {member}" if clipped.ndim else ""
            found["clipped"] = (
                f"train/clipped_targets={share:.3f}{whose}: {share:.0%} of the probability of value targets lies"
                f" outside of {support}: widen them, or lower system.reward_scale"
            )
        for kind, sentence in found.items():
            if kind not in self._advised and self._setup.processes.index == 0:
                print(sentence, file=sys.stderr)
            self._advised.add(kind)

    def _support(self, member: int) -> str:
        """Return the ends of the value distribution of a member with their keys; nothing if no key sets them."""
        config = self._setup.config
        if (atoms := config.system.find_part(AtomsConfig)) is not None:
            own = self._progress.of(self._setup.population).of(member)
            key, scale, ends = "system", atoms.scale, {end: own.get(end, getattr(atoms, end)) for end in _ENDS}
        else:  # on-policy systems and AlphaZero, whose network sets them
            head = config.network.get("critic_network", {}).get("critic_head", {})
            key, scale, ends = "network.critic_network.critic_head", "", {end: head.get(end) for end in _ENDS}
        return " to ".join(f"{key}.{end}={value:g}" for end, value in ends.items() if value is not None) + scale

    def log(self) -> None:
        """Log what has been recorded since the last call."""
        with self._clock("logging"):
            self.pass_on()

    def pass_on(self) -> None:
        """Log what has been recorded, within a phase of the caller."""
        self.pass_on_blocks()
        for record in self._progress.history[self._num_logged :]:
            self._logger.log(record)
        self._num_logged = len(self._progress.history)
        if self._videos is not None:
            self._videos.log(self._logger)

    def pass_on_blocks(self) -> None:
        """Log only the blocks of updates."""
        for record in self._blocks:
            self._logger.log_updates(record)
        self._blocks.clear()


def aggregated(prefix: str, population: Population, scores: Any) -> dict[str, Any]:
    """Return the statistics of the members of a population. `scores`: `[P]` mean episode return of each member."""
    statistics = records.aggregate(np.asarray(scores).tolist(), population.strata)
    return {f"{prefix}/episode_return_{name}": value for name, value in statistics.items()}


def evaluated(population: Population, scores: np.ndarray, failures: Collection[int]) -> dict[str, Any]:
    """Return what the record of an evaluation says about a population. `scores`: `[P]`, the mean episode returns."""
    counted = records.without_frozen(scores, failures)
    # NaN, and a frozen policy, is worse than any number.
    worst = np.isnan(scores) | at_members(failures, scores.shape)
    ranked = np.where(worst, -np.inf, scores)
    return {
        **aggregated("eval", population, counted),
        "population/best_member": best_member(ranked),
        "population/worst_member": int(np.argmin(ranked)),
        "population/failed": sorted(failures),
        **{f"hyperparams/{name}": list(values) for name, values in population.hyperparams.items()},
    }
