"""A multilayer perceptron as a function that GPUs compute in one kernel, with its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.utils.accelerate.fused.form import Form, Layer, assemble


def perceptron(form: Form, layers: Sequence[Layer], x: Float[Array, "*batch D"]) -> Float[Array, "*batch K"]:
    """Compute the outputs of a perceptron, `[..., K]`."""
    y = _perceptron(form, x.reshape(-1, x.shape[-1]).astype(jnp.float32), assemble(form, layers))
    return y.reshape(*x.shape[:-1], form.outputs)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _perceptron(form: Form, x: jax.Array, weights: jax.Array) -> jax.Array:
    from stoix_like.utils.accelerate.fused import kernels  # here, because Pallas takes time to import

    return kernels.outputs(form, x, weights)


def _forward(form: Form, x: Any, weights: Any) -> tuple[jax.Array, Any]:
    # Static: which gradients are needed is part of the structure of the residuals.
    needed = [() if one.perturbed else None for one in (x, weights)]
    return _perceptron(form, x.value, weights.value), (x.value, weights.value, needed)


def _backward(form: Form, residuals: Any, dy: Any) -> tuple[Any, Any]:
    from stoix_like.utils.accelerate.fused import kernels

    x, weights, (of_x, of_weights) = residuals
    dy = jnp.zeros(dy.shape, dy.dtype) if isinstance(dy, jax.custom_derivatives.SymbolicZero) else dy
    dx = None if of_x is None else kernels.input_gradient(form, x, weights, dy)
    return dx, None if of_weights is None else kernels.weight_gradient(form, x, weights, dy)


_perceptron.defvjp(_forward, _backward, symbolic_zeros=True)
