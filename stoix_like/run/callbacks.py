"""The callbacks of a run: called, and saved with its checkpoints."""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, ParamSpec, TypeVar

from stoix_like.callbacks import Callback
from stoix_like.errors import CallbackError, raised_at
from stoix_like.loggers import RunInfo
from stoix_like.policies.make import make_policy
from stoix_like.policies.policy import Policy
from stoix_like.run.learner import copied
from stoix_like.run.population.members import Population
from stoix_like.run.records.recording import Progress
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.files import plain
from stoix_like.user_code import user_errors
from stoix_like.utils.jax_utils import take_member

T = TypeVar("T")
P = ParamSpec("P")


class Callbacks:
    """The callbacks of a run as one; an exception of one of them ends the run with its name.

    Of a run on several hosts, only the first process calls them, and tells the others what they ask for.
    """

    def __init__(self, setup: RunSetup) -> None:
        self._setup, self._callbacks = setup, setup.callbacks
        # Without a state, which would stay on the device.
        self._policies: dict[int, tuple[dict[str, float], Policy]] = {}
        self._checkpoint: int | None = None
        self._state: list[dict[str, Any]] = []
        self._has_state = True

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._callbacks)

    def start(self, info: RunInfo) -> None:
        """Call `on_start`, and check that states can be saved."""
        self._call_all(lambda callback: callback.on_start(info))
        self.state()

    def evaluated(self, progress: Progress, shared: Any, population: Population) -> None:
        """Call `on_evaluation`; add the metrics that it returns to the last record, and note who stops the run."""
        record, processes = progress.history[-1], self._setup.processes
        shared = processes.readable(shared)
        policy = functools.cache(lambda: self._policy(record, shared, population))
        for callback in self._callbacks:
            answer = processes.first(functools.partial(self._answer, callback, record, policy))
            if answer is False:
                progress.stopped_by = progress.stopped_by or type(callback).__name__
            else:
                record |= answer

    def _answer(
        self, callback: Callback, record: Mapping[str, Any], policy: Callable[[], Policy]
    ) -> dict[str, Any] | Literal[False]:
        """Return the metrics of a callback, or False if it stops the run."""
        # Each has a stream of random numbers of its own.
        response = _call(callback, callback.on_evaluation, dict(record), copy.copy(policy()))
        return False if response is False else self._checked(callback, {} if response is None else response, record)

    def saved(self, env_steps: int | None, run_dir: Path) -> None:
        """Call `on_checkpoint` if there is a new one. `env_steps`: of the newest complete one; None without any."""
        if env_steps is None or env_steps == self._checkpoint:
            return
        self._checkpoint = env_steps
        self._call_all(lambda callback: callback.on_checkpoint(env_steps, run_dir))

    def end(self, summary: Mapping[str, Any]) -> None:
        """Call `on_end`."""
        self._call_all(lambda callback: callback.on_end(dict(summary)))

    def state(self) -> list[dict[str, Any]]:
        """Return the state of each callback, in JSON values; once one of them has failed, those before it did.

        The failure ends the run; its last checkpoint needs states, too.
        """
        if self._has_state:
            self._has_state = False
            self._state = self._setup.processes.first(
                lambda: [{"name": type(callback).__name__, "state": _state(callback)} for callback in self._callbacks]
            )
            self._has_state = True
        return self._state

    def restore(self, states: Sequence[Mapping[str, Any]], env_steps: int) -> list[str]:
        """Restore the state of each callback by its name."""
        self._checkpoint = env_steps
        return self._setup.processes.first(lambda: self._restored(list(states)))

    def _restored(self, left: list[Mapping[str, Any]]) -> list[str]:
        for callback in self._callbacks:
            own = next((entry for entry in left if entry["name"] == type(callback).__name__), None)
            if own is not None:
                left.remove(own)
                _call(callback, callback.restore, own["state"])
        return [entry["name"] for entry in left]

    def _call_all(self, function: Callable[[Callback], None]) -> None:
        def call() -> None:
            for callback in self._callbacks:
                _call(callback, function, callback)

        self._setup.processes.first(call)

    def _policy(self, record: Mapping[str, Any], shared: Any, population: Population) -> Policy:
        """Return the policy of the member that evaluated best.

        It has a copy of the state, which training donates: callbacks may keep the policy.
        """
        member = record.get("population/best_member", 0)
        own = take_member(shared, member) if population.num_members > 1 else copied(shared)
        hyperparams = population.of(member)
        slot = member if hyperparams else 0
        if slot not in self._policies or self._policies[slot][0] != hyperparams:
            self._policies[slot] = hyperparams, make_policy(self._setup.parts, own, hyperparams).with_state(None, 0)
        policy = self._policies[slot][1].with_state(own, record["env_steps"])
        policy.member = member
        return policy

    def _checked(self, callback: Callback, response: Any, record: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics of a callback, if they can be recorded."""
        name = type(callback).__name__
        if not isinstance(response, Mapping):
            raise CallbackError(f"{name}.on_evaluation returned {response!r}: return False, metrics by name, or None")
        metrics = {str(key): plain(value) for key, value in response.items()}
        for key, value in metrics.items():
            if key in record:
                raise CallbackError(f"{name}.on_evaluation returned {key}, which the record has already: rename it")
            if (wrong := self._fault(value)) is not None:
                raise CallbackError(f"{name}.on_evaluation returned {key}={value!r}: {wrong}")
        return metrics

    def _fault(self, value: Any) -> str | None:
        """Return what a metric should be instead; None if it is a number, or has one for each member."""
        members, values = self._setup.population.num_members, value if isinstance(value, list) else [value]
        if not all(isinstance(number, bool | int | float | None) for number in values):
            return "return numbers"
        if isinstance(value, list) and (members == 1 or len(value) != members):
            return f"return a number{f', or a list of {members}, one per member' if members > 1 else ''}"
        return None


def _state(callback: Callback) -> Any:
    """Return the state of a callback, if it can be saved."""
    state = plain(_call(callback, callback.state))
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        raise CallbackError(
            f"{type(callback).__name__}.state returned {state!r} ({error}): return JSON values"
        ) from None
    return state


def _call(callback: Callback, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return function(*args, **kwargs)
    except CallbackError:
        raise
    except user_errors() as error:
        raise CallbackError(f"{type(callback).__name__}: {type(error).__name__}: {error}{raised_at(error)}") from error
