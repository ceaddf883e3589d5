"""Components of systems that learn from a replay buffer."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Agent, Metrics, OnlineAndTarget, PyTree
from stoix_like.utils.accelerate.packing import pack_metrics, pack_params, scan, unpack
from stoix_like.utils.accelerate.randomness import hoist
from stoix_like.utils.jax_utils import Scalar

T = TypeVar("T")

# The random numbers of all gradient steps of an update are drawn together, if they take less.
_MAX_RANDOM_BYTES = 2**20


class TargetParameters(NamedTuple):
    """Slowly updated copies of parameters.

    Attributes:
        init: `(online) -> params`, with target parameters that are copies: one buffer cannot be donated twice.
        update: `(params) -> params`, after a gradient step on the online parameters.
    """

    init: Callable[[PyTree], OnlineAndTarget]
    update: Callable[[OnlineAndTarget], OnlineAndTarget]


NO_TARGET = TargetParameters(lambda online: OnlineAndTarget(online, ()), lambda params: params)
"""There are no target parameters."""


def make_soft_target(tau: Scalar) -> TargetParameters:
    """Build target parameters that take a Polyak step of size `tau` towards the online ones."""

    def update(params: OnlineAndTarget) -> OnlineAndTarget:
        return params._replace(target=optax.incremental_update(params.online, params.target, tau))

    return TargetParameters(lambda online: OnlineAndTarget(online, jax.tree.map(jnp.copy, online)), update)


def replay_epochs(
    step: Callable[..., tuple[T, Metrics]], carry: T, key: jax.Array, epochs: int, counts: jax.Array | None = None
) -> tuple[T, Metrics]:
    """Take several gradient steps, each on a new batch of a replay buffer, and average their metrics.

    Args:
        step: `(carry, sample_key, step_key, count) -> (carry, metrics)`; the parameters in its carry may be packed.
        carry: the state before the first step, the shared one of an agent, or the agent.
        key: one key.
        epochs: number of steps.
        counts: `[epochs]`, the last argument of each step; None where steps do not count.

    Returns:
        The state after the last step, and the mean metrics.
    """
    # A replay buffer stays as it is.
    packed = carry._replace(shared=pack_params(carry.shared)) if isinstance(carry, Agent) else pack_params(carry)

    keys = jax.random.split(key, epochs)

    def epoch(state: tuple[PyTree, jax.Array | None], key: jax.Array) -> tuple[PyTree, PyTree]:
        carry, count = state
        carry, metrics = step(carry, *jax.random.split(key), count)
        return carry, pack_metrics(metrics)

    first_count = None if counts is None else counts[0]
    draw, epoch = hoist(epoch, (packed, first_count), keys[0], _MAX_RANDOM_BYTES // epochs)
    inputs = counts, jax.vmap(draw)(keys)
    with jax.named_scope("epoch"):
        carry, metrics = scan(lambda carry, inputs: epoch((carry, inputs[0]), inputs[1]), packed, inputs, epochs)
    return unpack(carry), unpack(jax.tree.map(lambda rows: jnp.mean(rows, axis=0), metrics))
