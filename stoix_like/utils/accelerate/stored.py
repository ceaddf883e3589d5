"""Arrays that GPUs store once, where the compiler would compute them in every kernel that reads them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.utils.accelerate.platform import on_gpu


def stored(x: jax.Array) -> jax.Array:
    """Return an array, and store it and its gradient on GPUs: no kernel computes them together with what follows."""
    return jax.lax.optimization_barrier(x) if on_gpu() else x


def tanh(x: jax.Array) -> jax.Array:
    """Compute the hyperbolic tangent; on GPUs once, for the products of matrices that follow and for the gradient.

    The compiler keeps the argument instead, and computes the function again in each kernel that reads it: five times in
    a gradient step of PPO.
    """
    return _stored_tanh(x) if on_gpu() else jnp.tanh(x)


@jax.custom_jvp
def _stored_tanh(x: jax.Array) -> jax.Array:
    return stored(jnp.tanh(x))


@_stored_tanh.defjvp
def _tanh_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = _stored_tanh(*primals)
    (dx,) = tangents
    # The gradient that jax has of it, with its rounding, of the stored value.
    if one_minus_square := getattr(jax.lax, "one_minus_square", None):  # from jax 0.11 on
        return y, dx * one_minus_square(y)
    return y, (dx + dx * y) * (1.0 - y)


def relu(x: jax.Array) -> jax.Array:
    """Compute the rectifier; on GPUs as part of a convolution before it, with its derivative from the result."""
    return _stored_relu(x) if on_gpu() else jax.nn.relu(x)


@jax.custom_jvp
def _stored_relu(x: jax.Array) -> jax.Array:
    return stored(jnp.maximum(x, 0))


@_stored_relu.defjvp
def _relu_jvp(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
    y = _stored_relu(*primals)
    return y, jnp.where(y > 0, tangents[0], 0)
