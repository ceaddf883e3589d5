"""Components of systems that learn from a replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Metrics, PyTree
from stoix_like.utils.accelerate.packing import pack_metrics, pack_params, scan, unpack
from stoix_like.utils.accelerate.randomness import hoist

T = TypeVar("T")

# The random numbers of all gradient steps of an update are drawn together, if they take less.
_MAX_RANDOM_BYTES = 2**20


def replay_epochs(
    step: Callable[..., tuple[T, Metrics]], carry: T, key: jax.Array, epochs: int, counts: jax.Array | None = None
) -> tuple[T, Metrics]:
    """Take several gradient steps, each on a new batch of a replay buffer, and average their metrics.

    `counts`: `[epochs]`, a further argument of each step; None where steps do not count.
    """
    # A replay buffer stays as it is.
    packed = carry._replace(shared=pack_params(carry.shared)) if isinstance(carry, Agent) else pack_params(carry)

    keys = jax.random.split(key, epochs)

    def epoch(state: tuple[PyTree, jax.Array | None], key: jax.Array) -> tuple[PyTree, PyTree]:
        carry, count = state
        carry, metrics = step(carry, *jax.random.split(key), *(() if count is None else (count,)))
        return carry, pack_metrics(metrics)

    first_count = None if counts is None else counts[0]
    draw, epoch = hoist(epoch, (packed, first_count), keys[0], _MAX_RANDOM_BYTES // epochs)
    inputs = counts, jax.vmap(draw)(keys)
    with jax.named_scope("epoch"):
        carry, metrics = scan(lambda carry, inputs: epoch((carry, inputs[0]), inputs[1]), packed, inputs, epochs)
    return unpack(carry), unpack(jax.tree.map(lambda rows: jnp.mean(rows, axis=0), metrics))
