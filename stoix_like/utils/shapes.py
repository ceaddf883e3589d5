"""Shape checks of arguments, made while a function is traced, and therefore free once it is compiled."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import chex

_ARGUMENT = re.compile(r"(\w+)\[([^\]]*)\]")


def check_shapes(layout: str, arrays: Sequence[Any]) -> None:
    """Refuse arrays with different shapes, which would broadcast silently, such as `[B]` and `[B, 1]`.

    `chex.disable_asserts()` turns the checks off.

    `layout`: names and shapes of the arrays, `q_tm1[B,A] a_tm1[B] values[B,T+1]`.
    `arrays`: the arrays, in the same order; those that are None are not checked.
    """
    sizes: dict[str, Any] = {}
    for (name, axes), array in zip(_parse(layout), arrays, strict=True):
        if array is None:
            continue
        shape = tuple(getattr(array, "shape", ()))
        expected = _expected(axes, shape, sizes)
        try:
            chex.assert_shape(array, expected)
        except AssertionError:
            needed = ", ".join(map(str, axes))
            known = ", ".join(f"{axis} = {size}" for axis, size in sizes.items())
            raise ValueError(
                f"{name}.shape={shape} must be [{needed}], where {known}: the arguments are {layout}"
            ) from None


def check_last_axes(name: str, shape: Sequence[Any], needed: Sequence[Any], least: int, what: str) -> None:
    """Refuse an array that would broadcast silently, such as `[B, 1]` against `[B]`; more leading axes are fine."""
    num_axes = max(least, min(len(shape), len(needed)))
    last = tuple(needed[len(needed) - num_axes :])
    if tuple(shape[max(len(shape) - num_axes, 0) :]) != last:
        raise ValueError(f"{name}.shape={tuple(shape)} must end with {last}, the last axes of {what}")


@functools.cache
def _parse(layout: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split a layout into names and their axes."""
    found = _ARGUMENT.findall(layout)
    return tuple((name, tuple(axis.strip() for axis in axes.split(",") if axis.strip())) for name, axes in found)


def _expected(axes: tuple[str, ...], shape: tuple[Any, ...], sizes: dict[str, Any]) -> tuple[Any, ...]:
    """Return the shape that the axes stand for; unknown letters take their sizes from `shape`."""
    num_plain = sum(not axis.startswith("*") for axis in axes)
    expected: list[Any] = []
    for axis in axes:
        here = len(expected)
        if axis.startswith("*"):
            size = shape[here : here + max(len(shape) - num_plain, 0)]
            expected.extend(sizes.setdefault(axis, size))
        elif match := re.fullmatch(r"(\w+)([+-]\d+)", axis):
            expected.append(sizes[match[1]] + int(match[2]))
        elif len(axes) - num_plain or len(shape) == num_plain:
            expected.append(sizes.setdefault(axis, shape[here]) if here < len(shape) else None)
        else:
            # The rank is wrong: bind nothing, and let the check fail.
            expected.append(sizes.get(axis))
    return tuple(expected)
