"""Learning rates that follow the divergence from the behaviour policy, as functions that are handed to PPO."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Axes, Distribution, Metrics, PyTree
from stoix_like.errors import ConfigError
from stoix_like.utils.jax_utils import Scalar

# As in rsl_rl.
TOLERANCE, FACTOR = 2.0, 1.5


class LearningRate(NamedTuple):
    """Functions around the gradient steps of an update; the rate is part of the state of the agent.

    Attributes:
        init: `() -> rate`.
        measure: `(policy, behaviour) -> metrics`, each `[B]`, where `behaviour()` computes the behaviour policy.
        adapt: `(rate, mean metrics) -> (rate, metrics)`, before a gradient step.
        apply: `(optimiser, rate) -> optimiser`, with this rate.
    """

    init: Callable[[], PyTree]
    measure: Callable[[Distribution, Callable[[], Distribution]], Metrics]
    adapt: Callable[[PyTree, Metrics], tuple[PyTree, Metrics]]
    apply: Callable[[optax.GradientTransformation, PyTree], optax.GradientTransformation]


FIXED = LearningRate(
    lambda: (), lambda pi, behaviour: {}, lambda rate, metrics: (rate, metrics), lambda optim, rate: optim
)
"""The optimiser sets its own rate."""


def check_kl_rate(desired_kl: Scalar | None, bounds: tuple[Scalar, Scalar], decays: bool) -> None:
    """Refuse bounds in the wrong order, and a second rule for the learning rates; see `make_kl_rate`.

    Args:
        desired_kl: divergence from the behaviour policy, in nats, or None.
        bounds: smallest and largest rate.
        decays: whether the learning rates decay over the run.

    Raises:
        ConfigError: names the keys.
    """
    if desired_kl is not None and decays:
        raise ConfigError(f"system.desired_kl={desired_kl} adapts the rates: use system.decay_learning_rates=false")
    if desired_kl is not None and bounds[0] > bounds[1]:
        raise ConfigError(f"system.min_lr={bounds[0]} must not exceed system.max_lr={bounds[1]}")


def make_kl_rate(
    desired_kl: Scalar | None, learning_rate: Scalar, bounds: tuple[Scalar, Scalar], axes: Axes
) -> LearningRate:
    """Build a learning rate that keeps the divergence from the behaviour policy near a desired one.

        lr <- max(lr / 1.5, min_lr)   if KL > 2 desired_kl
        lr <- min(1.5 lr, max_lr)     if 0 < KL < desired_kl / 2

    The divergence is that of a minibatch, before its gradient step, which has the new rate. All rates of the optimiser
    change by the same factor.

    Source: Schwarke et al. 2025, "RSL-RL", arXiv:2509.10771; the rule of its PPO.

    Args:
        desired_kl: divergence from the behaviour policy, in nats; None for a rate that the optimiser sets.
        learning_rate: the initial rate, with which the optimiser was built.
        bounds: smallest and largest rate.
        axes: the axes that a minibatch is spread over.

    Returns:
        The functions; the metrics are `kl` and `learning_rate`.
    """
    if desired_kl is None:
        return FIXED
    smallest, largest = bounds

    def adapt(rate: jax.Array, metrics: Metrics) -> tuple[jax.Array, Metrics]:
        kl = axes.mean(metrics["kl"])
        slower = jnp.where(kl > TOLERANCE * desired_kl, jnp.maximum(rate / FACTOR, smallest), rate)
        rate = jnp.where((kl > 0.0) & (kl < desired_kl / TOLERANCE), jnp.minimum(rate * FACTOR, largest), slower)
        return rate, metrics | {"learning_rate": rate}

    def apply(optim: optax.GradientTransformation, rate: jax.Array) -> optax.GradientTransformation:
        def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
            updates, state = optim.update(grads, state, params)
            return jax.tree.map(lambda update: (rate / learning_rate) * update, updates), state

        return optax.GradientTransformation(optim.init, update)

    def measure(pi: Distribution, behaviour: Callable[[], Distribution]) -> Metrics:
        return {"kl": behaviour().kl_divergence(pi)}

    return LearningRate(lambda: jnp.asarray(learning_rate, jnp.float32), measure, adapt, apply)
