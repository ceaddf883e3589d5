"""Layouts of other packages: OGBench, D4RL and Minari; 64-bit numbers are read as 32 bits, as environments observe."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.data import npz
from stoix_like.data.dataset import DataHeader, DataSet, from_steps, paths
from stoix_like.errors import ConfigError, require
from stoix_like.storage.contents import read_json

MINARI_FILES = ("metadata.json", "main_data.hdf5")
MINARI_KEY = "stoix_like"
"""The key of Minari's metadata under which this package writes its header."""
_D4RL = ("observations", "actions", "rewards", "terminals", "timeouts", "next_observations")
_OGBENCH = ("observations", "actions", "terminals", "valids", "rewards", "masks")
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

    Args:
        path: the file.
    """
    found = {name: plain(array, name) for name, array in npz.arrays(path, _OGBENCH).items()}
    view, action = found["observations"], found["actions"]
    valid = found["valids"] > 0 if "valids" in found else found["terminals"] == 0
    # The last row has no successor, even where its mark is missing.
    valid[-1:] = False
    terminated = valid & (found["masks"] == 0) if "masks" in found else np.zeros_like(valid)
    truncated = valid & ~np.append(valid[1:], False) & ~terminated
    split = bool((terminated[:-1] & valid[1:]).any())
    notes = (*(() if "rewards" in found else (_NO_REWARDS,)), *((_SPLIT,) if split else ()))
    header = DataHeader(path=str(path), notes=notes)
    reward: Any = found.get("rewards", np.zeros(len(valid))).astype(np.float32)
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

    Args:
        path: the file.

    Raises:
        ConfigError: it has no `timeouts`.
    """
    if zipfile.is_zipfile(path):
        stored = npz.arrays(path, _D4RL)
    else:
        with _opened(path) as file:
            stored = {name: file[name][()] for name in _D4RL if name in file}
    if "timeouts" not in stored:
        raise ConfigError("it has no timeouts, so that nothing marks where truncated episodes end: use its v2")
    found = {name: plain(array, name) for name, array in stored.items()}
    terminated, truncated = (stored[name].astype(bool).reshape(-1) for name in ("terminals", "timeouts"))
    truncated[-1:] = True
    last = None
    if "next_observations" in found:
        last = Observation(found["next_observations"][terminated | truncated])
    reward = found["rewards"].reshape(-1)
    header, view = DataHeader(path=str(path)), Observation(found["observations"])
    return from_steps(header, view, found["actions"], reward, terminated, truncated, last)


def read_minari(path: Path) -> DataSet:
    """Read a data set of Minari in HDF5.

    Parts of mixed actions stand side by side. A step with both flags terminated. Of `infos`, an `action_mask` and a
    `step_count` are read.

    Args:
        path: the directory, or the one in it that holds `main_data.hdf5`.

    Raises:
        ConfigError: it has no episode, or images that are compressed with loss.
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
    return inside / MINARI_FILES[0], inside / MINARI_FILES[1]


def _minari_rows(episode: Any) -> dict[str, np.ndarray]:
    """Return the rows of an episode by name; those of steps have one more, for the last observation."""
    actions, terminated = _nest(episode["actions"]), episode["terminations"][()].astype(bool)
    if isinstance(actions, dict | list):
        actions = np.concatenate([x.reshape(len(x), -1) for x in jax.tree.leaves(actions)], axis=1, dtype=np.float32)
    steps = {
        "actions": actions,
        "rewards": episode["rewards"][()].astype(np.float32),
        "terminated": terminated,
        "truncated": episode["truncations"][()].astype(bool) & ~terminated,
        "valids": np.ones_like(terminated),
    }
    infos = episode.get("infos", {})
    rows = {name: infos[name][()] for name in ("action_mask", "step_count") if name in infos}
    if "action_mask" in rows:
        rows["action_mask"] = rows["action_mask"].astype(bool)  # int8 in gymnasium
    rows |= paths(_nest(episode["observations"]), "observations")
    rows |= {name: np.append(x, np.zeros_like(x[:1]), axis=0) for name, x in steps.items()}
    return {name: plain(array, name) for name, array in rows.items()}


def _minari_header(metadata: Path, path: Path) -> DataHeader:
    found = read_json(metadata, _MAX_METADATA_BYTES, {"env_spec?": str | None, f"{MINARI_KEY}?": str})
    if MINARI_KEY in found:
        return DataHeader.from_json(found[MINARI_KEY], str(path))
    environment = json.loads(found.get("env_spec") or "{}").get("id", "")
    return DataHeader(path=str(path), environment=environment, system=str(found.get("algorithm_name", "")))


def _nest(group: Any) -> Any:
    """Read groups of arrays as dictionaries, and those of tuples as lists."""
    if isinstance(group, Mapping):
        if all(name.startswith("_index_") for name in group):
            return [_nest(group[f"_index_{i}"]) for i in range(len(group))]
        return {name: _nest(group[name]) for name in group}
    if group.dtype.kind not in "biuf":
        raise ConfigError(
            f"{group.name} holds no plain numbers: write images with jpeg_encoding=False, and leave texts out"
        )
    return group[()]


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


def plain(array: np.ndarray, name: str) -> np.ndarray:
    """Return floats as float32 and integers as int32; flags stay, and observed integers of at most 16 bits."""
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    kept = array.dtype.kind == "b" or (array.dtype.itemsize <= 2 and "observations" in name)
    return array if kept else array.astype(np.int32, copy=False)
