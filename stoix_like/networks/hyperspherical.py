"""Layers on the unit hypersphere, and the projection of their weights after each gradient step (SimBaV2).

Source: Lee et al., Hyperspherical Normalization for Scalable Deep Reinforcement Learning (2025), arXiv:2502.15280,
section 4.
"""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax.nn.initializers import constant, orthogonal, zeros
from jaxtyping import Array, Float, PyTree

from stoix_like.utils.accelerate.packing import is_packed, pack_params, unpack
from stoix_like.utils.jax_utils import Scalar, leaf_name, prepend_dims

UNIT_KERNEL = "unit_kernel"
"""Name of the parameters `[..., D, F]` with columns of norm one, see `project_weights`."""

_MIN_NORM = 1e-8


def to_sphere(x: Array, axis: int = -1) -> Array:
    """Divide by the Euclidean norm along an axis; zeros stay zeros."""
    square = jnp.sum(jnp.square(x), axis, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(square, _MIN_NORM**2))


def project_weights(params: PyTree) -> PyTree:
    """Scale the weights of each unit of a `UnitDense` to norm one; other parameters pass through.

    `params`: variables of networks, which may be packed, in any containers.
    """
    if not any(leaf_name(path) == UNIT_KERNEL for path, _ in jax.tree.leaves_with_path(jax.eval_shape(unpack, params))):
        return params
    projected = jax.tree.map_with_path(
        lambda path, leaf: to_sphere(leaf, -2) if leaf_name(path) == UNIT_KERNEL else leaf, unpack(params)
    )
    return pack_params(projected) if is_packed(params) else projected


class UnitDense(nn.Module):
    """A dense layer without bias, with weights of norm one to each unit: a unit is the cosine to its weights."""

    features: int  # width of the output, in units
    dtype: Any = None  # dtype of the computation; None for the promoted dtype of inputs and parameters

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Transform `[..., D]` into `[..., features]`."""

        def init(*args: Any) -> Array:
            return to_sphere(orthogonal()(*args), -2)

        kernel = self.param(UNIT_KERNEL, init, (x.shape[-1], self.features), jnp.float32)
        return jnp.dot(*promote_dtype(x, kernel, dtype=self.dtype))


class Scaler(nn.Module):
    """A learned scale for each feature.

    y = initial / scale * p * x,  with p = scale at first
    """

    initial: Scalar  # initial factor
    scale: Scalar | None = None  # initial value of the parameters p, which sets how fast they learn; None for `initial`

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Scale the last axis."""
        scale = self.initial if self.scale is None else self.scale
        factors = self.param("scale", constant(scale), x.shape[-1:], jnp.float32) * (self.initial / scale)
        return x * prepend_dims(factors, x.ndim).astype(x.dtype)


class UnitOutput(nn.Module):
    """The output layer of a head: linear, scaled, linear, bias; or only the last two.

    y = W_2 (s * W_1 x) + b,  s = 1 and b = 0 at first
    """

    features: int  # width of the output, in units
    hidden: bool = True  # whether W_1 and s precede W_2

    @nn.compact
    def __call__(self, embedding: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Transform `[..., D]` into `[..., features]`."""
        x = Scaler(1.0)(UnitDense(embedding.shape[-1])(embedding)) if self.hidden else embedding
        x = UnitDense(self.features)(x)
        return x + prepend_dims(self.param("bias", zeros, (self.features,), jnp.float32), x.ndim)
