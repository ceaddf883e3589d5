"""Forms of convolutions for processors on which XLA's own are slow: as products of matrices, or padded equally."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.linen.linear import default_kernel_init
from jaxtyping import Array, Float

from stoix_like.utils.accelerate.platform import on_cpu, on_gpu
from stoix_like.utils.accelerate.stored import stored


def make_convolution(
    channels: int,
    kernel: tuple[int, ...],
    strides: tuple[int, ...] = (1, 1),
    sliced: bool | None = None,
    *,
    dtype: Any = None,
    kernel_init: Callable[..., Array] = default_kernel_init,
    padding: str | Sequence[tuple[int, int]] = "SAME",
) -> nn.Conv:
    """Build a convolution of images; its parameters and outputs do not depend on how it is computed.

    `kernel`, `strides`: along height and width, in pixels.
    `sliced`: whether to compute it as in `convolve_slices`; None for CPUs only, where XLA runs the gradients of its own
    convolutions in a single thread inside loops.
    `dtype`, `kernel_init`, `padding`: see `nn.Conv`.
    """
    sliced = on_cpu() if sliced is None else sliced
    convolve = convolve_slices if sliced else convolve_symmetrically if on_gpu() else None
    return nn.Conv(
        channels, kernel, strides, padding, dtype=dtype, kernel_init=kernel_init, conv_general_dilated=convolve
    )


def make_upsampling_convolution(
    channels: int, kernel: tuple[int, int], sliced: bool | None = None, **kwargs: Any
) -> nn.Conv:
    """Build a convolution of images that are doubled in height and width by repeating pixels before it.

    `kernel`: height and width, in pixels of the output.
    `sliced`: see `make_convolution`.
    `**kwargs`: other arguments of `nn.Conv`.
    """
    convolve = functools.partial(convolve_upsampled, sliced=on_cpu() if sliced is None else sliced)
    return nn.Conv(channels, kernel, conv_general_dilated=convolve, **kwargs)


def convolve_upsampled(
    images: Float[Array, "B H W C"],
    kernel: Float[Array, "h w C D"],
    *_: Any,
    sliced: bool,
    precision: Any = None,
    **__: Any,
) -> Float[Array, "B 2*H 2*W D"]:
    """Convolve images that are upsampled by 2, with a stride of 1 and the padding `SAME`.

    Pixels of the four phases of the output see the same pixels of the input, through sums of the kernel's entries: one
    convolution of the small images computes them all.

    `*_`, `**__`: other arguments of `jax.lax.conv_general_dilated`, as `nn.Conv` sets them.
    `sliced`: whether to compute it as in `convolve_slices`.
    """
    (rows, above), (columns, left) = (_phases(size) for size in kernel.shape[:2])
    # [phase, tap, h], [phase, tap, w] and the kernel to [tap, tap, C, phase, phase, D].
    phases = jnp.einsum("pau,qbv,uvcd->abcpqd", rows.astype(kernel.dtype), columns.astype(kernel.dtype), kernel)
    small = phases.reshape(*phases.shape[:3], -1)
    padding = [(above, small.shape[0] - 1 - above), (left, small.shape[1] - 1 - left)]
    if sliced:
        y = convolve_slices(images, small, (1, 1), padding, precision)
    else:
        layout = ("NHWC", "HWIO", "NHWC")
        y = jax.lax.conv_general_dilated(images, small, (1, 1), padding, dimension_numbers=layout, precision=precision)
    batch, height, width = y.shape[:3]
    y = y.reshape(batch, height, width, 2, 2, -1).swapaxes(2, 3)
    return y.reshape(batch, 2 * height, 2 * width, -1)


def _phases(size: int) -> tuple[np.ndarray, int]:
    """Return which taps of a kernel fall on which pixel before upsampling, `[2, taps, size]`, and the taps before 0."""
    # Output pixel 2 y + p sees the upsampled pixels 2 y + p + u, which are the pixels y + (p + u) // 2.
    offsets = np.arange(size) - (size - 1) // 2
    taps = (np.arange(2)[:, None] + offsets) // 2
    before = -int(taps.min())
    return (taps[:, None] + before == np.arange(int(taps.max()) + before + 1)[:, None]).astype(np.float32), before


def convolve_symmetrically(
    images: Float[Array, "B H W C"],
    kernel: Float[Array, "h w C D"],
    strides: Sequence[int],
    padding: Any,
    **kwargs: Any,
) -> Float[Array, "B Y X D"]:
    """Compute a convolution with as much padding before as behind, where `SAME` has one pixel more behind.

    A GPU would copy the images to pad them unequally; zeros before the kernel shift it instead. The arguments are as in
    `jax.lax.conv_general_dilated`.
    """
    if isinstance(padding, str) and set(kwargs.get("rhs_dilation", ())) <= {1}:
        padding = jax.lax.padtype_to_pads(images.shape[1:3], kernel.shape[:2], strides, padding)
        before = [(int(high == low + 1), 0) for low, high in padding]
        padding = [(low + more, high) for (low, high), (more, _) in zip(padding, before, strict=True)]
        kernel = stored(jnp.pad(kernel, (*before, (0, 0), (0, 0))))
    return jax.lax.conv_general_dilated(images, kernel, strides, padding, **kwargs)


def convolve_slices(
    images: Float[Array, "B H W C"],
    kernel: Float[Array, "h w c D"],
    strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    precision: Any = None,
    **_: Any,
) -> Float[Array, "B Y X D"]:
    """Compute a convolution as one product of a matrix and the kernel.

        y_{ij} = sum_{uv} x_{i s + u, j t + v} K_{uv}

    The matrix holds shifted slices of the images. Where the strides divide the height and width of the kernel, it holds
    the blocks of s x t pixels, each once, and the products are shifted and added.

    `strides`: s and t, along height and width, in pixels.
    `padding`: `SAME`, `VALID`, or pixels before and after each image along height and width.
    `**_`: other arguments of `jax.lax.conv_general_dilated`, as `nn.Conv` sets them without dilations and groups.
    """
    height, width = kernel.shape[:2]
    if isinstance(padding, str):
        padding = jax.lax.padtype_to_pads(images.shape[1:3], (height, width), strides, padding)
    x = jnp.pad(images, ((0, 0), *padding, (0, 0)))
    if math.prod(strides) > 1 and height % strides[0] == width % strides[1] == 0:
        blocks = jnp.moveaxis(_blocks(jnp.moveaxis(kernel, -1, 0), strides), 0, -1)
        return _add_products(_blocks(x, strides), blocks, precision)
    sizes = zip(x.shape[1:3], (height, width), strides, strict=True)
    rows, columns = ((size - span) // step + 1 for size, span, step in sizes)

    def shifted(u: int, v: int) -> Array:
        last = (u + (rows - 1) * strides[0] + 1, v + (columns - 1) * strides[1] + 1)
        return jax.lax.slice(x, (0, u, v, 0), (x.shape[0], *last, x.shape[3]), (1, *strides, 1))

    patches = jnp.concatenate([shifted(u, v) for u in range(height) for v in range(width)], axis=-1)
    matrix = kernel.reshape(math.prod(kernel.shape[:3]), -1)
    products = jnp.dot(patches.reshape(-1, len(matrix)), matrix, precision=precision)
    return products.reshape(-1, rows, columns, kernel.shape[3])


def _blocks(images: Float[Array, "B H W C"], sizes: Sequence[int]) -> Float[Array, "B Y X D"]:
    """Make the pixels of each block the channels of one pixel; what exceeds whole blocks is cut off."""
    rows, columns = (size // block for size, block in zip(images.shape[1:3], sizes, strict=True))
    x = images[:, : rows * sizes[0], : columns * sizes[1]]
    x = x.reshape(x.shape[0], rows, sizes[0], columns, sizes[1], x.shape[3])
    return x.swapaxes(2, 3).reshape(x.shape[0], rows, columns, math.prod(sizes) * x.shape[5])


def _add_products(
    images: Float[Array, "B H W C"], kernel: Float[Array, "h w C D"], precision: Any
) -> Float[Array, "B Y X D"]:
    """Compute a convolution with strides of 1 as the sum of shifted products of all pixels and all of the kernel."""
    height, width, channels, outputs = kernel.shape
    matrix = jnp.moveaxis(kernel, 2, 0).reshape(channels, -1)
    products = jnp.dot(images.reshape(-1, channels), matrix, precision=precision)
    products = products.reshape(*images.shape[:3], height, width, outputs)
    rows, columns = images.shape[1] - height + 1, images.shape[2] - width + 1
    shifted = (products[:, u : u + rows, v : v + columns, u, v] for u in range(height) for v in range(width))
    return functools.reduce(jnp.add, shifted)
