"""Updates that stop where the policy is too far from the behaviour policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes, Metrics, PyTree
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.jax_utils import Scalar, apply_where
from stoix_like.utils.training import advance_schedules

Step = Callable[[PyTree, PyTree], tuple[PyTree, Metrics]]
"""A gradient step `(carry, inputs) -> (carry, metrics)`, the body of a loop over minibatches."""


class Stop(NamedTuple):
    """Functions around the gradient steps of one update, which may end it early."""

    start: Callable[[PyTree], PyTree]  # `(shared) -> carry`, before the first step
    guard: Callable[[Step], Step]  # `(step on shared) -> step on carry`
    # `(carry, packed metrics of all steps) -> (shared, packed mean metrics)`.
    finish: Callable[[PyTree, Metrics], tuple[PyTree, Metrics]]


def _mean(metrics: PyTree) -> PyTree:
    return jax.tree.map(lambda leaf: jnp.mean(leaf, (0, 1)), metrics)


NEVER = Stop(lambda shared: shared, lambda step: step, lambda shared, metrics: (shared, _mean(metrics)))
"""All gradient steps are taken."""

# As in Spinning Up and stable-baselines3.
TOLERANCE = 1.5


def make_kl_stop(target_kl: Scalar | None, axes: Axes) -> Stop:
    """Build a limit on the divergence of one update from its behaviour policy.

    The first minibatch with an `approx_kl` above 1.5 times the target ends the update: its gradient step and all
    later ones leave parameters and optimiser states as they are. Learning rate schedules count them.

    `target_kl`: target divergence per update, in nats; None for no limit.
    """
    if target_kl is None:
        return NEVER

    def guard(step: Step) -> Step:
        def evaluate(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Metrics]:
            shared, _, evaluated, taken = carry
            after, metrics = step(shared, inputs)
            # NaN stops the update, too.
            near = axes.mean(metrics["approx_kl"]) <= TOLERANCE * target_kl
            after = jax.tree.map(lambda new, old: jnp.where(near, new, old), after, shared)
            return (after, near, evaluated + 1, taken + near), metrics

        def guarded(carry: PyTree, inputs: PyTree) -> tuple[PyTree, Metrics]:
            _, like = jax.eval_shape(evaluate, carry, inputs)
            nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
            return apply_where(carry[1], lambda both: evaluate(both[0], inputs), (carry, nothing))

        return guarded

    def start(shared: PyTree) -> PyTree:
        return shared, jnp.ones((), bool), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)

    def finish(carry: PyTree, metrics: PyTree) -> tuple[PyTree, Metrics]:
        shared, _, evaluated, taken = carry
        skipped = math.prod(jax.tree.leaves(metrics)[0].shape[:2]) - taken
        opt_states = advance_schedules(shared.opt_states, skipped)
        means = unpack(jax.tree.map(lambda leaf: jnp.sum(leaf, (0, 1)) / evaluated, metrics))
        return shared._replace(opt_states=opt_states), means | {"skipped_steps": skipped.astype(jnp.float32)}

    return Stop(start, guard, finish)
