"""The weights of the meta-network Disco103, data of the user that `stoix-like fetch disco103` downloads.

They are 42 arrays in a NumPy archive, published under CC-BY 4.0 (DeepMind Technologies Limited) with the paper.
"""

from __future__ import annotations

import functools
import hashlib
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from stoix_like.errors import ConfigError

URL = "https://raw.githubusercontent.com/google-deepmind/disco_rl/main/disco_rl/update_rules/weights/disco_103.npz"
SHA256 = "dac840a15b81e8805326363458c33979626172618f620d9e6e170315388530aa"
MAX_BYTES = 2**24

NUM_PREDICTIONS = 600
"""Length of the predictions with meanings that the rule discovered."""

_ADVICE = "`stoix-like fetch disco103` downloads the published weights"


def _dense(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/w": (inputs, outputs), f"{name}/b": (outputs,)}


def _convolution(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}/w": (1, inputs, outputs), f"{name}/b": (outputs,)}


def _embedding(scope: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the layers that embed the inputs of one of the two LSTMs."""
    shapes = _convolution(f"{scope}/sequential/conv1_d", 18, 16) | _convolution(f"{scope}/sequential/conv1_d_1", 32, 2)
    for name in ("mlp", "mlp_1"):
        shapes |= _dense(f"{scope}/{name}/~/linear_0", NUM_PREDICTIONS, 16)
        shapes |= _dense(f"{scope}/{name}/~/linear_1", 16, 1)
    return shapes


RULE = "lstm"
"""The scope of the names of the rule's layers."""
LIFETIME = "lstm/~/meta_lstm/~unroll"
"""The scope of those that follow the lifetime of the agent."""

SHAPES: Mapping[str, tuple[int, ...]] = {
    **_embedding(RULE),
    **_dense("lstm/lstm/linear", 27 + 256, 4 * 256),
    **_dense("lstm/linear", 128, 256),
    **_dense("lstm/linear_1", 256, 1),
    **_dense("lstm/linear_2", 256, NUM_PREDICTIONS),
    **_dense("lstm/linear_3", 256, NUM_PREDICTIONS),
    **_convolution("lstm/sequential_1/conv1_d", 2 * (256 + 2), 16),
    **_dense("lstm/linear_4", 16, 1),
    **_embedding(LIFETIME),
    **_dense(f"{LIFETIME}/mlp_2/~/linear_0", 27 + 2, 16),
    **_dense(f"{LIFETIME}/lstm/linear", 16 + 128, 4 * 128),
}
"""The shape of each array, by name."""


def default_path() -> Path:
    """Return where `stoix-like fetch disco103` puts the weights, a directory of this user."""
    try:
        data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    except RuntimeError as error:  # neither HOME nor an entry of the user
        raise ConfigError(f"system.weights=null: {error} Set HOME or XDG_DATA_HOME.") from error
    return data / "stoix_like" / "disco_103.npz"


def load(path: str | None, sha256: str) -> dict[str, np.ndarray]:
    """Read the weights. `path`: the file; None for `default_path`."""
    place = default_path() if path is None else Path(path).expanduser()
    key = f"system.weights={'null' if path is None else path}"
    try:
        status = place.stat()
        content = _read(place, (status.st_size, status.st_mtime_ns))
    except OSError as error:
        reason = "does not exist" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise ConfigError(f"{key}: the file {place} {reason}: {_ADVICE}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != sha256:
        raise ConfigError(f"{key}: the sha256 of {place} is {found}, not system.weights_sha256={sha256}: {_ADVICE}")
    try:
        return _arrays(content)
    except (ValueError, KeyError, OSError, zipfile.BadZipFile) as error:
        raise ConfigError(f"{key}: {place} does not hold the arrays of Disco103 ({error}): {_ADVICE}") from None


@functools.lru_cache(maxsize=1)
def _read(path: Path, version: tuple[int, int]) -> bytes:
    """Read a file; `version`, its size and time of change, determines whether it has been read already."""
    if version[0] > MAX_BYTES:
        raise OSError(0, "too large")
    return path.read_bytes()


def _arrays(content: bytes) -> dict[str, np.ndarray]:
    with np.load(io.BytesIO(content), allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    for name, shape in SHAPES.items():
        if name not in arrays:
            raise ValueError(f"no array {name}")
        if arrays[name].shape != shape or arrays[name].dtype != np.float32:
            raise ValueError(f"{name} is {arrays[name].dtype} {arrays[name].shape}, not float32 {shape}")
    return {name: arrays[name] for name in SHAPES}
