"""Layouts of other packages: OGBench, D4RL and Minari; and the reader of the arrays of all layouts."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Callable, Container, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.data import npz
from stoix_like.data.dataset import DataHeader, DataSet, from_steps, paths
from stoix_like.errors import ConfigError, require
from stoix_like.storage.contents import read_json

MINARI_KEY = "stoix_like"
"""The key of Minari's metadata under which this package writes its header."""
_D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_OGBENCH = ("observations", "actions", "terminals", "valids", "rewards", "masks")
_FLAGS = ("terminals", "timeouts", "valids", "masks", "terminated", "truncated")
_MAX_METADATA_BYTES = 2**24
_SPLIT = "episodes are split where a task was solved: their number, lengths and returns are those of the pieces"
_NO_REWARDS = (
    "the file has no rewards, so they are zero: OGBench computes them where 'singletask' is in the name of a data set;"
    " save what it returns, with `rewards` and `masks`"
)


def read_ogbench(path: Path) -> DataSet:
    """Read the compact layout of OGBench: `observations`, `actions`, `terminals`; `rewards`, `masks` and `valids`.

    Its episodes are truncated. `terminals` marks their last rows, and in a file with `valids` also the rows before.
    `masks` is zero where a task was solved, which terminates; an episode that continues there is split.
    """
    found = read_npz(path, _OGBENCH)
    view, action = found["observations"], found["actions"]
    valid = found["valids"].copy() if "valids" in found else ~found["terminals"]
    # The last row has no successor, even where its mark is missing.
    valid[-1:] = False
    terminated = valid & ~found["masks"] if "masks" in found else np.zeros_like(valid)
    truncated = valid & ~np.append(valid[1:], False) & ~terminated
    split = bool((terminated[:-1] & valid[1:]).any())
    notes = (*(() if "rewards" in found else (_NO_REWARDS,)), *((_SPLIT,) if split else ()))
    header = DataHeader(path=str(path), notes=notes)
    reward: Any = found.get("rewards", np.zeros(len(valid), np.float32))
    last = Observation(view[np.flatnonzero(terminated | truncated) + 1])
    if split:
        action, reward, terminated, truncated = (x[valid] for x in (action, reward, terminated, truncated))
        return from_steps(header, Observation(view[valid]), action, reward, terminated, truncated, last)
    # As it is; what the last rows hold next to their observation does not count.
    reward = np.where(valid, reward, np.float32(0.0))
    action = np.where(np.expand_dims(valid, tuple(range(1, action.ndim))), action, 0)
    return DataSet(header, Observation(view), action, reward, terminated, truncated, valid).with_statistics()


def read_d4rl(path: Path) -> DataSet:
    """Read the layout of D4RL: `observations`, `actions`, `rewards`, `terminals`, `timeouts` in HDF5 or `.npz`.

    Where the file has no `next_observations`, the successors of the last steps of episodes are unknown, see
    `dataset.from_steps`.
    """
    if zipfile.is_zipfile(path):
        found = read_npz(path, _D4RL)
    else:
        with _opened(path) as file:
            found = _read_hdf5({name: file[name] for name in _D4RL if name in file})
    if "timeouts" not in found:
        raise ConfigError("it has no timeouts, so that nothing marks where truncated episodes end: use its v2")
    terminated, truncated = found["terminals"], found["timeouts"].copy()
    truncated[-1:] = True
    last = None
    if "next_observations" in found:
        last = Observation(found["next_observations"][terminated | truncated])
    header, view = DataHeader(path=str(path)), Observation(found["observations"])
    return from_steps(header, view, found["actions"], found["rewards"], terminated, truncated, last)


def read_minari(path: Path) -> DataSet:
    """Read a data set of Minari in HDF5.

    Parts of mixed actions stand side by side. A step with both flags terminated. Of `infos`, an `action_mask` and a
    `step_count` are read.
    """
    metadata, data = minari_files(path)
    with _opened(data) as file:
        names = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
        if not names:
            raise ConfigError("it holds no episode: record some")
        episodes = [_minari_rows(file[name]) for name in names]
    arrays = {name: np.concatenate([episode[name] for episode in episodes]) for name in episodes[0]}
    return DataSet.from_arrays(_minari_header(metadata, path), arrays).with_statistics()


def minari_files(path: Path) -> tuple[Path, Path]:
    """Return the description and the data of a data set of Minari."""
    inside = path / "data" if (path / "data").is_dir() else path
    return inside / "metadata.json", inside / "main_data.hdf5"


def _minari_rows(episode: Any) -> dict[str, np.ndarray]:
    """Return the rows of an episode by name; steps have one more, for the last observation."""
    actions = paths(dict(enumerate(jax.tree.leaves(_nest(episode["actions"])))), "actions")
    flags = {"terminated": episode["terminations"], "truncated": episode["truncations"]}
    steps = _read_hdf5({**actions, "rewards": episode["rewards"], **flags})
    parts = [steps.pop(name) for name in actions]
    if isinstance(episode["actions"], Mapping):
        parts = [np.concatenate([x.reshape(len(x), -1) for x in parts], axis=1, dtype=np.float32)]
    steps |= {"actions": parts[0], "truncated": steps["truncated"] & ~steps["terminated"]}
    steps["valids"] = np.ones_like(steps["terminated"])
    infos = episode.get("infos", {})
    extras = {name: infos[name] for name in ("action_mask", "step_count") if name in infos}
    rows = _read_hdf5(extras | paths(_nest(episode["observations"]), "observations"))
    rows |= {name: np.append(x, np.zeros_like(x[:1]), axis=0) for name, x in steps.items()}
    _check_rows(rows)
    return rows


def _minari_header(metadata: Path, path: Path) -> DataHeader:
    found = read_json(metadata, _MAX_METADATA_BYTES, {"env_spec?": str | None, f"{MINARI_KEY}?": str})
    if MINARI_KEY in found:
        return DataHeader.from_json(found[MINARI_KEY], str(path))
    environment = json.loads(found.get("env_spec") or "{}").get("id", "")
    return DataHeader(path=str(path), environment=environment, system=str(found.get("algorithm_name", "")))


def _nest(group: Any) -> Any:
    """Return groups of arrays as dictionaries, and groups of tuples as lists."""
    if isinstance(group, Mapping):
        if all(name.startswith("_index_") for name in group):
            return [_nest(group[f"_index_{i}"]) for i in range(len(group))]
        return {name: _nest(group[name]) for name in group}
    return group


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a file of HDF5 that holds all of its arrays: others may name any file that this user can read."""
    h5py: Any = require("h5py", f"the file {path.name}", "minari")

    def lies_elsewhere(name: str, found: Any) -> str | None:
        linked = isinstance(found, h5py.ExternalLink)
        return name if linked or getattr(found, "external", None) or getattr(found, "is_virtual", False) else None

    with h5py.File(path, "r") as file:
        if name := file.visititems_links(lies_elsewhere) or file.visititems(lies_elsewhere):
            raise ConfigError(f"{name} lies in another file: copy it into this one")
        yield file


def read_npz(path: Path, names: Container[str]) -> dict[str, np.ndarray]:
    """Read the named arrays that a file of numpy has."""
    found = {name: shape for name, shape in npz.shapes(path).items() if name in names}
    return read_rows(found, partial(npz.array, path))


def _read_hdf5(stored: Mapping[str, Any]) -> dict[str, np.ndarray]:
    return read_rows(stored, lambda name: stored[name][()])


def read_rows(stored: Mapping[str, Any], read: Callable[[str], np.ndarray]) -> dict[str, np.ndarray]:
    """Read arrays with the same number of rows as environments observe them; nothing is read before all may be.

    Floats and rewards become float32, flags bool, and others int32, but for observed ones of at most 16 bits.
    """
    _check_rows(stored)
    for name, array in stored.items():
        if array.dtype.kind not in "biuf":
            raise ConfigError(
                f"{name} holds no plain numbers: write images with jpeg_encoding=False, and leave texts out"
            )
    return {name: _as_observed(read(name), name) for name in stored}


def _check_rows(arrays: Mapping[str, Any]) -> None:
    """Refuse arrays if numpy would repeat one row for all, or drop some."""
    lengths = {name: array.shape[0] for name, array in arrays.items()}
    for name, rows in lengths.items():
        if rows != (expected := next(iter(lengths.values()))):
            raise ValueError(f"{name} has {rows:,} rows, and {next(iter(lengths))} has {expected:,}")


def _as_observed(array: np.ndarray, name: str) -> np.ndarray:
    """Convert an array, without a copy where it has the type already."""
    if name in (*_FLAGS, "rewards"):
        array = array.reshape(len(array))
    if name in (*_FLAGS, "action_mask"):
        if (wrong := np.isnan(array)).any():
            raise ConfigError(f"{name} is NaN in row {np.argwhere(wrong)[0, 0]}: leave its episode out")
        return array.astype(np.bool_, copy=False)
    if array.dtype.kind == "f" or name == "rewards":
        return array.astype(np.float32, copy=False)
    if array.dtype.itemsize <= 2 and "observations" in name:
        return array
    numbers = array.astype(np.int32, copy=False)
    if numbers is not array and (wrong := numbers != array).any():
        raise ConfigError(f"{name} has {array[wrong][0]}, which 32 bits do not hold: use smaller numbers")
    return numbers
