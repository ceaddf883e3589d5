"""Kinds of environments that every system is tried on, and the network for each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.composition import group_choices
from stoix_like.envs import Box, Dict, Discrete, Environment
from stoix_like.envs.environment import restart, transition

LENGTH = 5
_IMAGE = Box(0, 255, (6, 6, 1), jnp.uint8)
_VECTOR = Box(-1.0, 1.0, (3,))


class Guess(Environment):
    """Episodes of `LENGTH` steps that pay 1 for the action that the first observation shows."""

    action_space = Discrete(3)
    observation_space = _VECTOR
    truncates_after = 2**31 - 1

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        """See `Environment.reset`."""
        state = jnp.zeros((), jnp.int32), jax.random.randint(key, (), 0, 3)
        return state, restart(self.observe(state))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """See `Environment.step`."""
        del key
        steps, wanted = state[0] + 1, state[1]
        return (steps, wanted), transition(self.observe((steps, wanted)), action == wanted, steps >= LENGTH, False)

    def observe(self, state: Any) -> Observation:
        """Return what an agent sees."""
        return Observation(jax.nn.one_hot(state[1], 3))


class Masked(Guess):
    """The same, with the action of the number of steps illegal."""

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        return super().observe(state)._replace(action_mask=jnp.arange(3) != state[0] % 3)


class Image(Guess):
    """The same, as an image with a bright column."""

    observation_space = _IMAGE

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        row = 255 * (jnp.arange(6) == state[1])
        return Observation(jnp.broadcast_to(row[:, None], (6, 6, 1)).astype(jnp.uint8))


class Dictionary(Guess):
    """The same, as an image and a vector."""

    observation_space = Dict({"image": _IMAGE, "vector": _VECTOR})

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        image = jnp.full((6, 6, 1), 50 * state[1]).astype(jnp.uint8)
        return Observation({"image": image, "vector": jax.nn.one_hot(state[1], 3)})


class Continuous(Guess):
    """The same, with an action near one of three values."""

    action_space = Box(-1.0, 1.0, (2,))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """See `Environment.step`."""
        return super().step(key, state, jnp.round(action[0]).astype(jnp.int32) + 1)


class Memory(Guess):
    """The same, with the action shown in the first observation alone."""

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        return Observation(jnp.where(state[0] == 0, jax.nn.one_hot(state[1], 3), 0.0))


class Kind(NamedTuple):
    """A kind of environment: its class, and the prefix of networks for it in place of `mlp` and `rnn`."""

    environment: type[Environment]
    networks: tuple[tuple[str, str], ...] = ()


_CONVOLUTIONAL = (("mlp", "cnn"), ("rnn", "cnn_rnn"))
KINDS = {
    "vector": Kind(Guess),
    "masked": Kind(Masked),
    "image": Kind(Image, _CONVOLUTIONAL),
    "dictionary": Kind(Dictionary, _CONVOLUTIONAL),
    "continuous": Kind(Continuous),
    "memory": Kind(Memory),
}


def networks_for(default: str, kind: Kind) -> list[str]:
    """Return the networks to try, by name: those for the kind, then the system's own."""
    first, _, rest = default.partition("_")
    known = group_choices("network")
    names = ("_".join(filter(None, (new, rest))) for old, new in kind.networks if first == old)
    return [*(name for name in names if name in known), default]
