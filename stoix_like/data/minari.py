"""Data sets as `minari.load_dataset` reads them: a directory with a description in JSON, and episodes in HDF5."""

from __future__ import annotations

import json
import re
import secrets
import shutil
from pathlib import Path
from typing import Any

import jax
import numpy as np

from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import check_new
from stoix_like.data.layouts import MINARI_KEY, minari_files
from stoix_like.envs.spaces import ActionSpace, Box, Dict, Discrete, Mixed, ObservationSpace, Tuple, first_choices
from stoix_like.errors import ConfigError, require

# The version of the written layout.
_VERSION = "0.5.4"
_NAME = re.compile(r"[-_.A-Za-z0-9]+-v[0-9]+")


def check_minari(path: Path) -> None:
    """Refuse a path that Minari cannot take, or where h5py is not installed."""
    if not _NAME.fullmatch(path.name):
        raise ConfigError(f"out={path}: names of Minari end with a version: use {path.parent / path.stem}-v0")
    check_new(path)
    require("h5py", "format=minari", "minari")


def write_minari(
    path: str | Path, data: DataSet, observation_space: ObservationSpace, action_space: ActionSpace
) -> None:
    """Write a data set to a new directory of Minari; masks of actions and step counts become `infos`."""
    path = Path(path)
    check_minari(path)
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        (scratch / "data").mkdir(parents=True)
        described, episodes = minari_files(scratch)
        _write_episodes(episodes, data, action_space)
        metadata = _metadata(path.name, data.header, observation_space, action_space)
        described.write_text(json.dumps(metadata), encoding="utf-8")
        scratch.rename(path)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def _write_episodes(path: Path, data: DataSet, action_space: ActionSpace) -> None:
    action: Any = data.action
    if isinstance(action_space, Dict | Tuple):
        action = jax.device_get(Mixed(action_space).element(action))
    infos = {name: x for name, x in data.observation._asdict().items() if name != "agent_view" and x is not None}
    steps = {"actions": action, "rewards": data.reward, "terminations": data.terminated, "truncations": data.truncated}
    rows = {"observations": data.observation.agent_view, "infos": infos}
    with require("h5py", "format=minari", "minari").File(path, "w", track_order=True) as file:
        start = 0
        for number, length in enumerate(data.episode_lengths.tolist()):
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": length})
            for nests, end in ((steps, start + length), (rows, start + length + 1)):
                part = slice(start, end)
                _write(group, jax.tree.map(lambda leaf, part=part: np.asarray(leaf[part]), nests))
            start += length + 1


def _write(group: Any, nest: Any) -> None:
    """Write nested arrays: a group for each dictionary or tuple."""
    for name, child in nest.items() if isinstance(nest, dict) else ((f"_index_{i}", x) for i, x in enumerate(nest)):
        if isinstance(child, dict | tuple):
            _write(group.create_group(name), child)
        else:
            group.create_dataset(name, data=child)


def _metadata(name: str, header: DataHeader, observation_space: Any, action_space: Any) -> dict[str, Any]:
    return {
        "dataset_id": name,
        "minari_version": _VERSION,
        "data_format": "hdf5",
        "jpeg_encoding": False,
        "total_episodes": header.episodes,
        "total_steps": header.steps,
        "observation_space": json.dumps(_space(observation_space)),
        "action_space": json.dumps(_space(action_space)),
        "algorithm_name": header.system,
        "description": f"{header.policy} of {header.system} on {header.environment}",
        MINARI_KEY: header.to_json(),
    }


def _space(space: Any) -> dict[str, Any]:
    """Return a space as Minari records gymnasium's spaces."""
    if isinstance(space, Dict):
        return {"type": "Dict", "subspaces": {name: _space(part) for name, part in space.spaces.items()}}
    if isinstance(space, Tuple):
        return {"type": "Tuple", "subspaces": [_space(part) for part in space.spaces]}
    if isinstance(space, Box):
        ends = {end: np.broadcast_to(getattr(space, end), space.shape).tolist() for end in ("low", "high")}
        return {"type": "Box", "dtype": str(np.dtype(space.dtype)), "shape": list(space.shape), **ends}
    if isinstance(space, Discrete):
        return {"type": "Discrete", "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    sizes = [int(size) for size in space.nvec]
    return {"type": "MultiDiscrete", "dtype": "int64", "nvec": sizes, "start": first_choices(space).tolist()}
