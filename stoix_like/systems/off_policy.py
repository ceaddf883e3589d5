"""What systems that learn from replay share: hyperparameters, optimisers, one gradient step, heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Axes, Metrics, PyTree, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.schema import above, at_least, between
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay import ReplayConfig
from stoix_like.utils.training import clip_by_global_norm, make_learning_rate_schedule

Loss = Callable[..., tuple[jax.Array, Metrics]]
"""A function `(params, ...) -> (loss, metrics)`."""


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(ReplayConfig):
    """Hyperparameters of every system with target networks.

    Attributes:
        decay_learning_rates: linearly to zero over the run.
        max_grad_norm: the gradients of each optimiser are clipped to this norm.
        tau: step of the target parameters towards those that learn.
    """

    decay_learning_rates: bool
    max_grad_norm: Annotated[float, above(0.0)]
    tau: Annotated[float, between(0.0, 1.0)]


@dataclass(frozen=True, kw_only=True)
class CategoricalConfig(OffPolicyConfig):
    """Hyperparameters of a distribution of returns over fixed values.

    Attributes:
        num_atoms: values that a return may have.
        vmin: the smallest of them, in the unit of the scaled rewards.
        vmax: the largest of them.
    """

    num_atoms: Annotated[int, at_least(2)]
    vmin: float
    vmax: float

    def check(self, num_envs: int, num_shards: int) -> None:
        """Refuse a support that is upside down, as well."""
        super().check(num_envs, num_shards)
        if self.vmin >= self.vmax:
            raise ConfigError(f"system.vmin={self.vmin} must be less than system.vmax={self.vmax}")

    @property
    def support(self) -> dict[str, Any]:
        """What the head of a network is made with; it may be traced."""
        return {"num_atoms": self.num_atoms, "vmin": self.vmin, "vmax": self.vmax}


def make_optimiser(
    config: OffPolicyConfig, spec: SystemSpec, lr: Scalar, period: int = 1
) -> optax.GradientTransformation:
    """Adam behind a clipped gradient.

    Args:
        config: hyperparameters.
        spec: sizes, for the decay.
        lr: step size.
        period: gradient steps of the critic per step of this optimiser, at least 1.

    Returns:
        The optimiser.
    """
    rate: Any = lr
    if config.decay_learning_rates:
        schedule = make_learning_rate_schedule(lr, spec.num_updates, config.epochs, 1)

        def rate(count: Any) -> jax.Array:
            return schedule(count * period)

    return optax.chain(clip_by_global_norm(config.max_grad_norm), optax.adam(rate))


def gradient_step(
    loss: Loss, optim: optax.GradientTransformation, axes: Axes, params: PyTree, opt_state: PyTree, *args: Any
) -> tuple[PyTree, PyTree, Metrics]:
    """One step of an optimiser down a loss that is averaged over all shards.

    Args:
        loss: `(params, *args) -> (loss, metrics)`, over the batch of this shard.
        optim: the optimiser.
        axes: the axes that the batch is spread over.
        params: parameters that learn.
        opt_state: the optimiser's state.
        *args: further arguments of `loss`.

    Returns:
        Parameters, optimiser state, and the metrics of the loss.
    """
    grads, metrics = jax.grad(loss, has_aux=True)(params, *args)
    updates, opt_state = optim.update(axes.mean(grads), opt_state, params)
    return optax.apply_updates(params, updates), opt_state, metrics


def periodically(
    step: Callable[[PyTree], tuple[PyTree, Metrics]], operand: PyTree, count: jax.Array, period: int
) -> tuple[PyTree, Metrics]:
    """Take a step at every so many-th count only.

    Args:
        step: `(operand) -> (operand, metrics)`.
        operand: what the step changes.
        count: of calls before this one.
        period: calls per step, at least 1.

    Returns:
        The operand afterwards, and the metrics: times `period` where the step was taken and zero elsewhere, so that
        their mean over a whole number of periods is the mean over steps.
    """
    if period == 1:
        return step(operand)
    _, metrics = jax.eval_shape(step, operand)

    def taken(operand: PyTree) -> tuple[PyTree, Metrics]:
        operand, metrics = step(operand)
        return operand, jax.tree.map(lambda metric: period * metric, metrics)

    def skipped(operand: PyTree) -> tuple[PyTree, Metrics]:
        return operand, jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), metrics)

    return jax.lax.cond((count + 1) % period == 0, taken, skipped, operand)


def with_head(
    spec: SystemSpec, hyperparams: Mapping[str, Any], network: str = "actor_network", head: str = "action_head"
) -> SystemSpec:
    """A spec with a head that has hyperparameters of the system, which may be traced.

    Args:
        spec: of the system.
        hyperparams: attributes of the head, by name.
        network: which network the head belongs to.
        head: which of its parts it is.

    Returns:
        The spec.

    Raises:
        ConfigError: the head has no such attribute.
    """
    parts = vars(getattr(spec.networks, network))
    for name in hyperparams:
        if not hasattr(parts[head], name):
            raise ConfigError(
                f"network.{network}.{head}={type(parts[head]).__name__} has no {name}: choose the network that the"
                " system brings"
            )
    changed = SimpleNamespace(**parts | {head: parts[head].clone(**hyperparams)})
    return spec._replace(networks=SimpleNamespace(**vars(spec.networks) | {network: changed}))
