"""Torsos of vectors: layers one after the other."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import field
from typing import Any, ClassVar

import flax.linen as nn
from jax.nn.initializers import orthogonal
from jaxtyping import Array, Float, Shaped

from stoix_like.networks.hyperspherical import UnitDense
from stoix_like.networks.layers import DROPOUT, NoisyLinear
from stoix_like.networks.normalisation import BatchRenorm, LayerNorm, simnorm
from stoix_like.networks.units import declare
from stoix_like.networks.utils import Initializer, parse_activation_fn, parse_initializer
from stoix_like.utils.jax_utils import Scalar, as_floats, restore_float32


class MLPTorso(nn.Module):
    """A multilayer perceptron on the last axis."""

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    layer_sizes: Sequence[int]  # width of each layer, in units
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    activate_final: bool = True  # whether normalisation and activation follow the last layer, too
    # Probability that a unit is dropped before normalisation and activation, in [0, 1]; the masks come from the rng
    # collection `dropout`, without which no unit is dropped.
    dropout_rate: float = field(default=0.0, kw_only=True)
    dropout_layers: int | None = field(default=None, kw_only=True)  # only the first layers drop units; None: all do
    # Dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted dtype of
    # inputs and parameters.
    dtype: Any = field(default=None, kw_only=True)
    # Whether GPUs compute the torso and the layers that read it in one kernel, where that is possible; it has first
    # derivatives in reverse mode only.
    fused: bool | str = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        """Check that some units are left."""
        if not 0.0 <= self.dropout_rate < 1.0:
            raise ValueError(f"dropout_rate={self.dropout_rate} must be at least 0 and less than 1: use 0.01")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., layer_sizes[-1]]`; uint8 is scaled, see `as_floats`."""
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)
        x = as_floats(observation)
        layers = [self._layer(size, kernel_init) for size in self.layer_sizes]
        for number, layer in enumerate(layers):
            x = layer(x)
            if self.activate_final or layer is not layers[-1]:
                rate = self.dropout_rate if self.dropout_layers is None or number < self.dropout_layers else 0.0
                x = nn.Dropout(rate, deterministic=not self.has_rng(DROPOUT))(x)
                x = LayerNorm(dtype=self.dtype)(x) if self.use_layer_norm else x
                x = declare(self, layer, activation(x))
        return restore_float32(x, self.dtype)

    def _layer(self, size: int, kernel_init: Initializer) -> nn.Module:
        return nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype)


class BatchRenormMLPTorso(nn.Module):
    """A multilayer perceptron on the last axis, with batch renormalisation of its input and after each activation.

    Source: Bhatt et al., CrossQ: Batch Normalization in Deep Reinforcement Learning (2024), figure 2.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)
    batch_norm: ClassVar[bool] = True

    layer_sizes: Sequence[int]  # width of each layer, in units
    activation: str = "relu"  # name of the activation function
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    momentum: float = 0.99  # weight of the old running statistics in the new ones, in [0, 1)
    # Updates of the statistics before renormalisation; until then, batches are only normalised.
    warmup_steps: int = 100_000
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., layer_sizes[-1]]`; uint8 is scaled, see `as_floats`."""
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)
        x = BatchRenorm(self.momentum, self.warmup_steps)(as_floats(observation))
        layers = [nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype) for size in self.layer_sizes]
        for layer in layers:
            x = declare(self, layer, activation(layer(x)))
            x = BatchRenorm(self.momentum, self.warmup_steps)(restore_float32(x, self.dtype))
        return x


class XQCTorso(nn.Module):
    """A multilayer perceptron with batch normalisation before each activation, and weights of norm one to each unit.

        x <- norm(observation),  x <- relu(norm(W x))

    Gradient steps keep the norms, see `networks.hyperspherical.project_weights`.

    Source: Palenicek et al., XQC: Well-conditioned Optimization Accelerates Deep Reinforcement Learning (2026),
    arXiv:2509.25174.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)
    batch_norm: ClassVar[bool] = True

    layer_sizes: Sequence[int]  # width of each layer, in units
    activation: str = "relu"  # name of the activation function
    momentum: float = 0.99  # weight of the old running statistics in the new ones, in [0, 1)
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., layer_sizes[-1]]`; uint8 is scaled, see `as_floats`."""
        activation = parse_activation_fn(self.activation)
        # These bounds leave batch normalisation.
        norm = functools.partial(BatchRenorm, self.momentum, max_ratio=1.0, max_shift=0.0)
        x = norm()(as_floats(observation))
        layers = [UnitDense(size, dtype=self.dtype) for size in self.layer_sizes]
        for layer in layers:
            x = declare(self, layer, activation(norm()(restore_float32(layer(x), self.dtype))))
        return x


class SimNormTorso(nn.Module):
    """A multilayer perceptron whose layers and output are normalised: the latents of TD-MPC2.

        z = simnorm(norm(W_L x_{L-1} + b_L)),  x_l = activation(norm(W_l x_{l-1} + b_l))

    Source: Hansen et al. 2024 (TD-MPC2), arXiv:2310.16828, section 3.1; see `simnorm`.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    layer_sizes: Sequence[int]  # width of each layer, in units; the last one is the width of a latent
    activation: str = "mish"  # name of the activation function of all layers but the last
    group_size: int = 8  # entries of each simplex; divides the width of a latent
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    def __post_init__(self) -> None:
        """Check that a latent consists of whole simplices."""
        if not self.layer_sizes or self.layer_sizes[-1] % self.group_size:
            raise ValueError(
                f"layer_sizes={list(self.layer_sizes)} must end with a multiple of group_size={self.group_size}: use"
                " [256, 512]"
            )
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the latents, `[..., layer_sizes[-1]]`; uint8 is scaled, see `as_floats`."""
        body = MLPTorso(self.layer_sizes, self.activation, True, self.kernel_init, False, dtype=self.dtype)
        return simnorm(LayerNorm()(body(observation)), self.group_size)


class NoisyMLPTorso(MLPTorso):
    """A multilayer perceptron of noisy layers on the last axis; see `NoisyLinear`.

    Source: Fortunato et al., Noisy Networks for Exploration (2018).
    """

    sigma_zero: Scalar = 0.5  # initial scale of the noise

    def _layer(self, size: int, kernel_init: Initializer) -> nn.Module:
        return NoisyLinear(size, kernel_init=kernel_init, sigma_zero=self.sigma_zero, dtype=self.dtype)
