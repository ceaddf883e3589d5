"""An environment of images that costs next to nothing, to measure or to compile systems that learn from pixels."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.envs import Box, Discrete, Environment
from stoix_like.envs.environment import restart, transition


class Dot(Environment):
    """A bright row that the actions move up and down; the reward is 1 while it is in the middle of the image.

    Args:
        size: height and width of the image in pixels.
    """

    action_space = Discrete(6)

    def __init__(self, size: int = 64) -> None:
        self.size = size
        self.observation_space = Box(0, 255, (size, size, 3), jnp.uint8)

    def reset(self, key: jax.Array) -> tuple[jax.Array, TimeStep]:
        """See `Environment.reset`."""
        row = jax.random.randint(key, (), 0, self.size)
        return row, restart(self._observe(row))

    def step(self, key: jax.Array, state: jax.Array, action: jax.Array) -> tuple[jax.Array, TimeStep]:
        """See `Environment.step`."""
        del key
        row = jnp.clip(state + action - 3, 0, self.size - 1)
        in_middle = jnp.abs(row - self.size // 2) < 4
        return row, transition(self._observe(row), in_middle.astype(jnp.float32), False, False)

    def _observe(self, row: jax.Array) -> Observation:
        rows = jnp.arange(self.size)[:, None, None] == row
        return Observation(jnp.broadcast_to(rows, self.observation_space.shape).astype(jnp.uint8) * 255)
