"""Arrays in zip files of numpy, which are never unpickled, and the files of this package."""

from __future__ import annotations

import math
import struct
import zipfile
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, NamedTuple, Self

import jax
import numpy as np

from stoix_like.data.dataset import FORMAT, DataHeader, DataSet
from stoix_like.errors import ConfigError

HEADER = "header.json"
_MAX_HEADER_BYTES = 2**24
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
# An entry of a zip file starts with 30 bytes, and the lengths of its name and of a further field end them.
_ENTRY = struct.Struct("<26xHH")


class _Member(NamedTuple):
    """Where an array is in its file: its shape, its order, its dtype, and its first byte in the entry."""

    shape: tuple[int, ...]
    is_fortran: bool
    dtype: np.dtype[Any]
    start: int


class Archive:
    """A zip file of arrays, open for reading.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._zip = path, zipfile.ZipFile(path)
        self.names = [name.removesuffix(".npy") for name in self._zip.namelist() if name.endswith(".npy")]

    def __enter__(self) -> Self:
        """Return the file."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the file; arrays that were read stay."""
        self._zip.close()

    @property
    def has_header(self) -> bool:
        """Whether the file is one of this package."""
        return HEADER in self._zip.namelist()

    def header(self) -> DataHeader:
        """Read the header of this package.

        Raises:
            ConfigError: the file has the format of a later version.
        """
        with self._zip.open(HEADER) as file:
            found = DataHeader.from_json(file.read(_MAX_HEADER_BYTES), str(self._path))
        if found.format != FORMAT:
            raise ConfigError(f"the file has the format {found.format}, and this version reads {FORMAT}: update it")
        return found

    def shape(self, name: str) -> jax.ShapeDtypeStruct:
        """Return the shape and the dtype of an array, without reading it."""
        with self._zip.open(f"{name}.npy") as file:
            member = self._member(name, file)
        return jax.ShapeDtypeStruct(member.shape, member.dtype)

    def array(self, name: str) -> np.ndarray:
        """Return an array, mapped into memory if it is stored without compression.

        Raises:
            ConfigError: it is pickled, or no array of numbers.
            ValueError: it is damaged.
        """
        info = self._zip.getinfo(f"{name}.npy")
        with self._zip.open(info) as file:
            member = self._member(name, file)
            size = math.prod(member.shape) * member.dtype.itemsize
            if member.start + size != info.file_size:
                raise ValueError(f"{name} has {info.file_size - member.start:,} bytes instead of {size:,}")
            if info.compress_type == zipfile.ZIP_STORED and size:
                order: Literal["F", "C"] = "F" if member.is_fortran else "C"
                return np.memmap(self._path, member.dtype, "r", self._start(info) + member.start, member.shape, order)
        with self._zip.open(info) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    def _member(self, name: str, file: IO[bytes]) -> _Member:
        version = np.lib.format.read_magic(file)
        if version not in _HEADERS:
            raise ValueError(f"{name} has the version {version} of numpy's format")
        shape, is_fortran, dtype = _HEADERS[version](file)
        if dtype.hasobject:
            raise ConfigError(
                f"{name} holds pickled objects, which could run any code when they are read: save plain arrays of"
                " numbers"
            )
        if dtype.kind not in "biuf":
            raise ConfigError(f"{name} has the dtype {dtype}: save numbers")
        return _Member(shape, is_fortran, dtype, file.tell())

    def _start(self, info: zipfile.ZipInfo) -> int:
        """Return the offset of an entry's data in the file."""
        with self._path.open("rb") as file:
            file.seek(info.header_offset)
            return info.header_offset + _ENTRY.size + sum(_ENTRY.unpack(file.read(_ENTRY.size)))


def write(file: IO[bytes], data: DataSet, compress: bool) -> None:
    """Write a data set; the same data give the same bytes.

    Args:
        file: the file.
        data: the data set.
        compress: whether to compress the arrays.
    """
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(_entry(HEADER, True), data.header.to_json())
        for name, array in data.arrays().items():
            with archive.open(_entry(f"{name}.npy", compress), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(array), allow_pickle=False)


def header(path: Path) -> DataHeader:
    """Read the header of a file of this package."""
    with Archive(path) as archive:
        return archive.header()


def shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of the arrays of a file of this package."""
    with Archive(path) as archive:
        return {name: archive.shape(name) for name in archive.names}


def read(path: Path) -> DataSet:
    """Read a file of this package."""
    with Archive(path) as archive:
        return DataSet.from_arrays(archive.header(), {name: archive.array(name) for name in archive.names})


def _entry(name: str, compress: bool) -> zipfile.ZipInfo:
    # Of a date that is always the same.
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    return info
