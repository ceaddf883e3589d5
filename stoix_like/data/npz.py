"""Arrays in zip files of numpy: shapes without the arrays, and arrays that are mapped into memory where they can be."""

from __future__ import annotations

import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from stoix_like.errors import ConfigError

_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# An entry of a zip file starts with 30 bytes; the lengths of its name and of a further field end them.
_ENTRY = struct.Struct("<26xHH")


def shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the arrays of a file, without reading them."""
    with zipfile.ZipFile(path) as archive:
        names = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
        return {name: jax.ShapeDtypeStruct(*_header(archive, name)[:2]) for name in names}


def array(path: Path, name: str) -> np.ndarray:
    """Read an array and compare its checksum; uncompressed arrays are mapped into memory. Nothing is unpickled."""
    with zipfile.ZipFile(path) as archive:
        (shape, dtype, order, start), info = _header(archive, name), archive.getinfo(f"{name}.npy")
        size = math.prod(shape) * dtype.itemsize
        if start + size != info.file_size:
            raise ValueError(f"{name} has {info.file_size - start:,} bytes instead of {size:,}")
        if info.compress_type != zipfile.ZIP_STORED or not size:
            with archive.open(info) as member:
                return np.lib.format.read_array(member, allow_pickle=False)
    with path.open("rb") as file:
        file.seek(info.header_offset)
        offset = info.header_offset + _ENTRY.size + sum(_ENTRY.unpack(file.read(_ENTRY.size)))
    content = np.memmap(path, np.uint8, "r", offset, (info.file_size,))
    if zlib.crc32(content.data) != info.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 for file {info.filename!r}")
    return content[start:].view(dtype).reshape(shape, order=order)


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any], Literal["F", "C"], int]:
    """Return the shape, the dtype, the order and the first byte of an array in its entry."""
    with archive.open(f"{name}.npy") as file:
        shape, is_fortran, dtype = _HEADERS[np.lib.format.read_magic(file)](file)
        if dtype.hasobject:
            raise ConfigError(f"{name} is pickled, and reading it could run any code: save plain arrays of numbers")
        return shape, dtype, "F" if is_fortran else "C", file.tell()
