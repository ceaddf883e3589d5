"""Precision of products of matrices in environments."""

from __future__ import annotations

import jax

from stoix_like.base_types import TimeStep
from stoix_like.envs.environment import State, VectorEnvironment
from stoix_like.envs.wrappers.base import Wrapper


class MatmulPrecision(Wrapper, keeps_ends=True):
    """Computes products of matrices in a precision of its own."""

    def __init__(self, env: VectorEnvironment, precision: str) -> None:
        super().__init__(env)
        self._precision = precision

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        with jax.default_matmul_precision(self._precision):
            return super().reset(keys)

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        with jax.default_matmul_precision(self._precision):
            return super().next_episodes(keys, state)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        with jax.default_matmul_precision(self._precision):
            return super().step(keys, state, action)

    def start_rollout(self, key: jax.Array, state: State) -> State:
        with jax.default_matmul_precision(self._precision):
            return super().start_rollout(key, state)
