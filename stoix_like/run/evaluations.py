"""Evaluations of a run, and the best parameters of its members."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import jax
import numpy as np

from stoix_like.run.host.saved_state import Best
from stoix_like.run.learner import Learner
from stoix_like.run.records import records
from stoix_like.run.records.recording import aggregated, evaluated
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.recorded_runs import EPISODE_RETURNS
from stoix_like.storage.returns import at_members

ABSOLUTE_FACTOR = 10
# Over all members: listings read every summary.
MAX_EPISODE_RETURNS = 20_000


class Evaluations:
    """Turns episodes into records, and keeps the best parameters."""

    def __init__(self, setup: RunSetup, learner: Learner) -> None:
        self.best: Best | None = None
        self._setup, self._learner = setup, learner
        self._warmup_steps = setup.plan.warmup_steps

    def record(self, episodes: Any, env_steps: int, failures: Collection[int]) -> dict[str, Any]:
        """Describe an evaluation of the current parameters, and keep them where they are the best."""
        config, population = self._setup.config, self._learner.population
        record = records.evaluation("eval", episodes, config.arch.num_eval_episodes)
        scores = np.asarray(record["eval/episode_return_mean"])
        if config.keeps_best:
            # A policy that is frozen does not improve, however its episodes go.
            frozen = at_members(failures, scores.shape)
            current = self._current(np.where(frozen, np.nan, scores), env_steps)
            self.best = self._better(current, self.best, ~frozen if config.arch.keeps_last else None)
        if population.num_members == 1:
            return {**record, **{f"hyperparams/{name}": value for name, value in population.of(0).items()}}
        return {**record, **evaluated(population, scores, failures)}

    def absolute(self, last: Mapping[str, Any], env_steps: int, between_batches: Callable[[], None]) -> dict[str, Any]:
        """Evaluate the best parameters over more episodes."""
        if self.best is None:
            return {}
        # A member without best parameters from after an update has its last ones, as in a loaded policy.
        untrained = self.best.env_steps <= self._warmup_steps
        returns = np.asarray(last["eval/episode_return_mean"])
        # One that diverged before it had any has no result.
        lost = untrained & at_members(last.get("population/failed", ()), returns.shape)
        best = self._better(self._current(returns, env_steps), self.best, untrained)
        count, alone = self._setup.config.arch.num_eval_episodes, self._learner.population.num_members == 1
        # Numbers that no other evaluation of the run uses.
        first = self._setup.plan.num_updates + 1
        batches = []
        for batch in range(ABSOLUTE_FACTOR):
            batches.append(self._learner.play(first + batch, best.shared, {} if alone else best.hyperparams))
            between_batches()
        trimmed = [jax.tree.map(lambda leaf: leaf[..., :count], batch) for batch in batches]
        episodes = jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1), *trimmed)
        episodes = episodes._replace(returns=np.where(lost[..., None], np.nan, episodes.returns))
        record = records.evaluation("absolute", episodes, ABSOLUTE_FACTOR * count)
        record["absolute/env_steps"] = best.env_steps.tolist()
        stored = max(1, MAX_EPISODE_RETURNS // self._learner.population.num_members)
        record[EPISODE_RETURNS] = np.float64(episodes.returns[..., :stored]).tolist()
        if alone:
            return record
        return {**record, **aggregated("absolute", self._learner.population, record["absolute/episode_return_mean"])}

    def restore(self, shared: Any, host_values: Mapping[str, Any]) -> None:
        """Take the best parameters from a checkpoint."""
        best = Best.from_checkpoint(shared, host_values)
        self.best = best._replace(hyperparams=self._learner.population.arrays() | dict(best.hyperparams))

    def _current(self, returns: np.ndarray, env_steps: int) -> Best:
        steps = np.full(returns.shape, env_steps)
        return Best(self._learner.state.shared, returns, steps, self._learner.population.arrays())

    def _better(self, current: Best, best: Best | None, chosen: np.ndarray | None) -> Best:
        return current.unless_better(best, self._learner.programs.select, self._warmup_steps, chosen)
