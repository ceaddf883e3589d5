"""Optimisers and gradient steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import jax
import optax

from stoix_like.base_types import Axes, PyTree, SystemConfig, SystemSpec
from stoix_like.schema import above
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.packing import unpack
from stoix_like.utils.training import clip_by_global_norm, make_learning_rate_schedule

Loss = Callable[..., tuple[jax.Array, Any]]
"""A function `(params, ...) -> (loss, metrics)`."""
Transform = Callable[[Any], optax.GradientTransformation]
"""A function `(learning_rate) -> GradientTransformation`."""


@dataclass(frozen=True, kw_only=True)
class GradientConfig(SystemConfig):
    """Hyperparameters of gradient descent.

    Attributes:
        decay_learning_rates: whether learning rates decay linearly to zero over the run.
        max_grad_norm: largest global norm of the gradients of each optimiser.
        adam_eps: constant that Adam adds to the root mean square of the gradients, in their units.
    """

    decay_learning_rates: bool
    max_grad_norm: Annotated[float, above(0.0)]
    adam_eps: Annotated[float, above(0.0)] = 1e-8

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        raise NotImplementedError

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """See `SystemConfig.schedules`."""
        others = super().schedules(updates, num_updates)
        if not self.decay_learning_rates:
            return others
        rate = float(make_learning_rate_schedule(1.0, num_updates, 1, 1)(updates))
        return {"learning rates (fraction of the initial ones)": rate, **others}


def make_optimiser(
    config: GradientConfig,
    spec: SystemSpec,
    lr: Scalar,
    period: int = 1,
    transform: Transform | None = None,
) -> optax.GradientTransformation:
    """Build an optimiser with gradient clipping and, optionally, learning rate decay.

    Args:
        config: hyperparameters.
        spec: sizes, for the decay.
        lr: learning rate.
        period: gradient steps of the system per step of this optimiser, at least 1.
        transform: `(learning_rate) -> GradientTransformation`; None for Adam.

    Returns:
        The optimiser.
    """
    rate: Any = lr
    if config.decay_learning_rates:
        schedule = make_learning_rate_schedule(lr, spec.num_updates, config.gradient_steps, 1)

        def rate(count: Any) -> jax.Array:
            return schedule(count * period)

    transform = partial(optax.adam, eps=config.adam_eps) if transform is None else transform
    return optax.chain(clip_by_global_norm(config.max_grad_norm), transform(rate))


def gradient_step(
    loss: Loss, optim: optax.GradientTransformation, axes: Axes, params: PyTree, opt_state: PyTree, *args: Any
) -> tuple[PyTree, PyTree, Any]:
    """Take one gradient step on a loss, averaging the gradient over all shards.

    Args:
        loss: `(params, *args) -> (loss, metrics)`, over the batch of this shard.
        optim: the optimiser.
        axes: the axes that the batch is spread over.
        params: the parameters to optimise.
        opt_state: the optimiser's state.
        *args: further arguments of `loss`.

    Returns:
        The new parameters, the new optimiser state, and the metrics of the loss.
    """
    grads, metrics = mean_gradient(loss, axes, params, *args)
    return *descend(optim, grads, params, opt_state), metrics


def mean_gradient(loss: Loss, axes: Axes, params: PyTree, *args: Any) -> tuple[PyTree, Any]:
    """Return the gradient of a loss, averaged over all shards, and its metrics; see `gradient_step`."""
    grads, metrics = jax.grad(lambda params: loss(unpack(params), *args), has_aux=True)(params)
    return axes.mean(grads), metrics


def descend(
    optim: optax.GradientTransformation, grads: PyTree, params: PyTree, opt_state: PyTree
) -> tuple[PyTree, PyTree]:
    """Return the parameters and the optimiser's state after one step along a gradient."""
    updates, opt_state = optim.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), opt_state
