"""Learning rates that follow the divergence from the behaviour policy, as functions that are passed to PPO."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Axes, Distribution, Metrics, PyTree
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, above
from stoix_like.systems.parts.optimiser import Gradients
from stoix_like.utils.jax_utils import Scalar

# As in rsl_rl.
TOLERANCE, FACTOR = 2.0, 1.5
RATE = "rate_factor"


@dataclass(frozen=True, kw_only=True)
class KLRate(Part):
    """Hyperparameters of learning rates that follow the divergence from the behaviour policy."""

    desired_kl: Annotated[float | None, above(0.0)] = None  # divergence to adapt learning rates to, in nats; None: off
    min_lr: Annotated[float, above(0.0)] = 1e-5  # smallest rate of the actor while it adapts
    max_lr: Annotated[float, above(0.0)] = 1e-2  # largest rate of the actor, likewise

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Refuse bounds in the wrong order, and a second rule for the learning rates."""
        if self.desired_kl is None:
            return
        if config.gradient_steps == 1:
            raise ConfigError(
                f"system.desired_kl={self.desired_kl} follows the divergence before each gradient step, which is 0"
                " before the only one of an update: use more system.epochs or system.num_minibatches, or null"
            )
        gradients = config.find_part(Gradients)
        if gradients is not None and gradients.decay_learning_rates is not False:
            raise ConfigError(
                f"system.desired_kl={self.desired_kl} adapts the rates: use system.decay_learning_rates=false"
            )
        if self.min_lr > self.max_lr:
            raise ConfigError(f"system.min_lr={self.min_lr} must not exceed system.max_lr={self.max_lr}")
        if not self.min_lr <= (rate := config.actor_lr) <= self.max_lr:
            raise ConfigError(
                f"system.actor_lr={rate}, from which system.desired_kl={self.desired_kl} adapts it, must lie between"
                f" system.min_lr={self.min_lr} and system.max_lr={self.max_lr}"
            )


class LearningRate(NamedTuple):
    """Functions around the gradient steps of an update; the factor of the rate is part of the state of the agent."""

    init: Callable[[], PyTree]  # `() -> factor`
    # `(policy, behaviour) -> metrics`, each `[B]`, where `behaviour()` computes the behaviour policy.
    measure: Callable[[Distribution, Callable[[], Distribution]], Metrics]
    # `(factor, mean metrics) -> (factor, metrics)`, before a gradient step.
    adapt: Callable[[PyTree, Metrics], tuple[PyTree, Metrics]]
    # `(optimiser, factor) -> optimiser`, with all rates multiplied by it.
    apply: Callable[[optax.GradientTransformation, PyTree], optax.GradientTransformation]


FIXED = LearningRate(
    lambda: (), lambda pi, behaviour: {}, lambda factor, metrics: (factor, metrics), lambda optim, factor: optim
)
"""The optimiser sets its own rate."""


def make_kl_rate(config: KLRate, learning_rate: Scalar, axes: Axes) -> LearningRate:
    """Build a learning rate that keeps the divergence from the behaviour policy near a desired one.

        lr <- max(lr / 1.5, min_lr)   if KL > 2 desired_kl
        lr <- min(1.5 lr, max_lr)     if 0 < KL < desired_kl / 2

    The divergence is measured on a minibatch before its gradient step, which has the new rate. All rates of the
    optimiser change by the same factor, which is what is kept: members follow changes of their initial rates.

    Source: Schwarke et al. 2025, "RSL-RL", arXiv:2509.10771; the rule of its PPO.
    """
    desired_kl = config.desired_kl
    if desired_kl is None:
        return FIXED
    smallest, largest = config.min_lr / learning_rate, config.max_lr / learning_rate

    def adapt(factor: jax.Array, metrics: Metrics) -> tuple[jax.Array, Metrics]:
        kl = axes.mean(metrics["kl"])
        slower = jnp.where(kl > TOLERANCE * desired_kl, jnp.maximum(factor / FACTOR, smallest), factor)
        factor = jnp.where((kl > 0.0) & (kl < desired_kl / TOLERANCE), jnp.minimum(factor * FACTOR, largest), slower)
        return factor, metrics | {"learning_rate": factor * learning_rate}

    def apply(optim: optax.GradientTransformation, factor: jax.Array) -> optax.GradientTransformation:
        def update(grads: PyTree, state: PyTree, params: PyTree = None) -> tuple[PyTree, PyTree]:
            updates, state = optim.update(grads, state, params)
            return jax.tree.map(lambda update: factor * update, updates), state

        return optax.GradientTransformation(optim.init, update)

    def measure(pi: Distribution, behaviour: Callable[[], Distribution]) -> Metrics:
        return {"kl": behaviour().kl_divergence(pi)}

    return LearningRate(lambda: jnp.ones((), jnp.float32), measure, adapt, apply)
