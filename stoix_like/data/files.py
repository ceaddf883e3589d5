"""Files of data sets: of this package, and of others, which are recognised by their content.

| layout | file | see |
|---|---|---|
| this package | `.npz` with a JSON text as its array `header` | `dataset` |
| OGBench | `.npz` with `observations`, `actions` and `terminals` | `layouts.read_ogbench` |
| D4RL | HDF5 or `.npz` with `observations`, `actions`, `rewards`, `terminals` and `timeouts` | `layouts.read_d4rl` |
| Minari | a directory with `data/main_data.hdf5` | `layouts.read_minari` |
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.data import layouts, npz
from stoix_like.data.dataset import FORMAT, DataHeader, DataSet
from stoix_like.errors import ConfigError, reason
from stoix_like.storage.files import replaced

KEY = "system.data"
"""Name of a data set in messages, unless a function is told another name."""
_HEADER = "header"
_OTHERS = {"ogbench": layouts.read_ogbench, "d4rl": layouts.read_d4rl, "minari": layouts.read_minari}
_USE = "use an .npz file of `stoix-like collect` or of OGBench, a file of D4RL, or a directory of Minari"
_MALFORMED = (LookupError, ValueError, TypeError, AttributeError, ArithmeticError, RecursionError, NotImplementedError)
_DAMAGED = (*_MALFORMED, OSError, EOFError, RuntimeError, MemoryError, zipfile.BadZipFile, zlib.error)


def write_data(path: str | Path, data: DataSet, compress: bool = True) -> None:
    """Write a data set to a new `.npz` file, atomically; the same data give the same bytes."""
    check_file(Path(path))
    arrays: dict[str, Any] = {_HEADER: np.frombuffer(data.header.to_json().encode(), np.uint8), **data.arrays()}
    with replaced(Path(path)) as file:
        (np.savez_compressed if compress else np.savez)(file, **arrays)


def check_new(path: Path) -> None:
    """Refuse a path that exists, or has no directory."""
    if os.path.lexists(path):
        raise ConfigError(f"out={path} exists, and data sets are never overwritten: use another name")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"out={path}: there is no directory {path.parent}: create it")


def check_file(path: Path) -> None:
    """Refuse a path that `check_new` refuses, or with another ending than `.npz`."""
    if path.suffix != ".npz":
        raise ConfigError(f"out={path}: a data set is a file that ends in .npz, or a directory with format=minari")
    check_new(path)


class OpenedData(NamedTuple):
    """A data set with arrays that are read on demand; arrays of other layouts than this package's are read already."""

    header: DataHeader  # its header
    shapes: dict[str, jax.ShapeDtypeStruct]  # the shapes and dtypes of its arrays, as in `DataSet.arrays`, by name
    read: Callable[[], DataSet]  # returns the data


def open_data(path: str | Path) -> OpenedData:
    """Open a data set."""
    with _reading(path, KEY) as (place, layout):
        if layout in _OTHERS:
            found = _OTHERS[layout](place)
            return OpenedData(found.header, _shapes(found.arrays()), lambda: found)
        return OpenedData(_own_header(place), _shapes(npz.shapes(place)), partial(read_data, path))


def read_data(path: str | Path, key: str = KEY) -> DataSet:
    """Read a data set, one array after the other."""
    with _reading(path, key) as (place, layout):
        if layout in _OTHERS:
            return _OTHERS[layout](place)
        return DataSet.from_arrays(_own_header(place), layouts.read_npz(place, npz.shapes(place).keys() - {_HEADER}))


def content_hash(path: str | Path) -> str:
    """Return the SHA-256 of the bytes of a data set, in hexadecimal."""
    with _reading(path, KEY) as (place, layout):
        found = hashlib.sha256()
        for part in layouts.minari_files(place) if layout == "minari" else [place]:
            with part.open("rb") as file:
                while chunk := file.read(2**20):
                    found.update(chunk)
        return found.hexdigest()


@contextlib.contextmanager
def _reading(path: str | Path, key: str) -> Iterator[tuple[Path, str]]:
    """Find the layout of a data set, and name it in all refusals."""
    place = Path(path).expanduser()
    try:
        yield place, _find_layout(place)
    except ConfigError as error:
        if type(error) is not ConfigError:  # a missing extra, with what installs it
            raise
        raise ConfigError(f"{key}={path}: {error}") from error
    except _DAMAGED as error:
        raise ConfigError(f"{key}={path}: damaged, or of another layout ({reason(error)}): {_USE}") from error


def _find_layout(path: Path) -> str:
    if path.is_dir() and layouts.minari_files(path)[1].is_file():
        return "minari"
    if not path.is_file():
        raise ConfigError(f"there is no such file: {_USE}")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"\x89HDF":
        return "d4rl"
    names = npz.shapes(path) if magic.startswith(b"PK") else {}
    if _HEADER in names:
        return "own"
    if missing := [name for name in ("observations", "actions", "terminals") if name not in names]:
        raise ConfigError(f"it holds no {missing[0]}: {_USE}")
    if "timeouts" in names:
        return "d4rl"
    if "next_observations" in names:
        raise ConfigError(
            "it has next_observations and no timeouts, so that terminals may mark the ends of tasks or of episodes: add"
            " timeouts, or save what OGBench returns with compact_dataset=True"
        )
    return "ogbench"


def _shapes(arrays: Mapping[str, Any]) -> dict[str, jax.ShapeDtypeStruct]:
    return {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in arrays.items() if name != _HEADER}


def _own_header(path: Path) -> DataHeader:
    found = DataHeader.from_json(npz.array(path, _HEADER).tobytes(), str(path))
    if found.format != FORMAT:
        raise ConfigError(f"it has the format {found.format}, and this version reads {FORMAT}: record it again")
    return found
