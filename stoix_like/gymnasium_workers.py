"""Environments of gymnasium as batches step them; the processes of `env.vectorization=async` import this, not jax."""

from __future__ import annotations

import copy
import multiprocessing.connection
import os
import threading
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from stoix_like.exact import as_spec

_NUMBER, _FLAG = np.float64(), np.bool_()


class Declared(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that returns observations of a space, copies of them if asked for, and no information.

    gymnasium would join the information of steps and of resets, which nothing reads, in arrays of one type and shape.
    In SAME_STEP, an environment that reuses its arrays would overwrite the last observation of an episode.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], space: gymnasium.Space[Any], copies: bool) -> None:
        super().__init__(env)
        self.observation_space, self._copies = space, copies

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        return self._own(self.env.reset(**kwargs)[0]), {}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step."""
        observation, reward, terminated, truncated, _ = self.env.step(action)
        reward = as_spec(_NUMBER, reward, "reward")
        terminated = as_spec(_FLAG, terminated, "terminated")
        truncated = as_spec(_FLAG, truncated, "truncated")
        return self._own(observation), reward, terminated, truncated, {}

    def _own(self, observation: Any) -> Any:
        declared = as_spec(self.observation_space, observation, "observation")
        return copy.deepcopy(declared) if self._copies else declared


class _Told(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that sends exceptions to the parent: not each can be pickled, nor built from its message."""

    def reset(self, **kwargs: Any) -> Any:
        return self._attempt(self.env.reset, **kwargs)

    def step(self, action: Any) -> Any:
        return self._attempt(self.env.step, action)

    @staticmethod
    def _attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def build_in_worker(
    constructor: Callable[[], gymnasium.Env[Any, Any]], space: gymnasium.Space[Any], timeout: float
) -> gymnasium.Env[Any, Any]:
    """Build an environment in a process that exits when its parent dies, even if the environment hangs.

    It also exits if the environment is not built in time.
    """
    parent, built = multiprocessing.parent_process(), threading.Event()

    def exit_with_parent() -> None:
        assert parent is not None
        if multiprocessing.connection.wait([parent.sentinel], timeout) or not built.is_set():
            os._exit(1)
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    # None in the process that reads the spaces of an example.
    if parent is not None:
        threading.Thread(target=exit_with_parent, daemon=True).start()
    env = _Told(Declared(constructor(), space, copies=True))
    built.set()
    return env
