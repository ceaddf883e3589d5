"""Arrays in zip files of numpy: shapes without the arrays, and arrays that are mapped into memory where they can be."""

from __future__ import annotations

import math
import struct
import zipfile
from collections.abc import Container
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from stoix_like.errors import ConfigError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# An entry of a zip file starts with 30 bytes; the lengths of its name and of a further field end them.
_ENTRY = struct.Struct("<26xHH")


def shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the arrays of a file, without reading them.

    Args:
        path: the file.

    Raises:
        ConfigError: an array is pickled.
        ValueError: the file is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        return {name: jax.ShapeDtypeStruct(*_header(archive, name)[:2]) for name in names}


def arrays(path: Path, names: Container[str]) -> dict[str, np.ndarray]:
    """Read arrays one after the other; those without compression are mapped into memory. None is ever unpickled.

    Args:
        path: the file.
        names: the arrays to read, as far as the file has them.

    Raises:
        ConfigError: an array is pickled.
        ValueError: the file is damaged.
    """
    with zipfile.ZipFile(path) as archive:
        return {name: _array(path, archive, name) for name in shapes(path) if name in names}


def _array(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray:
    (shape, dtype, order, start), info = _header(archive, name), archive.getinfo(f"{name}.npy")
    size = math.prod(shape) * dtype.itemsize
    if start + size != info.file_size:
        raise ValueError(f"{name} has {info.file_size - start:,} bytes instead of {size:,}")
    if info.compress_type == zipfile.ZIP_STORED and size:
        with path.open("rb") as file:
            file.seek(info.header_offset)
            start += info.header_offset + _ENTRY.size + sum(_ENTRY.unpack(file.read(_ENTRY.size)))
        return np.memmap(path, dtype, "r", start, shape, order)
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Literal["F", "C"], int]:
    """Return the shape, the dtype, the order and the first byte of an array in its entry."""
    with archive.open(f"{name}.npy") as file:
        shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ConfigError(f"{name} is pickled, and reading it could run any code: save plain arrays of numbers")
        return shape, dtype, "F" if is_fortran else "C", file.tell()
