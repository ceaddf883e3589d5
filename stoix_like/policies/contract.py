"""The description of an exported policy: a small JSON file next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, entries, first_choices
from stoix_like.errors import ConfigError
from stoix_like.policies.exportable import Exportable
from stoix_like.storage.contents import read_json
from stoix_like.storage.files import read_bytes, write_json
from stoix_like.versions import versions

_ATTRIBUTES = ("env_steps", "step_unit", "selected", "member", "agent", "greedy")
_MAX_BYTES = 2**24
_MAX_FILE_BYTES = 2**32


def path_of(path: Path) -> Path:
    """Return the path of the description of a file: `policy.onnx.json` for `policy.onnx`."""
    return path.with_name(f"{path.name}.json")


def write(policy: Exportable, path: Path, format: str, content: bytes) -> None:
    """Write the description of an exported policy."""
    system, _, environment = policy.name.partition(" on ")
    inputs = _described(policy.argument_shapes, entries(policy.observation_space, "agent_view"))
    if format == "stablehlo":
        inputs.append({"name": "key_data", "shape": [2], "dtype": "uint32"})
    results = dict(zip(policy.result_names, _results(policy), strict=True))
    described = {
        "file": path.name,
        "format": format,
        "sha256": hashlib.sha256(content).hexdigest(),
        "system": system,
        "environment": environment,
        **{name: getattr(policy, name) for name in _ATTRIBUTES},
        "inputs": inputs,
        "outputs": _described(results, entries(policy.action_space, "action")),
        "features": [feature._asdict() for feature in policy.legend.features],
        "actions": policy.legend.actions,
        "versions": versions(),
    }
    write_json(path_of(path), described)


def read(path: str | Path) -> dict[str, Any]:
    """Read the description of an exported policy, and check that the file is the one that it describes."""
    path = Path(path)
    try:
        described: Any = read_json(path_of(path), _MAX_BYTES)
        digest = hashlib.sha256(read_bytes(path, _MAX_FILE_BYTES)).hexdigest()
    except OSError as error:
        raise ConfigError(f"path={path}: cannot read {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"path={path}: {path_of(path).name} does not describe a policy: {error}") from error
    if not isinstance(described, dict) or described.get("sha256") != digest:
        raise ConfigError(f"path={path} is not the file that {path_of(path).name} describes: export the policy again")
    return dict(described)


def _results(policy: Exportable) -> list[jax.ShapeDtypeStruct]:
    """Return shape and dtype of each result, without the batch axis."""
    arrays = [jax.ShapeDtypeStruct((1, *leaf.shape), leaf.dtype) for leaf in policy.argument_shapes.values()]
    found = jax.eval_shape(lambda *given: policy.act_on(given, jax.random.key(0)), *arrays)
    return [jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype) for leaf in jax.tree.leaves(found)]


def _described(arrays: Mapping[str, jax.ShapeDtypeStruct], spaces: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [
        {"name": name, "shape": ["batch", *leaf.shape], "dtype": str(leaf.dtype), **_bounds(spaces.get(name))}
        for name, leaf in arrays.items()
    ]


def _bounds(space: Any) -> dict[str, Any]:
    """Return the bounds of a space: null in JSON where there is none."""
    if isinstance(space, Box):
        return {"low": space.low, "high": space.high}
    if isinstance(space, Discrete):
        return {"n": space.n, "start": space.start}
    return {"nvec": space.nvec, "start": first_choices(space)} if isinstance(space, MultiDiscrete) else {}
