"""Mixing the values of agents to a team value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import PyTree
from stoix_like.networks.mixers import MonotonicMixer
from stoix_like.schema import INT32_MAX, Part, between, one_of

SUM, QMIX = "sum", "qmix"
# The entry of the network's parameters that holds the mixer's; networks ignore it.
_ENTRY = "mixer"


@dataclass(frozen=True)
class Mixing(Part):
    """Mixing of the values of agents."""

    mixer: Annotated[str, one_of(SUM, QMIX)] = SUM  # `sum`, or `qmix`
    mixing_embed_dim: Annotated[int, between(1, INT32_MAX)] = 32  # units of the mixing network


class Mixer(NamedTuple):
    """A mixer of values."""

    # `(params, key, view) -> params`: adds the mixer's parameters to the network's, for views `[N * A, ...]`.
    init: Callable[[PyTree, jax.Array, PyTree], PyTree]
    # `(params, values, view, axis) -> values`: mixes rows of agents along an axis to values of games.
    mix: Callable[[PyTree, jax.Array, PyTree, int], jax.Array]


def make_mixer(config: Mixing, num_agents: int) -> Mixer:
    """Build a mixer.

    The state of a game is what its agents observe as the entry `world`, or without it, the views of all of them.
    """
    if config.mixer == SUM:
        return Mixer(
            lambda params, key, view: params,
            lambda params, values, view, axis: jnp.sum(_by_game(values, num_agents, axis), axis=-1),
        )
    network = MonotonicMixer(config.mixing_embed_dim)

    def init(params: PyTree, key: jax.Array, view: PyTree) -> PyTree:
        state = _state(view, 1, num_agents, 0)
        values = jnp.zeros((*state.shape[:-1], num_agents))
        return {**params, "params": {**params["params"], _ENTRY: network.init(key, values, state)["params"]}}

    def mix(params: PyTree, values: jax.Array, view: PyTree, axis: int) -> jax.Array:
        state = _state(view, values.ndim, num_agents, axis)
        mixed: Any = network.apply({"params": params["params"][_ENTRY]}, _by_game(values, num_agents, axis), state)
        return mixed

    return Mixer(init, mix)


def _by_game(rows: jax.Array, num_agents: int, axis: int) -> jax.Array:
    """Move the agents from an axis of rows to the end, `[..., N * A, ...]` to `[..., N, ..., A]`."""
    split = rows.reshape(*rows.shape[:axis], -1, num_agents, *rows.shape[axis + 1 :])
    return jnp.moveaxis(split, axis + 1, -1)


def _state(view: PyTree, batch_dims: int, num_agents: int, axis: int) -> jax.Array:
    """Return the states of games `[..., N, ..., S]`."""
    is_known = isinstance(view, dict) and "world" in view
    leaves = jax.tree.leaves(view["world"] if is_known else view)
    flat = [leaf.reshape(*leaf.shape[:batch_dims], -1).astype(jnp.float32) for leaf in leaves]
    by_game = _by_game(jnp.concatenate(flat, axis=-1), num_agents, axis)
    return by_game[..., 0] if is_known else jnp.swapaxes(by_game, -1, -2).reshape(*by_game.shape[:-2], -1)
