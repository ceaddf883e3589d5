"""Torsos: maps from the output of an input layer to an embedding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import he_normal, orthogonal
from jaxtyping import Array, Float, Shaped

from stoix_like.networks.convolution import make_convolution
from stoix_like.networks.hyperspherical import Scaler, UnitDense, to_sphere
from stoix_like.networks.layers import DROPOUT, NoisyLinear
from stoix_like.networks.normalisation import BatchRenorm
from stoix_like.networks.units import declare
from stoix_like.networks.utils import Initializer, parse_activation_fn, parse_initializer
from stoix_like.utils.jax_utils import Scalar, as_floats, restore_float32

_LEAST_ACTIVATION = 1e-8


class MLPTorso(nn.Module):
    """A multilayer perceptron on the last axis.

    Attributes:
        layer_sizes: width of each layer, in units.
        activation: name of the activation function.
        use_layer_norm: whether layer normalisation precedes each activation.
        kernel_init: initialiser of the weights, or its name.
        activate_final: whether normalisation and activation follow the last layer, too.
        dropout_rate: probability that a unit is dropped before normalisation and activation, in [0, 1]; the masks come
            from the rng collection `dropout`, without which no unit is dropped.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    layer_sizes: Sequence[int]
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    activate_final: bool = True
    dropout_rate: float = 0.0
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check that some units are left."""
        if not 0.0 <= self.dropout_rate < 1.0:
            raise ValueError(f"dropout_rate={self.dropout_rate} must be at least 0 and less than 1: use 0.01")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., layer_sizes[-1]]`.
        """
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)
        x = as_floats(observation)
        layers = [self._layer(size, kernel_init) for size in self.layer_sizes]
        for layer in layers:
            x = layer(x)
            if self.activate_final or layer is not layers[-1]:
                x = nn.Dropout(self.dropout_rate, deterministic=not self.has_rng(DROPOUT))(x)
                x = nn.LayerNorm(dtype=self.dtype)(x) if self.use_layer_norm else x
                x = declare(self, layer, activation(x))
        return restore_float32(x, self.dtype)

    def _layer(self, size: int, kernel_init: Initializer) -> nn.Module:
        return nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype)


class BatchRenormMLPTorso(nn.Module):
    """A multilayer perceptron on the last axis, with batch renormalisation of its input and after each activation.

    Source: Bhatt et al., CrossQ: Batch Normalization in Deep Reinforcement Learning (2024), figure 2.

    Attributes:
        layer_sizes: width of each layer, in units.
        activation: name of the activation function.
        kernel_init: initialiser of the weights, or its name.
        momentum: weight of the old running statistics in the new ones, in [0, 1].
        warmup_steps: updates of the statistics before renormalisation; until then, batches are only normalised.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)
    batch_norm: ClassVar[bool] = True

    layer_sizes: Sequence[int]
    activation: str = "relu"
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    momentum: float = 0.99
    warmup_steps: int = 100_000
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., layer_sizes[-1]]`.
        """
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)
        x = BatchRenorm(self.momentum, self.warmup_steps)(as_floats(observation))
        layers = [nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype) for size in self.layer_sizes]
        for layer in layers:
            x = declare(self, layer, activation(layer(x)))
            x = BatchRenorm(self.momentum, self.warmup_steps)(restore_float32(x, self.dtype))
        return x


class CNNTorso(nn.Module):
    """A convolutional network: convolutions, then dense layers.

    Attributes:
        channel_sizes: number of channels of each convolution.
        kernel_sizes: size of each kernel in pixels, or its height and width.
        strides: stride of each kernel in pixels, or its strides along height and width.
        activation: name of the activation function.
        use_layer_norm: whether layer normalisation precedes each activation.
        kernel_init: initialiser of the weights, or its name.
        channel_first: whether images are `[C, H, W]` instead of `[H, W, C]`.
        hidden_sizes: width of each dense layer, in units.
        has_channels: False for images `[H, W]`.
        sliced: how to compute convolutions, see `make_convolution`; None selects by the platform.
        max_size: largest height and width of images in pixels; for larger ones, kernel and stride of the first
            convolution are multiplied by their size / `max_size`, rounded up. None: no limit.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    channel_sizes: Sequence[int]
    kernel_sizes: Sequence[int | Sequence[int]]
    strides: Sequence[int | Sequence[int]]
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    channel_first: bool = False
    hidden_sizes: Sequence[int] = (256,)
    has_channels: bool = True
    sliced: bool | None = None
    max_size: int | None = None
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check that every convolution has a kernel size and a stride."""
        _check_lengths(channel_sizes=self.channel_sizes, kernel_sizes=self.kernel_sizes, strides=self.strides)
        if self.max_size is not None and self.max_size < 1:
            raise ValueError(f"max_size={self.max_size} must be at least 1 pixel, or null: use 24")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch_and_image"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., H, W, C]` images, see `as_images`.

        Returns:
            `[..., hidden_sizes[-1]]`.

        Raises:
            ValueError: the observation has too few axes for an image.
        """
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)
        x = as_images(observation, self.channel_first, self.has_channels)
        scale = 1 if self.max_size is None else -(-max(x.shape[-3:-1]) // self.max_size)
        for channels, kernel, stride in zip(self.channel_sizes, self.kernel_sizes, self.strides, strict=True):
            sizes = _pair(kernel, scale), _pair(stride, scale)
            x = make_convolution(channels, *sizes, self.sliced, dtype=self.dtype, kernel_init=kernel_init)(x)
            x = nn.LayerNorm(reduction_axes=(-3, -2, -1), dtype=self.dtype)(x) if self.use_layer_norm else x
            x, scale = activation(x), 1
        x = x.reshape(*x.shape[:-3], -1)
        return MLPTorso(self.hidden_sizes, self.activation, self.use_layer_norm, self.kernel_init, dtype=self.dtype)(x)


def as_images(
    observation: Shaped[Array, "*batch_and_image"], channel_first: bool = False, has_channels: bool = True
) -> Float[Array, "*batch H W C"]:
    """Convert images to floats with the channels last.

    Args:
        observation: `[..., H, W, C]`, `[..., C, H, W]` or `[..., H, W]`.
        channel_first: whether the channel axis comes before height and width.
        has_channels: whether there is a channel axis.

    Returns:
        `[..., H, W, C]` floats, uint8 scaled from 0 … 255 to [0, 1].

    Raises:
        ValueError: the observation has too few axes for an image.
    """
    x = jnp.asarray(observation)
    if not has_channels:
        x = x[..., None]
    elif channel_first and x.ndim >= 3:
        x = jnp.moveaxis(x, -3, -1)
    if x.ndim < 3:
        raise ValueError(
            f"an observation of shape {observation.shape} is not an image [..., height, width, channels]: choose"
            " network=mlp, or set has_channels=false for images [..., height, width]"
        )
    return as_floats(x)


def _check_lengths(**lists: Sequence[Any]) -> None:
    """Raise a ValueError unless all lists have the same length."""
    if len({len(values) for values in lists.values()}) > 1:
        shown = ", ".join(f"{name}={list(values)}" for name, values in lists.items())
        raise ValueError(f"{shown}: use lists of the same length")


def _pair(size: int | Sequence[int], scale: int = 1) -> tuple[int, ...]:
    return tuple(scale * pixels for pixels in ((size, size) if isinstance(size, int) else size))


class GridTorso(nn.Module):
    """A multilayer perceptron on a grid of symbols, such as those of MiniGrid.

    The embedding of a cell is the sum of the embeddings of its channels, with one table per channel:

        x[h, w] = sum_c E_c[symbol[h, w, c]]

    Attributes:
        embedding_size: width of the embedding of a cell, in units.
        hidden_sizes: width of each dense layer, in units.
        activation: name of the activation function.
        use_layer_norm: whether layer normalisation precedes each activation.
        kernel_init: initialiser of the weights of the dense layers, or its name.
        num_symbols: number of symbols; integers outside of `0 … num_symbols - 1` have the embedding 0. In a network
            configuration, None is the number that the observation space allows.
        has_channels: False for grids `[H, W]`.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    embedding_size: int = 16
    hidden_sizes: Sequence[int] = (256,)
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    num_symbols: int | None = None
    has_channels: bool = True
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch_and_grid"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., H, W, C]` integers.

        Returns:
            `[..., hidden_sizes[-1]]`.

        Raises:
            ValueError: the observation has no integers, or the number of symbols is unknown.
        """
        if not jnp.issubdtype(observation.dtype, jnp.integer):
            raise ValueError(f"observations of type {observation.dtype} are not symbols: choose network=cnn")
        if self.num_symbols is None:
            raise ValueError("num_symbols=None, and the observation space sets no largest symbol: set num_symbols")
        symbols = observation if self.has_channels else observation[..., None]
        # As a product with one-hot vectors: the gradient of a table look-up would be a slow scatter.
        one_hot = jax.nn.one_hot(symbols, self.num_symbols)
        tables = nn.Dense(self.embedding_size, use_bias=False, name="tables", dtype=self.dtype)
        x = tables(one_hot.reshape(*symbols.shape[:-1], -1))
        x = x.reshape(*x.shape[:-3], -1)
        return MLPTorso(self.hidden_sizes, self.activation, self.use_layer_norm, self.kernel_init, dtype=self.dtype)(x)


class NoisyMLPTorso(MLPTorso):
    """A multilayer perceptron of noisy layers on the last axis; see `NoisyLinear`.

    Source: Fortunato et al., Noisy Networks for Exploration (2018).

    Attributes:
        sigma_zero: initial scale of the noise.
    """

    sigma_zero: Scalar = 0.5

    def _layer(self, size: int, kernel_init: Initializer) -> nn.Module:
        return NoisyLinear(size, kernel_init=kernel_init, sigma_zero=self.sigma_zero, dtype=self.dtype)


class ResNetTorso(nn.Module):
    """A residual network: a dense layer, then residual blocks of two dense layers.

        x <- x + W_2 f(norm(W_1 f(norm(x))))

    Source: He et al., Identity Mappings in Deep Residual Networks (2016), figure 1b.

    Attributes:
        hidden_size: width of every layer, in units.
        num_blocks: number of blocks.
        activation: name of the activation function, f.
        use_layer_norm: whether layer normalisation precedes each activation.
        kernel_init: initialiser of the weights, or its name.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 256
    num_blocks: int = 2
    activation: str = "relu"
    use_layer_norm: bool = True
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., hidden_size]`.
        """
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)

        def activated(x: Array) -> Array:
            return activation(nn.LayerNorm(dtype=self.dtype)(x) if self.use_layer_norm else x)

        def dense() -> nn.Module:
            return nn.Dense(self.hidden_size, kernel_init=kernel_init, dtype=self.dtype)

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

    Attributes:
        hidden_size: width of the residual stream, in units.
        num_blocks: number of blocks.
        expansion: width of the hidden layer of a block, in multiples of `hidden_size`.
        activation: name of the activation function, f.
        kernel_init: initialiser of the first layer, or its name.
        block_kernel_init: initialiser of the layers of the blocks, or its name.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 128
    num_blocks: int = 1
    expansion: int = 4
    activation: str = "relu"
    kernel_init: Initializer | str = orthogonal(1.0)
    block_kernel_init: Initializer | str = he_normal()
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., hidden_size]`.
        """
        activation = parse_activation_fn(self.activation)
        block_init = parse_initializer(self.block_kernel_init)

        def dense(size: int, kernel_init: Initializer = block_init) -> nn.Module:
            return nn.Dense(size, kernel_init=kernel_init, dtype=self.dtype)

        def normalised(x: Array) -> Array:
            return nn.LayerNorm(dtype=self.dtype)(x)

        x = dense(self.hidden_size, parse_initializer(self.kernel_init))(as_floats(observation))
        for _ in range(self.num_blocks):
            first, second = dense(self.expansion * self.hidden_size), dense(self.hidden_size)
            y = first(normalised(x))
            x = x + second(declare(self, first, activation(y)))
        return restore_float32(normalised(x), self.dtype)


class SimBaV2Torso(nn.Module):
    """A residual network on the unit hypersphere; gradient steps keep the weights of each unit at norm one.

        x <- norm(s * W norm([observation, shift]))
        x <- norm(x + a * (norm(W_2 relu(s * W_1 x)) - x)),  W_1 of `expansion` times the width

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep Reinforcement Learning (2025), arXiv:2502.15280,
    section 4; its normalisation of observations is `system.normalize_observations`, that of rewards
    `system.normalize_rewards`.

    Attributes:
        hidden_size: width of the residual stream, in units.
        num_blocks: number of blocks.
        expansion: width of the hidden layer of a block, in multiples of `hidden_size`.
        shift: feature that is added to the observation, which keeps its norm after normalisation.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 128
    num_blocks: int = 1
    expansion: int = 4
    shift: Scalar = 3.0
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., hidden_size]`, of norm one.
        """

        def dense(size: int) -> nn.Module:
            return UnitDense(size, dtype=self.dtype)

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

    Attributes:
        hidden_size: width of every layer, in units.
        num_blocks: number of blocks.
        activation: name of the activation function.
        kernel_init: initialiser of the weights, or its name.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (1,)

    hidden_size: int = 512
    num_blocks: int = 2
    activation: str = "relu"
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    dtype: Any = None

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., D]` features; uint8 is scaled, see `as_floats`.

        Returns:
            `[..., hidden_size]`.
        """
        activation, kernel_init = parse_activation_fn(self.activation), parse_initializer(self.kernel_init)

        def dense() -> nn.Module:
            return nn.Dense(self.hidden_size, kernel_init=kernel_init, dtype=self.dtype)

        def normalised(x: Array) -> Array:
            return nn.LayerNorm(dtype=self.dtype)(x)

        x = activation(normalised(dense()(as_floats(observation))))
        for _ in range(self.num_blocks):
            first, second = dense(), dense()
            y = declare(self, first, activation(normalised(first(x))))
            x = x + normalised(second(y))
        return restore_float32(x, self.dtype)


class VisualResNetTorso(nn.Module):
    """A residual network for images (IMPALA): groups of a convolution, max pooling and residual blocks; dense layers.

    Each max pooling halves height and width.

    Source: Espeholt et al., IMPALA (2018), figure 3 (right).

    Attributes:
        channels_per_group: number of channels of each group.
        blocks_per_group: number of residual blocks of each group.
        activation: name of the activation function.
        use_layer_norm: whether layer normalisation precedes each activation.
        kernel_init: initialiser of the weights, or its name.
        channel_first: whether images are `[C, H, W]` instead of `[H, W, C]`.
        hidden_sizes: width of each dense layer, in units.
        has_channels: False for images `[H, W]`.
        sliced: how to compute convolutions, see `make_convolution`; None selects by the platform.
        dtype: dtype of the computation, such as bfloat16; parameters and the embedding stay float32. None: the promoted
            dtype of inputs and parameters.
    """

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    channels_per_group: Sequence[int] = (16, 32, 32)
    blocks_per_group: Sequence[int] = (2, 2, 2)
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    channel_first: bool = False
    hidden_sizes: Sequence[int] = (256,)
    has_channels: bool = True
    sliced: bool | None = None
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check that every group has a number of blocks."""
        _check_lengths(channels_per_group=self.channels_per_group, blocks_per_group=self.blocks_per_group)
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch_and_image"]) -> Float[Array, "*batch F"]:
        """Return the embedding.

        Args:
            observation: `[..., H, W, C]` images, see `as_images`.

        Returns:
            `[..., hidden_sizes[-1]]`.

        Raises:
            ValueError: the observation has too few axes for an image.
        """
        activation = parse_activation_fn(self.activation)
        kernel_init = parse_initializer(self.kernel_init)

        def activated(x: Array) -> Array:
            return activation(
                nn.LayerNorm(reduction_axes=(-3, -2, -1), dtype=self.dtype)(x) if self.use_layer_norm else x
            )

        def convolved(x: Array, channels: int) -> Array:
            return make_convolution(channels, (3, 3), sliced=self.sliced, dtype=self.dtype, kernel_init=kernel_init)(x)

        x = as_images(observation, self.channel_first, self.has_channels)
        batch, x = x.shape[:-3], x.reshape(-1, *x.shape[-3:])
        for channels, blocks in zip(self.channels_per_group, self.blocks_per_group, strict=True):
            x = convolved(x, channels)
            x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
            for _ in range(blocks):
                y = convolved(activated(x), channels)
                x = x + convolved(activated(y), channels)
        x = activated(x).reshape(*batch, -1)
        return MLPTorso(self.hidden_sizes, self.activation, self.use_layer_norm, self.kernel_init, dtype=self.dtype)(x)
