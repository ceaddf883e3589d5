"""Encoder and decoder of world models, for vectors, images, symbols and dictionaries of them.

Entries of observations are of one of three kinds. Images are boxes with finite bounds and a height and width of at
least 5 pixels. Symbols are integers of few values, as in `Discrete` and small grids. All others are
vectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stoix_like.base_types import PyTree
from stoix_like.envs.spaces import Box, Dict, ObservationSpace, bounds, entries
from stoix_like.networks.convolution import make_convolution, make_upsampling_convolution
from stoix_like.networks.utils import parse_activation_fn
from stoix_like.utils.jax_utils import prepend_dims, restore_float32
from stoix_like.utils.scales import symexp, symlog

VIEW = "agent_view"
"""Name of a prediction, `agent_view`; entries of a dictionary have `agent_view.entry`."""

VECTOR, IMAGE, SYMBOLS = "vector", "image", "symbols"

_LEAST_PIXELS = 5
_MOST_SYMBOLS = 64
# Height and width at which images are flattened.
_LAST_PIXELS = 6
_EPSILON = 1e-4


def kind_of(space: ObservationSpace) -> str:
    """Return whether an entry of an observation is a `vector`, an `image` or `symbols`."""
    if not isinstance(space, Box):
        return SYMBOLS
    if jnp.issubdtype(space.dtype, jnp.integer) and space.bounded and _num_symbols(space) <= _MOST_SYMBOLS:
        return SYMBOLS
    is_large = len(space.shape) in (2, 3) and min(space.shape[:2]) >= _LEAST_PIXELS
    return IMAGE if is_large and (space.bounded or _is_flag(space)) else VECTOR


class _Coder(nn.Module):
    """The attributes and layers that encoder and decoder share."""

    units: int = 256  # width of the dense layers, in units
    num_layers: int = 1  # number of dense layers for all entries that are not images together
    # Channels of the first convolution of images; the following ones have 2, 3, … times as many.
    channels: int = 16
    kernel_size: int = 5  # height and width of the kernels, in pixels
    activation: str = "silu"  # name of the activation function, after normalisation by the root mean square
    # Dtype of the layers, such as bfloat16; parameters, statistics of normalisation and outputs stay float32.
    dtype: Any = None
    space: ObservationSpace | None = None  # the observation space

    def _spaces(self) -> dict[str, Any]:
        if self.space is None:
            raise ValueError(f"space=None: set the observation space of the {type(self).__name__}")
        return entries(self.space, VIEW)

    def _activate(self, x: Array) -> Array:
        x = nn.RMSNorm(epsilon=_EPSILON, dtype=self.dtype)(x)
        return parse_activation_fn(self.activation)(x)

    def _dense_layers(self, x: Array) -> Array:
        for _ in range(self.num_layers):
            x = self._activate(nn.Dense(self.units, dtype=self.dtype)(x))
        return x

    @property
    def _kernel(self) -> tuple[int, int]:
        return self.kernel_size, self.kernel_size


class ObservationEncoder(_Coder):
    """The encoder of a world model: dense layers for vectors and symbols, and convolutions for each image.

    Vectors pass through `symlog`, symbols become one-hot vectors, images are scaled by their bounds. Convolutions with
    strides of 2 halve images until their height and width are at most 6 pixels, with 1, 2, 3, … times the channels; the
    authors' code pools instead, with 2, 3, 4 and 4 times.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, world model learning.
    """

    @nn.compact
    def __call__(self, view: PyTree) -> Float[Array, "*batch D"]:
        """Return tokens `[..., D]` of views `[..., *view]`, or of a dictionary of them."""
        pairs = [(space, array) for _, space, array in _matched(self._spaces(), view)]
        vectors = [_as_vector(*pair) for pair in pairs if kind_of(pair[0]) != IMAGE]
        tokens = [self._dense_layers(jnp.concatenate(vectors, axis=-1))] if vectors else []
        tokens += [self._convolve(*pair) for pair in pairs if kind_of(pair[0]) == IMAGE]
        return restore_float32(jnp.concatenate(tokens, axis=-1), self.dtype)

    def _convolve(self, space: Box, images: Array) -> Array:
        x = _scale_to_unit(space, images)
        if jnp.issubdtype(space.dtype, jnp.integer):
            x = x - 0.5
        x = x.reshape(*x.shape[: x.ndim - len(space.shape)], *_image_shape(space))
        for stage in range(1, len(_sizes(space))):
            x = self._activate(make_convolution(stage * self.channels, self._kernel, (2, 2), dtype=self.dtype)(x))
        return x.reshape(*x.shape[:-3], -1)


class ObservationDecoder(_Coder):
    """The decoder of a world model: the layers of `ObservationEncoder` in reverse.

    Strides become nearest-neighbour upsampling before a convolution.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, world model learning.
    """

    @nn.compact
    def __call__(self, features: Float[Array, "*batch F"]) -> dict[str, Float[Array, "..."]]:
        """Return predictions by name of the entry, see `VIEW` and `decoder_loss`.

        `[..., *entry]`: `symlog` of vectors, flags themselves, images scaled to [0, 1].
        `[..., *entry, K]`: logits of symbols.
        """
        spaces = self._spaces()
        images = {name: space for name, space in spaces.items() if kind_of(space) == IMAGE}
        shapes = {name: _output_shape(space) for name, space in spaces.items() if name not in images}
        predictions = {name: self._image(space, features) for name, space in images.items()}
        return predictions | self._vectors(shapes, features) if shapes else predictions

    def _vectors(self, shapes: dict[str, tuple[int, ...]], features: Array) -> dict[str, Array]:
        sizes = [math.prod(shape) for shape in shapes.values()]
        x = restore_float32(self._dense_layers(features), self.dtype)
        parts = jnp.split(nn.Dense(sum(sizes))(x), np.cumsum(sizes)[:-1], axis=-1)
        pairs = zip(shapes.items(), parts, strict=True)
        return {name: part.reshape(*part.shape[:-1], *shape) for (name, shape), part in pairs}

    def _image(self, space: Box, features: Array) -> Array:
        sizes, shape = _sizes(space), _image_shape(space)
        widths = [shape[-1], *(stage * self.channels for stage in range(1, len(sizes)))]
        x = nn.Dense(math.prod(sizes[-1]) * widths[-1], dtype=self.dtype)(features)
        x = x.reshape(*features.shape[:-1], *sizes[-1], widths[-1])
        for width, (height, breadth) in zip(widths[-2::-1], sizes[-2::-1], strict=True):
            x = self._activate(x)
            x = make_upsampling_convolution(width, self._kernel, dtype=self.dtype)(x)[..., :height, :breadth, :]
        return nn.sigmoid(restore_float32(x, self.dtype)).reshape(*features.shape[:-1], *space.shape)


def decoder_loss(
    space: ObservationSpace, predictions: dict[str, Float[Array, "..."]], agent_view: PyTree
) -> Float[Array, "*batch"]:
    """Compute the losses of predicted observations, summed over all entries.

        vectors:        sum_i (y_i - symlog(x_i))^2
        images, flags:  sum_i (y_i - x_i)^2,  x in [0, 1]
        symbols:        -sum_i log softmax(y_i)[x_i]

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, equation 3 and symlog squared error.

    `predictions`: the output y of `ObservationDecoder`.
    `agent_view`: `[..., *view]`, the observations x.
    """
    matched = _matched(entries(space, VIEW), agent_view)
    return jnp.asarray(sum(_entry_loss(entry, predictions[name], array) for name, entry, array in matched))


def decoded_view(space: ObservationSpace, predictions: dict[str, Float[Array, "..."]]) -> PyTree:
    """Convert predictions of `ObservationDecoder` to an observation.

    Returns a tree like `Observation.agent_view`, `[..., *view]` floats in its units; the most likely symbols.
    """

    def decode(space: ObservationSpace, name: str) -> PyTree:
        if isinstance(space, Dict):
            return {key: decode(child, f"{name}.{key}") for key, child in space.spaces.items()}
        return _decoded(space, predictions[name])

    return decode(space, VIEW)


def _matched(spaces: dict[str, Any], view: PyTree) -> Iterator[tuple[str, Any, Array]]:
    """Return name, space and array of each entry."""
    views = entries(view, VIEW)
    return ((name, space, views[name]) for name, space in spaces.items())


def _as_vector(space: Any, array: Array) -> Array:
    """Return an entry as floats `[..., D]`."""
    leading = array.shape[: array.ndim - len(space.shape)]
    floats = _one_hot(space, array) if kind_of(space) == SYMBOLS else symlog(array.astype(jnp.float32))
    return floats.reshape(*leading, -1)


def _entry_loss(space: Any, prediction: Array, array: Array) -> Array:
    event = tuple(range(-len(space.shape), 0))
    kind = kind_of(space)
    if kind == SYMBOLS:
        chosen = jnp.sum(jax.nn.log_softmax(prediction) * _one_hot(space, array), axis=-1)
        return -jnp.sum(chosen, axis=event)
    if kind == IMAGE:
        target = _scale_to_unit(space, array)
    else:
        floats = array.astype(jnp.float32)
        target = floats if _is_flag(space) else symlog(floats)
    return jnp.sum(jnp.square(prediction - target), axis=event)


def _decoded(space: Any, prediction: Array) -> Array:
    kind = kind_of(space)
    if kind == SYMBOLS:
        first, _ = _limits(space)
        return jnp.argmax(prediction, axis=-1).astype(jnp.float32) + first
    if kind == IMAGE:
        low, width = _interval(space, prediction.ndim)
        return low + width * prediction
    return prediction if _is_flag(space) else symexp(prediction)


def _one_hot(space: Any, array: Array) -> Array:
    first, _ = _limits(space)
    return jax.nn.one_hot(array.astype(jnp.int32) - first, _num_symbols(space), dtype=jnp.float32)


def _num_symbols(space: Any) -> int:
    first, last = _limits(space)
    return last - first + 1


def _limits(space: Any) -> tuple[int, int]:
    low, high = bounds(space)
    return int(np.min(low)), int(np.max(high))


def _is_flag(space: Any) -> bool:
    return bool(space.dtype == jnp.bool_)


def _scale_to_unit(space: Box, images: Array) -> Array:
    low, width = _interval(space, images.ndim)
    return (images.astype(jnp.float32) - low) / width


def _interval(space: Box, num_dims: int) -> tuple[Any, Any]:
    """Return lower bounds and widths of the intervals of an image, which broadcast against `num_dims` axes."""
    low, high = (0.0, 1.0) if _is_flag(space) else (space.low, space.high)
    low, high = (prepend_dims(np.asarray(bound, np.float32), num_dims) for bound in (low, high))
    return low, np.where(high > low, high - low, 1.0).astype(np.float32)


def _output_shape(space: Any) -> tuple[int, ...]:
    return (*space.shape, _num_symbols(space)) if kind_of(space) == SYMBOLS else tuple(space.shape)


def _image_shape(space: Box) -> tuple[int, ...]:
    return space.shape if len(space.shape) == 3 else (*space.shape, 1)


def _sizes(space: Box) -> list[tuple[int, ...]]:
    """Return height and width of images before the first and after each convolution, at least one."""
    sizes = [tuple(space.shape[:2])]
    while len(sizes) == 1 or max(sizes[-1]) > _LAST_PIXELS:
        sizes.append(tuple(-(-size // 2) for size in sizes[-1]))
    return sizes
