"""Layouts of other packages: OGBench, D4RL and Minari; 64-bit numbers are read as 32 bits, as environments observe."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.data.dataset import DataHeader, DataSet, from_steps
from stoix_like.data.npz import Archive
from stoix_like.errors import ConfigError, require
from stoix_like.storage.contents import read_json

MINARI_FILES = ("metadata.json", "main_data.hdf5")
MINARI_KEY = "stoix_like"
"""The key of Minari's metadata under which this package writes its header."""
_MAX_METADATA_BYTES = 2**24
_NO_REWARDS = (
    "the file has no rewards, so they are zero: OGBench computes them where 'singletask' is in the name of a data set;"
    " save what it returns, with `rewards` and `masks`"
)
_NO_SUCCESSORS = (
    "the file has no successors of the last steps of episodes: the last step of each truncated episode is left out, and"
    " the successor of a terminated one is its own observation"
)


def ogbench_shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of what `read_ogbench` returns."""
    with Archive(path) as archive:
        valid, terminated = _ogbench_flags(archive)
        rows = len(valid) + int((terminated[:-1] & valid[1:]).sum())
        return _shapes(archive.shape("observations"), archive.shape("actions"), rows)


def read_ogbench(path: Path) -> DataSet:
    """Read the compact layout of OGBench: `observations`, `actions`, `terminals`; `rewards`, `masks` and `valids`.

    Its episodes are truncated. `terminals` marks their last rows, and in a file with `valids` also the rows before.
    `masks` is zero where a task was solved, which terminates; an episode that continues there is split.

    Args:
        path: the file.
    """
    with Archive(path) as archive:
        valid, terminated = _ogbench_flags(archive)
        view, action = plain(archive.array("observations")), plain(archive.array("actions"))
        has_rewards = "rewards" in archive.names
        reward = plain(archive.array("rewards")) if has_rewards else np.zeros(len(valid), np.float32)
    header = DataHeader(path=str(path), notes=() if has_rewards else (_NO_REWARDS,))
    truncated = valid & ~np.append(valid[1:], False) & ~terminated
    if (terminated[:-1] & valid[1:]).any():
        last = Observation(view[np.flatnonzero(terminated | truncated) + 1])
        action, reward, terminated, truncated = (x[valid] for x in (action, reward, terminated, truncated))
        return from_steps(header, Observation(view[valid]), action, reward, terminated, truncated, last)
    # As it is; what the last rows hold next to their observation does not count.
    action, reward = (
        np.where(np.expand_dims(valid, tuple(range(1, x.ndim))), x, x.dtype.type(0)) for x in (action, reward)
    )
    return DataSet(header, Observation(view), action, reward, terminated, truncated, valid).with_statistics()


def _ogbench_flags(archive: Archive) -> tuple[np.ndarray, np.ndarray]:
    """Return which rows are valid, and which steps terminate."""
    valid = archive.array("valids") > 0 if "valids" in archive.names else archive.array("terminals") == 0
    # The last row has no successor, even where its mark is missing.
    valid[-1:] = False
    return valid, valid & (archive.array("masks") == 0 if "masks" in archive.names else np.zeros_like(valid))


def d4rl_shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of what `read_d4rl` returns."""
    with _opened(path) as file:
        flags = terminated, truncated = _d4rl_flags(file)
        none = np.zeros((len(terminated), 0), np.float32)
        last = none[: int((terminated | truncated).sum())] if "next_observations" in file else None
        rows = len(from_steps(DataHeader(), Observation(none), none, none[:, :1].sum(1), *flags, last).valid)
        return _shapes(file["observations"], file["actions"], rows)


def read_d4rl(path: Path) -> DataSet:
    """Read the layout of D4RL: `observations`, `actions`, `rewards`, `terminals`, `timeouts` in HDF5.

    Where the file has no `next_observations`, the successors of the last steps of episodes are unknown, see
    `dataset.from_steps`.

    Args:
        path: the file.
    """
    with _opened(path) as file:
        flags = terminated, truncated = _d4rl_flags(file)
        view, action, reward = (plain(file[name][()]) for name in ("observations", "actions", "rewards"))
        last = None
        if "next_observations" in file:
            last = Observation(plain(file["next_observations"][()])[terminated | truncated])
    header = DataHeader(path=str(path), notes=(_NO_SUCCESSORS,) if last is None else ())
    return from_steps(header, Observation(view), action, reward.reshape(-1), *flags, last)


def _d4rl_flags(file: Any) -> tuple[np.ndarray, np.ndarray]:
    if "timeouts" not in file:
        raise ConfigError("the file has no timeouts, so that nothing marks where a truncated episode ends: use its v2")
    terminated, truncated = (file[name][()].astype(bool).reshape(-1) for name in ("terminals", "timeouts"))
    truncated &= ~terminated
    truncated[-1:] |= ~terminated[-1:]
    return terminated, truncated


def minari_shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of what `read_minari` returns."""
    with _opened(minari_files(path)[1]) as file:
        episodes = _minari_episodes(file)
        rows = sum(len(episode["rewards"]) + 1 for episode in episodes)
        infos = _infos(episodes[0])
        return _shapes(_nest(episodes[0]["observations"]), _nest(episodes[0]["actions"]), rows, infos)


def read_minari(path: Path) -> DataSet:
    """Read a data set of Minari in HDF5.

    Parts of mixed actions stand side by side. Of `infos`, an `action_mask` and a `step_count` are read. If a step has
    both flags, it terminated.

    Args:
        path: the directory, or the one in it that holds `main_data.hdf5`.

    Raises:
        ConfigError: it has no episode, or images that are compressed with loss.
    """
    shapes, (metadata, data) = minari_shapes(path), minari_files(path)
    arrays = {name: np.zeros(each.shape, each.dtype) for name, each in shapes.items()}
    with _opened(data) as file:
        row = 0
        for episode in _minari_episodes(file):
            steps = len(episode["rewards"])
            found = {**_names("observations", _nest(episode["observations"])), **_infos(episode)}
            found |= {"actions": _side_by_side(_nest(episode["actions"])), "rewards": episode["rewards"]}
            found |= {"terminated": episode["terminations"], "truncated": episode["truncations"]}
            for name, array in found.items():
                arrays[name][row : row + len(array)] = array
            arrays["valids"][row : row + steps] = True
            row += steps + 1
    arrays["truncated"] &= ~arrays["terminated"]
    return DataSet.from_arrays(_minari_header(metadata, path), arrays).with_statistics()


def minari_files(path: Path) -> tuple[Path, Path]:
    """Return the description and the data of a data set of Minari."""
    inside = path / "data" if (path / "data").is_dir() else path
    return inside / MINARI_FILES[0], inside / MINARI_FILES[1]


def _minari_header(metadata: Path, path: Path) -> DataHeader:
    found = read_json(metadata, _MAX_METADATA_BYTES, {"env_spec?": str | None, f"{MINARI_KEY}?": str})
    if MINARI_KEY in found:
        return DataHeader.from_json(found[MINARI_KEY], str(path))
    environment = json.loads(found.get("env_spec") or "{}").get("id", "")
    return DataHeader(path=str(path), environment=environment, system=str(found.get("algorithm_name", "")))


def _minari_episodes(file: Any) -> list[Any]:
    names = sorted((name for name in file if name.startswith("episode_")), key=lambda name: int(name[8:]))
    if not names:
        raise ConfigError("it holds no episode: record some")
    return [file[name] for name in names]


def _infos(episode: Any) -> dict[str, Any]:
    infos = episode.get("infos", {})
    return {name: infos[name] for name in ("action_mask", "step_count") if name in infos}


def _nest(group: Any) -> Any:
    """Return groups of arrays as dictionaries, and those of tuples in their order."""
    if not hasattr(group, "keys"):
        if group.dtype.kind not in "biuf":
            raise ConfigError(f"{group.name} holds no plain numbers: write images with jpeg_encoding=False")
        return group
    numbered = all(name.startswith("_index_") for name in group)
    names = sorted(group, key=(lambda name: int(name[7:])) if numbered else None)
    return [_nest(group[name]) for name in names] if numbered else {name: _nest(group[name]) for name in names}


def _names(name: str, nest: Any) -> dict[str, Any]:
    """Return the arrays of nested dictionaries by their path."""
    if not isinstance(nest, Mapping):
        return {name: nest}
    return {path: leaf for key, child in nest.items() for path, leaf in _names(f"{name}/{key}", child).items()}


def _side_by_side(actions: Any) -> np.ndarray:
    """Return actions, and the parts of mixed ones as vectors."""
    if not isinstance(actions, Mapping | list):
        return actions[()]
    return np.concatenate([part[()].reshape(len(part), -1) for part in jax.tree.leaves(actions)], axis=1)


def _shapes(
    view: Any, action: Any, rows: int, infos: Mapping[str, Any] | None = None
) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes of a data set of R rows, by name."""
    if isinstance(action, Mapping | list):
        sizes = [int(np.prod(part.shape[1:])) for part in jax.tree.leaves(action)]
        action = jax.ShapeDtypeStruct((rows, sum(sizes)), np.float32)
    arrays = {**_names("observations", view), **(infos or {}), "actions": action}
    flags = dict.fromkeys(("terminated", "truncated", "valids"), jax.ShapeDtypeStruct((rows,), np.bool_))
    read = {
        name: jax.ShapeDtypeStruct((rows, *each.shape[1:]), plain(np.zeros(0, each.dtype)).dtype)
        for name, each in arrays.items()
    }
    return {**read, "rewards": jax.ShapeDtypeStruct((rows,), np.float32), **flags}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    with require("h5py", f"the file {path.name}", "minari").File(path, "r") as file:
        yield file


def plain(array: np.ndarray) -> np.ndarray:
    """Return floats as float32 and integers as int32; bytes and flags stay."""
    if array.dtype.kind == "f":
        return array.astype(np.float32, copy=False)
    return array if array.dtype in (np.uint8, np.bool_) else array.astype(np.int32, copy=False)
