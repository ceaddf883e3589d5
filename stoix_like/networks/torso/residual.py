"""Torsos of vectors with residual blocks."""

from __future__ import annotations

import functools
import math
from typing import Any, ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jax.nn.initializers import he_normal, orthogonal
from jaxtyping import Array, Float, Shaped

from stoix_like.networks.hyperspherical import Scaler, UnitDense, to_sphere
from stoix_like.networks.normalisation import LayerNorm
from stoix_like.networks.units import declare
from stoix_like.networks.utils import Initializer, parse_activation_fn, parse_initializer
from stoix_like.utils.jax_utils import Scalar, as_floats, restore_float32

_LEAST_ACTIVATION = 1e-8


class ResNetTorso(nn.Module):
    """A residual network: a dense layer, then residual blocks of two dense layers.

        x <- x + W_2 f(norm(W_1 f(norm(x))))

    Source: He et al., Identity Mappings in Deep Residual Networks (2016), figure 1b.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 256  # width of every layer, in units
    num_blocks: int = 2  # number of blocks
    activation: str = "relu"  # name of the activation function, f
    use_layer_norm: bool = True  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_size]`; uint8 is scaled, see `as_floats`."""
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)

        def activated(x: Array) -> Array:
            return activation(LayerNorm(dtype=self.dtype)(x) if self.use_layer_norm else x)

        dense = functools.partial(nn.Dense, self.hidden_size, kernel_init=kernel_init, dtype=self.dtype)
        x = dense()(as_floats(observation))
        for _ in range(self.num_blocks):
            first, second = dense(), dense()
            y = first(activated(x))
            x = x + second(declare(self, first, activated(y)))
        return restore_float32(activated(x), self.dtype)


class SimBaTorso(nn.Module):
    """A residual network with layer normalisation before each block and after the last one.

        x <- x + W_2 f(W_1 norm(x)),  W_1 of `expansion` times the width

    Source: Lee et al., SimBa: Simplicity Bias for Scaling Up Parameters in Deep Reinforcement Learning (2024),
    arXiv:2410.09754, section 4; its normalisation of observations is `system.normalize_observations`.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 128  # width of the residual stream, in units
    num_blocks: int = 1  # number of blocks
    expansion: int = 4  # width of the hidden layer of a block, in multiples of `hidden_size`
    activation: str = "relu"  # name of the activation function, f
    kernel_init: Initializer | str = orthogonal(1.0)  # initialiser of the first layer, or its name
    block_kernel_init: Initializer | str = he_normal()  # initialiser of the layers of the blocks, or its name
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_size]`; uint8 is scaled, see `as_floats`."""
        activation = parse_activation_fn(self.activation)
        block_init = parse_initializer(self.block_kernel_init)

        def dense(size: int, kernel_init: Initializer = block_init) -> nn.Module:
            return nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype)

        x = dense(self.hidden_size, parse_initializer(self.kernel_init))(as_floats(observation))
        for _ in range(self.num_blocks):
            first, second = dense(self.expansion * self.hidden_size), dense(self.hidden_size)
            y = first(LayerNorm(dtype=self.dtype)(x))
            x = x + second(declare(self, first, activation(y)))
        return restore_float32(LayerNorm(dtype=self.dtype)(x), self.dtype)


class SimBaV2Torso(nn.Module):
    """A residual network on the unit hypersphere; gradient steps keep the weights of each unit at norm one.

        x <- norm(s * W norm([observation, shift]))
        x <- norm(x + a * (norm(W_2 relu(s * W_1 x)) - x)),  W_1 of `expansion` times the width

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep Reinforcement Learning (2025), arXiv:2502.15280,
    section 4; it normalises observations by `system.normalize_observations` and rewards by
    `system.normalize_rewards`.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 128  # width of the residual stream, in units
    num_blocks: int = 1  # number of blocks
    expansion: int = 4  # width of the hidden layer of a block, in multiples of `hidden_size`
    shift: Scalar = 3.0  # feature that is added to the observation, which keeps its norm after normalisation
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_size]`, of norm one; uint8 is scaled, see `as_floats`."""
        dense = functools.partial(UnitDense, dtype=self.dtype)
        x = as_floats(observation)
        x = to_sphere(jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), self.shift, x.dtype)], axis=-1))
        size, width = self.hidden_size, self.expansion * self.hidden_size
        x = to_sphere(Scaler(math.sqrt(2.0 / size))(dense(size)(x)))
        for _ in range(self.num_blocks):
            first, second = dense(width), dense(size)
            y = nn.relu(Scaler(math.sqrt(2.0 / width))(first(x)))
            # The small constant keeps a vector without active units from zero.
            y = to_sphere(second(declare(self, first, y) + _LEAST_ACTIVATION))
            x = to_sphere(x + Scaler(1.0 / (self.num_blocks + 1), 1.0 / math.sqrt(size))(y - x))
        return restore_float32(x, self.dtype)


class BroTorso(nn.Module):
    """A residual network with layer normalisation after each dense layer.

        x <- relu(norm(W x)),  x <- x + norm(W_2 relu(norm(W_1 x)))

    Source: Nauman et al., Bigger, Regularized, Optimistic (2024), arXiv:2405.16158, section 3.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 512  # width of every layer, in units
    num_blocks: int = 2  # number of blocks
    activation: str = "relu"  # name of the activation function
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_size]`; uint8 is scaled, see `as_floats`."""
        activation, kernel_init = parse_activation_fn(self.activation), parse_initializer(self.kernel_init)

        dense = functools.partial(nn.Dense, self.hidden_size, kernel_init=kernel_init, dtype=self.dtype)

        def normalised(x: Array) -> Array:
            return LayerNorm(dtype=self.dtype)(x)

        x = activation(normalised(dense()(as_floats(observation))))
        for _ in range(self.num_blocks):
            first, second = dense(), dense()
            y = declare(self, first, activation(normalised(first(x))))
            x = x + normalised(second(y))
        return restore_float32(x, self.dtype)


class _Block(nn.Module):
    """Dense layers, each with normalisation and activation, and the residual around them."""

    layer: Any  # builds the modules of a layer
    num_layers: int

    @nn.compact
    def __call__(self, x: Array, xs: None) -> tuple[Array, None]:
        y = x
        for _ in range(self.num_layers):
            y = self.layer()(y)
        return x + y, xs


class DeepResNetTorso(nn.Module):
    """A residual network with blocks of four layers, for depths of up to a thousand; its units are not recorded.

        x <- l_0(x),  x <- x + l_4(l_3(l_2(l_1(x)))),  l(x) = f(norm(W x))

    Source: Wang et al., 1000 Layer Networks for Self-Supervised RL (2025), arXiv:2503.14858.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 256  # width of every layer, in units
    depth: int = 4  # layers in blocks, a multiple of 4
    activation: str = "swish"  # name of the activation function, f
    kernel_init: Initializer | str = "lecun_uniform"  # initialiser of the weights, or its name
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    def __post_init__(self) -> None:
        """Check that blocks are whole."""
        if self.depth < 4 or self.depth % 4:
            raise ValueError(f"depth={self.depth} must be a multiple of 4, the layers of a block: use 4, 16 or 64")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_size]`; uint8 is scaled, see `as_floats`."""
        kernel_init, activation = parse_initializer(self.kernel_init), parse_activation_fn(self.activation)

        def layer() -> nn.Module:
            dense = nn.Dense(self.hidden_size, kernel_init=kernel_init, dtype=self.dtype, parent=None)
            return nn.Sequential([dense, LayerNorm(dtype=self.dtype, parent=None), activation])

        # One block is compiled, whatever the depth; its parameters have a leading axis.
        blocks = nn.scan(_Block, {"params": 0}, split_rngs={"params": True}, length=self.depth // 4)
        x, _ = blocks(layer, 4)(layer()(as_floats(observation)), None)
        return restore_float32(x, self.dtype)
