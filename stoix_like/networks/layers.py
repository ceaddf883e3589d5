"""Layers beyond flax's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.linen.dtypes import promote_dtype
from jax.nn import initializers
from jaxtyping import Array, Float, Shaped

from stoix_like.networks.utils import Initializer, parse_activation_fn, parse_initializer, parse_rnn_cell
from stoix_like.utils.jax_utils import Scalar, prepend_dims

default_kernel_init = initializers.lecun_normal()

DROPOUT = "dropout"
"""The rng collection of dropout; without it, networks drop nothing."""


class StackedRNN(nn.Module):
    """Recurrent cells on top of each other, for one time step."""

    rnn_size: int  # width of the state of each cell, in units
    rnn_cls: Any  # class of the cells, or its name, see `parse_rnn_cell`
    num_layers: int  # number of cells
    activation_fn: str = "sigmoid"  # name of the activation function, for cells that have this attribute

    def _cells(self, **kwargs: Any) -> list[nn.Module]:
        cell = parse_rnn_cell(self.rnn_cls) if isinstance(self.rnn_cls, str) else self.rnn_cls
        if any(field.name == "activation_fn" for field in dataclasses.fields(cell)):
            kwargs["activation_fn"] = parse_activation_fn(self.activation_fn)
        return [cell(features=self.rnn_size, **kwargs) for _ in range(self.num_layers)]

    @nn.compact
    def __call__(self, all_rnn_states: Sequence[Any], x: Float[Array, "*batch D"]) -> tuple[list[Any], Array]:
        """Process one time step.

        Args:
            all_rnn_states: the state of each cell, from the first to the last.
            x: inputs `[..., D]`.

        Returns:
            The new states, and the output of the last cell, `[..., rnn_size]`.

        Raises:
            ValueError: the number of states is not the number of cells.
        """
        new_states = []
        for cell, state in zip(self._cells(), all_rnn_states, strict=True):
            new_state, x = cell(state, x)
            new_states.append(new_state)
        return new_states, x

    @nn.nowrap
    def initialize_carry(self, input_shape: tuple[int, ...]) -> list[Any]:
        """Return the states at the start of an episode, for inputs of `input_shape`, `[..., D]`."""
        shape = (*input_shape[:-1], self.rnn_size)
        return [cell.initialize_carry(jax.random.key(0), shape) for cell in self._cells(parent=None)]


class NoisyLinear(nn.Module):
    """A dense layer with learned, factorised noise on its weights.

        y = (W + S_w * f(e_in) f(e_out)^T)^T x + b + s_b * f(e_out),   f(e) = sign(e) sqrt|e|,   e ~ N(0, 1)

    All rows of a call share one sample of the rng collection `noise`; without that collection there is no noise.

    Source: Fortunato et al., Noisy Networks for Exploration (2018), equations 9-11.
    """

    features: int  # width of the output, in units
    use_bias: bool = True  # whether to add b
    dtype: Any = None  # dtype of the computation; None for the promoted dtype of inputs and parameters
    param_dtype: Any = jnp.float32  # dtype of the parameters
    precision: Any = None  # precision of the matrix product, as in `jax.lax.dot`
    kernel_init: Initializer | str = default_kernel_init  # initialiser of W, or its name
    bias_init: Initializer | str = initializers.zeros  # initialiser of b, or its name
    sigma_zero: Scalar = 0.5  # initial scale of the noise; S_w and s_b start at `sigma_zero / sqrt(inputs)`

    @nn.compact
    def __call__(self, inputs: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Transform `[..., D]` into `[..., features]`."""
        width = inputs.shape[-1]
        sigma_init = initializers.constant(self.sigma_zero / math.sqrt(width))
        kernel = self._parameter("kernel", self.kernel_init, (width, self.features))
        sigma_kernel = self._parameter("sigma_kernel", sigma_init, (width, self.features))
        bias = sigma_bias = None
        if self.use_bias:
            bias = self._parameter("bias", self.bias_init, (self.features,))
            sigma_bias = self._parameter("sigma_bias", sigma_init, (self.features,))
        if self.has_rng("noise"):
            key_in, key_out = jax.random.split(self.make_rng("noise"))
            noise_in = _signed_root(jax.random.normal(key_in, (width, 1), self.param_dtype))
            noise_out = _signed_root(jax.random.normal(key_out, (1, self.features), self.param_dtype))
            kernel = kernel + sigma_kernel * noise_in * noise_out
            bias = None if bias is None or sigma_bias is None else bias + sigma_bias * noise_out[0]
        inputs, kernel, bias = promote_dtype(inputs, kernel, bias, dtype=self.dtype)
        y = jnp.dot(inputs, kernel, precision=self.precision)
        return y if bias is None else y + prepend_dims(bias, y.ndim)

    def _parameter(self, name: str, init: Initializer | str, shape: tuple[int, ...]) -> Array:
        return self.param(name, parse_initializer(init), shape, self.param_dtype)


def _signed_root(x: Array) -> Array:
    return jnp.sign(x) * jnp.sqrt(jnp.abs(x))
