"""Files of data sets: those of this package, and of others, which are recognised by their content.

| layout | file | see |
|---|---|---|
| this package | `.npz` with a `header.json` | `dataset` |
| OGBench | `.npz` with `observations`, `actions` and `terminals` | `layouts.read_ogbench` |
| D4RL | HDF5 with `observations`, `actions`, `rewards`, `terminals` and `timeouts` | `layouts.read_d4rl` |
| Minari | a directory with `data/main_data.hdf5` | `layouts.read_minari` |

None is ever unpickled.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax

from stoix_like.data import layouts, npz
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.errors import ConfigError, reason
from stoix_like.storage.files import replaced

KEY = "system.data"
_LAYOUTS = "an .npz file of `stoix-like collect` or of OGBench, an HDF5 file of D4RL, or a directory of Minari"
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, MemoryError, OSError, EOFError, RuntimeError),
    *(LookupError, ValueError, TypeError, AttributeError, NotImplementedError),
)


class _Layout(NamedTuple):
    """How the data sets of a package are read."""

    shapes: Callable[[Path], dict[str, jax.ShapeDtypeStruct]]
    read: Callable[[Path], DataSet]


_OWN = _Layout(npz.shapes, npz.read)
_OGBENCH = _Layout(layouts.ogbench_shapes, layouts.read_ogbench)
_D4RL = _Layout(layouts.d4rl_shapes, layouts.read_d4rl)
_MINARI = _Layout(layouts.minari_shapes, layouts.read_minari)


def write_data(path: str | Path, data: DataSet, compress: bool = True) -> None:
    """Write a data set to a new `.npz` file, atomically; the same data give the same bytes.

    Args:
        path: the file, which must not exist.
        data: the data set.
        compress: whether to compress the arrays; without it, readers map them into memory.

    Raises:
        ConfigError: the file exists, or its directory does not.
        OSError: it cannot be written.
    """
    check_new(Path(path))
    with replaced(Path(path)) as file:
        npz.write(file, data, compress)


def check_new(path: Path) -> None:
    """Refuse a path that exists, or whose directory does not.

    Args:
        path: the path.

    Raises:
        ConfigError: names the path.
    """
    if os.path.lexists(path):
        raise ConfigError(f"out={path} exists, and data sets are never overwritten: use another name")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"out={path}: there is no directory {path.parent}: create it")


def read_header(path: str | Path, key: str = KEY) -> DataHeader:
    """Read the header of a data set; of other layouts than this package's, by reading all of it.

    Args:
        path: the file, or the directory of Minari.
        key: what names it, for messages.

    Raises:
        ConfigError: it is no data set, or cannot be read.
    """
    with _reading(path, key) as (place, layout):
        return npz.header(place) if layout is _OWN else layout.read(place).header


def data_shapes(path: str | Path, key: str = KEY) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and dtypes of the arrays of a data set, without reading more than flags.

    Args:
        path: the file, or the directory of Minari.
        key: what names it, for messages.

    Returns:
        Those of `DataSet.arrays`, by name: `observations/joint/pos`, `actions`, `rewards`, ….

    Raises:
        ConfigError: it is no data set, or cannot be read.
    """
    with _reading(path, key) as (place, layout):
        return layout.shapes(place)


def read_data(path: str | Path, key: str = KEY) -> DataSet:
    """Read a data set, one array after the other.

    Args:
        path: the file, or the directory of Minari.
        key: what names it, for messages.

    Returns:
        The data; arrays that are stored without compression are mapped into memory.

    Raises:
        ConfigError: it is no data set, or cannot be read.
    """
    with _reading(path, key) as (place, layout):
        return layout.read(place)


def content_hash(path: str | Path, key: str = KEY) -> str:
    """Return the SHA-256 of the bytes of a data set, in hexadecimal.

    Args:
        path: the file, or the directory of Minari.
        key: what names it, for messages.

    Raises:
        ConfigError: it is no data set, or cannot be read.
    """
    with _reading(path, key) as (place, layout):
        found = hashlib.sha256()
        for part in layouts.minari_files(place) if layout is _MINARI else [place]:
            with part.open("rb") as file:
                while chunk := file.read(2**20):
                    found.update(chunk)
        return found.hexdigest()


@contextlib.contextmanager
def _reading(path: str | Path, key: str) -> Iterator[tuple[Path, _Layout]]:
    """Find the layout of a data set, and name it in all refusals."""
    place = Path(path)
    try:
        yield place, _find_layout(place)
    except ConfigError as error:
        if type(error) is not ConfigError:  # a missing extra, with what installs it
            raise
        raise ConfigError(f"{key}={path}: {error}") from error
    except _DAMAGED as error:
        raise ConfigError(
            f"{key}={path}: the data set is damaged or of another layout ({reason(error)}): use {_LAYOUTS}"
        ) from error


def _find_layout(path: Path) -> _Layout:
    if path.is_dir():
        if layouts.minari_files(path)[1].is_file():
            return _MINARI
        raise ConfigError(f"the directory holds no {layouts.MINARI_FILES[1]}: use {_LAYOUTS}")
    if not path.is_file():
        raise ConfigError(f"there is no such file: use {_LAYOUTS}")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == b"\x89HDF":
        return _D4RL
    if not magic.startswith(b"PK"):
        raise ConfigError(f"the file is no data set: use {_LAYOUTS}")
    with npz.Archive(path) as archive:
        if archive.has_header:
            return _OWN
        missing = [name for name in ("observations", "actions", "terminals") if name not in archive.names]
    if missing:
        raise ConfigError(f"the file has no array {missing[0]}: use {_LAYOUTS}")
    return _OGBENCH
