"""Functions shared by several losses."""

import functools
import inspect
import math
from collections.abc import Callable
from typing import ParamSpec

import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from stoix_like.utils.accelerate.columns import columns, in_columns
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.shapes import check_shapes

P = ParamSpec("P")

# exp(20) is about 5e8: its products, and their squares inside an optimiser, stay finite in float32.
MAX_LOG_RATIO = 20.0


def probability_ratio(log_prob: Array, b_log_prob: Array) -> Array:
    """Compute exp(log_prob - b_log_prob), linear beyond `MAX_LOG_RATIO` so that it stays finite."""
    log_ratio = log_prob - b_log_prob
    excess = jnp.maximum(log_ratio - MAX_LOG_RATIO, 0.0)
    return jnp.exp(jnp.minimum(log_ratio, MAX_LOG_RATIO)) * (1.0 + excess)


def approximate_kl_per_example(log_prob: Float[Array, "*B"], b_log_prob: Float[Array, "*B"]) -> Float[Array, "*B"]:
    """Estimate KL(b_pi || pi) from each action of b_pi, by r - 1 - log r, which is never negative.

    Terms are bounded by exp(`MAX_LOG_RATIO`), and flat beyond, so that they stay finite where the losses do.
    """
    check_shapes("log_prob[*B] b_log_prob[*B]", (log_prob, b_log_prob))
    log_ratio = jnp.clip(log_prob - stop_gradient(b_log_prob), -math.exp(MAX_LOG_RATIO), MAX_LOG_RATIO)
    return jnp.expm1(log_ratio) - log_ratio


def squared_or_huber(error: Array, parameter: Scalar) -> Array:
    """Compute half the squared error, or the Huber loss if the parameter is positive."""
    return jnp.where(jnp.asarray(parameter) > 0, _huber(error, parameter), 0.5 * jnp.square(error))


def absolute_or_huber(error: Array, parameter: Scalar) -> Array:
    """Compute the absolute error, or the Huber loss if the parameter is positive."""
    return jnp.where(jnp.asarray(parameter) > 0, _huber(error, parameter), jnp.abs(error))


def values_of_actions(values: Array, action: Array) -> Array:
    """Select the values `[*B]` of the actions `[*B]` from the values `[*B, A]` of all actions."""
    if not in_columns(values):
        return taken(values.reshape(-1, values.shape[-1]), action.reshape(-1)).reshape(action.shape)
    first, *others = columns(values)
    return functools.reduce(lambda chosen, i: jnp.where(action == i + 1, others[i], chosen), range(len(others)), first)


def taken(x: Array, index: Array) -> Array:
    """Return `x[b, index[b]]`, `[B, ...]`, of arrays `[B, A, ...]` and indices `[B]`.

    Its gradient is a scatter to places that differ, which needs no order: a deterministic GPU would add one by one.
    """
    return jnp.asarray(x).at[jnp.arange(len(index)), index].get(unique_indices=True)


def largest_values(values: Array) -> Array:
    """Return the values `[*B]` of the best actions from the values `[*B, A]` of all actions."""
    return functools.reduce(jnp.maximum, columns(values)) if in_columns(values) else jnp.max(values, axis=-1)


def _huber(error: Array, parameter: Scalar) -> Array:
    """Compute the Huber loss: half the squared error, linear beyond the parameter."""
    magnitude = jnp.abs(error)
    inner = jnp.minimum(magnitude, parameter)
    return inner * (magnitude - 0.5 * inner)


def mean_of(losses: Callable[P, Array]) -> Callable[P, Array]:
    """Return the loss that is the mean over the batch of losses `…_per_example`, with the same arguments."""

    @functools.wraps(losses)
    def loss(*args: P.args, **kwargs: P.kwargs) -> Float[Array, ""]:
        return jnp.mean(losses(*args, **kwargs))

    loss.__name__ = loss.__qualname__ = losses.__name__.removesuffix("_per_example")
    loss.__doc__ = (
        f"Compute the mean over the batch of `{losses.__name__}`:\n\n"
        f"    {(losses.__doc__ or '').partition('Returns:')[0].rstrip()}\n\n"
        "    Returns:\n        The mean, a scalar.\n    "
    )
    mean = loss.__annotations__ = losses.__annotations__ | {"return": Float[Array, ""]}
    # `inspect.signature` would return the signature of the losses.
    loss.__dict__["__signature__"] = inspect.signature(losses).replace(return_annotation=mean["return"])
    return loss


approximate_kl = mean_of(approximate_kl_per_example)
