"""The description of an exported policy, read and compared with its file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stoix_like.errors import ConfigError
from stoix_like.policies.contract import path_of
from stoix_like.storage.contents import read_json
from stoix_like.storage.files import read_bytes

_MAX_BYTES = 2**24
_MAX_FILE_BYTES = 2**32


def read(path: str | Path) -> dict[str, Any]:
    """Read the description of an exported policy, and check that the file is the one that it describes.

    Args:
        path: path of the exported file.

    Returns:
        The description.

    Raises:
        ConfigError: one of the files cannot be read, or the file was changed.
    """
    path = Path(path)
    try:
        described: Any = read_json(path_of(path), _MAX_BYTES)
        digest = hashlib.sha256(read_bytes(path, _MAX_FILE_BYTES)).hexdigest()
    except OSError as error:
        raise ConfigError(f"path={path}: cannot read {error.filename}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"path={path}: {path_of(path).name} is no description of a policy: {error}") from error
    if not isinstance(described, dict) or described.get("sha256") != digest:
        raise ConfigError(f"path={path} is not the file that {path_of(path).name} describes: export the policy again")
    return dict(described)
