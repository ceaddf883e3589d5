"""Torsos of images and of grids of symbols."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import orthogonal
from jaxtyping import Array, Float, Shaped

from stoix_like.networks.convolution import make_convolution
from stoix_like.networks.torso.perceptrons import MLPTorso
from stoix_like.networks.utils import Initializer, parse_activation_fn, parse_initializer
from stoix_like.utils.accelerate.stored import relu
from stoix_like.utils.jax_utils import as_floats


class CNNTorso(nn.Module):
    """A convolutional network: convolutions, then dense layers."""

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    channel_sizes: Sequence[int]  # number of channels of each convolution
    kernel_sizes: Sequence[int | Sequence[int]]  # size of each kernel in pixels, or its height and width
    strides: Sequence[int | Sequence[int]]  # stride of each kernel in pixels, or its strides along height and width
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    channel_first: bool = False  # whether images are `[C, H, W]` instead of `[H, W, C]`
    hidden_sizes: Sequence[int] = (256,)  # width of each dense layer, in units
    has_channels: bool = True  # False for images `[H, W]`
    sliced: bool | None = None  # how to compute convolutions, see `make_convolution`; None selects by the platform
    # Largest height and width of images in pixels; for larger ones, kernel and stride of the first convolution are
    # multiplied by their size / `max_size`, rounded up. None: no limit.
    max_size: int | None = None
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

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
            # Fused into the convolution on GPUs; a normalisation before it would store its own result for the gradient.
            x, scale = relu(x) if activation is jax.nn.relu and not self.use_layer_norm else activation(x), 1
        x = x.reshape(*x.shape[:-3], -1)
        return MLPTorso(self.hidden_sizes, self.activation, self.use_layer_norm, self.kernel_init, dtype=self.dtype)(x)


def as_images(
    observation: Shaped[Array, "*batch_and_image"], channel_first: bool = False, has_channels: bool = True
) -> Float[Array, "*batch H W C"]:
    """Convert images to floats with the channels last, uint8 scaled from 0 … 255 to [0, 1].

    `observation`: `[..., H, W, C]`, `[..., C, H, W]` or `[..., H, W]`.
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
    """A multilayer perceptron on a grid of symbols, such as MiniGrid's.

    The embedding of a cell is the sum of the embeddings of its channels, with one table per channel:

        x[h, w] = sum_c E_c[symbol[h, w, c]]
    """

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    embedding_size: int = 16  # width of the embedding of a cell, in units
    hidden_sizes: Sequence[int] = (256,)  # width of each dense layer, in units
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    # Initialiser of the weights of the dense layers, or its name.
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))
    # Number of symbols; integers outside of `0 … num_symbols - 1` have the embedding 0. In a network configuration,
    # None is the number that the observation space allows.
    num_symbols: int | None = None
    has_channels: bool = True  # False for grids `[H, W]`
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

    @nn.compact
    def __call__(self, observation: Shaped[Array, "*batch_and_grid"]) -> Float[Array, "*batch F"]:
        """Return the embedding, `[..., hidden_sizes[-1]]`, of integers `[..., H, W, C]`."""
        if not jnp.issubdtype(observation.dtype, jnp.integer):
            raise ValueError(
                f"observations of type {observation.dtype} are not symbols: choose network=cnn, or normalise none"
            )
        if self.num_symbols is None:
            raise ValueError("num_symbols=None, and the observation space sets no largest symbol: set num_symbols")
        symbols = observation if self.has_channels else observation[..., None]
        # As a product with one-hot vectors: the gradient of a table look-up would be a slow scatter.
        one_hot = jax.nn.one_hot(symbols, self.num_symbols, dtype=jnp.float32)
        tables = nn.Dense(self.embedding_size, use_bias=False, name="tables", dtype=self.dtype)
        x = tables(one_hot.reshape(*symbols.shape[:-1], -1))
        x = x.reshape(*x.shape[:-3], -1)
        return MLPTorso(self.hidden_sizes, self.activation, self.use_layer_norm, self.kernel_init, dtype=self.dtype)(x)


class VisualResNetTorso(nn.Module):
    """A residual network for images (IMPALA): groups of a convolution, max pooling and residual blocks; dense layers.

    Each max pooling halves height and width.

    Source: Espeholt et al., IMPALA (2018), figure 3 (right).
    """

    view_dims: ClassVar[tuple[int, ...]] = (2, 3)

    channels_per_group: Sequence[int] = (16, 32, 32)  # number of channels of each group
    blocks_per_group: Sequence[int] = (2, 2, 2)  # number of residual blocks of each group
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = orthogonal(math.sqrt(2.0))  # initialiser of the weights, or its name
    channel_first: bool = False  # whether images are `[C, H, W]` instead of `[H, W, C]`
    hidden_sizes: Sequence[int] = (256,)  # width of each dense layer, in units
    has_channels: bool = True  # False for images `[H, W]`
    sliced: bool | None = None  # how to compute convolutions, see `make_convolution`; None selects by the platform
    dtype: Any = None  # dtype of the computation, see `MLPTorso`

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
            x = nn.LayerNorm(reduction_axes=(-3, -2, -1), dtype=self.dtype)(x) if self.use_layer_norm else x
            return activation(x)

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
