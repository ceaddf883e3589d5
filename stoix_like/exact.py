"""Arrays of environments in Python, as these declare them; worker processes import it, so it imports no jax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np


def as_spec(spec: Any, value: Any, what: str) -> Any:
    """Convert arrays to the dtypes that are declared; nothing is broadcast, left out or filled in."""
    dtype = getattr(spec, "dtype", None)
    if (
        dtype is not None
        and getattr(value, "dtype", type(value)) == dtype
        and getattr(value, "shape", ()) == spec.shape
    ):
        return value  # nearly always
    parts = getattr(spec, "spaces", spec)
    if isinstance(parts, Mapping):
        names = sorted(map(str, value)) if isinstance(value, Mapping) else type(value).__name__
        if names != sorted(map(str, parts)):
            raise ValueError(f"{what} has {names}, and {[*parts]} is declared: make them agree")
        return {name: as_spec(part, value[name], f"{what}[{name!r}]") for name, part in parts.items()}
    if isinstance(parts, list | tuple):
        if not isinstance(value, list | tuple) or len(value) != len(parts):
            raise ValueError(
                f"{what} is a {type(value).__name__}, and {len(parts)} parts are declared: make them agree"
            )
        each = enumerate(zip(parts, value, strict=True))
        return type(parts)(as_spec(part, own, f"{what}[{i}]") for i, (part, own) in each)
    array = as_dtype(spec.dtype, value, what)
    if array.shape != tuple(spec.shape):
        raise ValueError(f"{what} has shape {array.shape}, and {tuple(spec.shape)} is declared: make them agree")
    return array


def as_dtype(dtype: Any, value: Any, what: str) -> np.ndarray:
    """Convert an array to a dtype of its kind, or to one that holds the same numbers."""
    array, dtype = np.asarray(value), np.dtype(dtype)
    if array.dtype == dtype:
        return array
    # Whole numbers are what they are; but for bytes, which may be pixels, scaled to zeros and ones.
    kinds = "biu" if dtype == np.uint8 else "biuf"
    whole = dtype.kind in "biu" and array.dtype.kind in kinds
    with np.errstate(invalid="ignore", over="ignore"):
        fits = np.array_equal(array.astype(dtype), array) if whole else np.can_cast(array.dtype, dtype, "same_kind")
        if fits:
            return array.astype(dtype)
    raise ValueError(
        f"{what} has dtype {array.dtype}, and {dtype} is declared, which does not hold its values: pass what the"
        " environment declares, not scaled"
    )
