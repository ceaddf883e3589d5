"""Callbacks: your code, which runs at the evaluations of a run.

```python
import stoix_like
from stoix_like.callbacks import StopAtReturn

stoix_like.train("ppo/ff_ppo", ["env=gymnax/cartpole"], callbacks=[StopAtReturn(475)])
```

Or by configuration: `callbacks=[{_target_: stoix_like.callbacks.StopAtReturn, episode_return: 475}]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from stoix_like.errors import CallbackError, ConfigError, raised_at, reason
from stoix_like.user_code import import_object, name_of, user_errors

if TYPE_CHECKING:
    from stoix_like.loggers.base import RunInfo
    from stoix_like.policies.policy import Policy

Response = Mapping[str, Any] | Literal[False] | None
"""Result of `on_evaluation`: False stops the run, a mapping adds metrics to the record."""


class Callback:
    """Base class of callbacks; override what you need.

    A callback runs on the host between two intervals of training. It must not change the record or the policy.
    """

    def on_start(self, info: RunInfo) -> None:
        """Run before training starts, or resumes.

        Args:
            info: description of the run.
        """

    def on_evaluation(self, record: Mapping[str, Any], policy: Policy) -> Response:
        """Run after each evaluation, the one before training included.

        Args:
            record: the metrics of the interval and of the evaluation; per-member values of a population are lists.
            policy: the current policy; of a population, the member's that just evaluated best.

        Returns:
            False to stop the run, metrics by name to add to the record, or None. A metric is a number; of a population,
            it may also be a list with one number per member.
        """
        return None

    def on_checkpoint(self, env_steps: int, run_dir: Path) -> None:
        """Run once a checkpoint is complete.

        Args:
            env_steps: environment steps of each member, the name of the checkpoint.
            run_dir: the run directory.
        """

    def on_end(self, summary: Mapping[str, Any]) -> None:
        """Run at the end of a complete run.

        Args:
            summary: the results, the content of `summary.json`.
        """

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs, in JSON values; it is saved with each checkpoint."""
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state of the run that is resumed.

        Args:
            state: what `state` returned.
        """


class StopAtReturn(Callback):
    """Stops a run at the first evaluation with at least a given return.

    Args:
        episode_return: mean episode return; of a population, the interquartile mean over members.
    """

    def __init__(self, episode_return: float) -> None:
        self.episode_return = float(episode_return)

    def on_evaluation(self, record: Mapping[str, Any], policy: Policy) -> Response:
        return False if _score(record) >= self.episode_return else None


class StopWithoutImprovement(Callback):
    """Stops a run after a number of evaluations without a better return.

    Args:
        evaluations: evaluations since the best one after which the run stops.
        min_improvement: an improvement exceeds the best return by more than this.
    """

    def __init__(self, evaluations: int, min_improvement: float = 0.0) -> None:
        _check_count("evaluations", evaluations)
        self.evaluations, self.min_improvement = int(evaluations), float(min_improvement)
        self._best, self._waited = -math.inf, 0

    def on_start(self, info: RunInfo) -> None:
        """Start from scratch with each run that does not resume."""
        if not info.history:
            self._best, self._waited = -math.inf, 0

    def on_evaluation(self, record: Mapping[str, Any], policy: Policy) -> Response:
        score = _score(record)
        if self._best == -math.inf or score > self._best + self.min_improvement:
            self._best, self._waited = (score if math.isfinite(score) else self._best), 0
            return None
        self._waited += 1
        return False if self._waited >= self.evaluations else None

    def state(self) -> dict[str, Any]:
        return {"best": None if self._best == -math.inf else self._best, "waited": self._waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._best = -math.inf if state["best"] is None else state["best"]
        self._waited = state["waited"]


class AddMetrics(Callback):
    """Adds metrics that a function derives from each record.

    Args:
        function: `(record) -> metrics by name`, or its import path.
    """

    def __init__(self, function: Callable[[Mapping[str, Any]], Mapping[str, Any]] | str) -> None:
        self._function = _imported(function)

    def on_evaluation(self, record: Mapping[str, Any], policy: Policy) -> Response:
        return dict(self._function(record))


class EvaluatePolicy(Callback):
    """Evaluates the current policy by a custom function.

    Args:
        function: `(policy) -> metrics by name`, or its import path.
        every_evals: number of evaluations between two calls; the first call is before training.
    """

    def __init__(self, function: Callable[[Policy], Mapping[str, Any]] | str, every_evals: int = 1) -> None:
        _check_count("every_evals", every_evals)
        self._function, self._every, self._number = _imported(function), int(every_evals), 0

    def on_start(self, info: RunInfo) -> None:
        """Start from scratch with each run that does not resume."""
        if not info.history:
            self._number = 0

    def on_evaluation(self, record: Mapping[str, Any], policy: Policy) -> Response:
        self._number += 1
        if (self._number - 1) % self._every != 0:
            return None
        try:
            return dict(self._function(policy))
        except user_errors() as error:
            where = f"EvaluatePolicy(function={name_of(self._function)})"
            raise CallbackError(f"{where}: {reason(error)}{raised_at(error)}") from error

    def state(self) -> dict[str, Any]:
        return {"number": self._number}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._number = state["number"]


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, (int, float)) or not 1 <= value < math.inf:
        raise ConfigError(f"{name}={value} must be at least 1 and finite")


def _score(record: Mapping[str, Any]) -> float:
    return float(record.get("eval/episode_return_iqm", record["eval/episode_return_mean"]))


def _imported(function: Any) -> Any:
    """Import a function that is given by its path."""
    if not isinstance(function, str):
        return function
    return import_object(function, "function", "use the import path of a function, my_module.my_function")
