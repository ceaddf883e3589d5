"""Normalisation layers beyond flax's, or with other forms on accelerators."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen import dtypes
from jaxtyping import Array, Float

from stoix_like.utils.accelerate.platform import on_gpu
from stoix_like.utils.accelerate.stored import stored
from stoix_like.utils.jax_utils import prepend_dims

STATISTICS = "batch_stats"
"""The collection of running statistics; networks update it where it is mutable."""

# Integers up to here are exact in float32.
_MAX_COUNT = 2**24


class LayerNorm(nn.LayerNorm):
    """Layer normalisation of the last axis as in flax, with scale and bias.

    On GPUs, the normalised array is stored before it is scaled. The gradient of the scale is a sum over the batch,
    which few blocks compute where there are few features; the input's gradient is then a separate kernel.
    """

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"], *, mask: Array | None = None) -> Float[Array, "*batch D"]:
        """Normalise the features `[..., D]`; see flax."""
        if mask is not None or not on_gpu():
            return super().__call__(x, mask=mask)
        scale = self.param("scale", self.scale_init, x.shape[-1:], self.param_dtype)
        bias = self.param("bias", self.bias_init, x.shape[-1:], self.param_dtype)
        floats = x.astype(jnp.float32)
        mean = jnp.mean(floats, -1, keepdims=True)
        variance = jnp.maximum(jnp.mean(jnp.square(floats), -1, keepdims=True) - jnp.square(mean), 0.0)
        normalised = stored((floats - mean) * jax.lax.rsqrt(variance + self.epsilon))
        return _affine(normalised, scale, bias).astype(dtypes.canonicalize_dtype(x, scale, bias, dtype=self.dtype))


class BatchRenorm(nn.Module):
    """Batch renormalisation of the last axis.

        y = scale * ((x - mean(x)) / std(x) * r + d) + bias
        r = std(x) / running_std,  d = (mean(x) - running_mean) / running_std, both clipped, without gradients

    Where the collection `batch_stats` is mutable, the layer normalises by the batch of its shard as above and updates
    the running statistics; elsewhere it normalises by the running statistics. All variables are floats and running
    statistics have no gradients, so that an optimiser of all variables leaves them unchanged.

    Source: Ioffe, Batch Renormalization (2017), algorithm 1; the clip range opens at once, as in Bhatt et al., CrossQ
    (2024).
    """

    momentum: float = 0.99  # weight of the old running statistics in the new ones, in [0, 1)
    warmup_steps: int = 100_000  # updates of the statistics before which r = 1 and d = 0, which is batch normalisation
    max_ratio: float = 3.0  # bound of r, and of its inverse
    max_shift: float = 5.0  # bound of the absolute value of d
    epsilon: float = 1e-3  # added to variances

    def __post_init__(self) -> None:
        """Check that the momentum is a weight and that the warm-up can be counted."""
        if not 0.0 <= self.momentum < 1.0:
            raise ValueError(f"momentum={self.momentum} must be in [0, 1): use 0.99")
        if not 0 <= self.warmup_steps <= _MAX_COUNT:
            raise ValueError(f"warmup_steps={self.warmup_steps} must be in 0 … {_MAX_COUNT}: use 100000")
        super().__post_init__()

    @nn.compact
    def __call__(self, x: Float[Array, "*batch D"]) -> Float[Array, "*batch D"]:
        """Normalise the features `[..., D]` over all leading axes."""
        shape = x.shape[-1:]
        mean = self.variable(STATISTICS, "mean", jnp.zeros, shape, jnp.float32)
        variance = self.variable(STATISTICS, "variance", jnp.ones, shape, jnp.float32)
        steps = self.variable(STATISTICS, "steps", jnp.zeros, (), jnp.float32)
        scale = self.param("scale", nn.initializers.ones, shape, jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, shape, jnp.float32)

        running_mean, running_variance = jax.lax.stop_gradient((mean.value, variance.value))
        running_std = jnp.sqrt(running_variance + self.epsilon)
        if self.is_initializing() or not self.is_mutable_collection(STATISTICS):
            return _affine(_affine(x, 1.0 / running_std, -running_mean / running_std), scale, bias)

        leading = tuple(range(x.ndim - 1))
        batch_mean, batch_variance = jnp.mean(x, leading), jnp.var(x, leading)
        batch_std = jnp.sqrt(batch_variance + self.epsilon)
        warm = steps.value >= self.warmup_steps
        ratio = jnp.where(warm, jnp.clip(batch_std / running_std, 1.0 / self.max_ratio, self.max_ratio), 1.0)
        shift = (batch_mean - running_mean) / running_std
        shift = jnp.where(warm, jnp.clip(shift, -self.max_shift, self.max_shift), 0.0)
        ratio, shift = jax.lax.stop_gradient((ratio, shift))

        mean.value = self.momentum * running_mean + (1.0 - self.momentum) * batch_mean
        variance.value = self.momentum * running_variance + (1.0 - self.momentum) * batch_variance
        steps.value = jnp.minimum(steps.value + 1.0, float(self.warmup_steps))
        normalised = _affine(x, 1.0 / batch_std, -batch_mean / batch_std)
        return _affine(_affine(normalised, ratio, shift), scale, bias)


def _affine(x: Array, scale: Array, bias: Array) -> Array:
    return x * prepend_dims(scale, x.ndim) + prepend_dims(bias, x.ndim)


def simnorm(x: Float[Array, "*batch D"], group_size: int) -> Float[Array, "*batch D"]:
    """Normalise groups of entries to simplices: non-negative, with a sum of one.

        y_g = softmax(x_g)

    Source: Lavoie et al. 2022, Simplicial Embeddings in Self-Supervised Learning, arXiv:2204.00616; Hansen et al. 2024
    (TD-MPC2), arXiv:2310.16828, equation 5.

    `group_size`: entries of each group, which divides D.
    """
    return jax.nn.softmax(x.reshape(*x.shape[:-1], -1, group_size), axis=-1).reshape(x.shape)
