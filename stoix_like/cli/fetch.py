"""`stoix-like fetch`: download data that a system needs, once and explicitly."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path

from stoix_like import weights
from stoix_like.errors import ConfigError, reason
from stoix_like.storage.files import write_bytes

_SECONDS = 60


def fetch(out: Path | None = None, url: str = weights.URL) -> str:
    """Download and check the weights of Disco103, unless they are there. `out`: None for a directory of this user."""
    path = weights.default_path() if out is None else out.expanduser()
    use = "system.weights=null finds it" if out is None else f"use it with system.weights={path}"
    if path.is_file() and _digest(path.read_bytes()) == weights.SHA256:
        return f"{path} is there already: {use}"
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:
            content: bytes = response.read(weights.MAX_BYTES + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ConfigError(
            f"--url={url} cannot be downloaded ({reason(error)}): check the connection, or give another --url"
        ) from error
    if (found := _digest(content)) != weights.SHA256:
        raise ConfigError(f"--url={url}: the sha256 of the file is {found}, not {weights.SHA256}: nothing is written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    except OSError as error:
        raise ConfigError(f"--out={path} cannot be written ({error.strerror}): choose another file") from error
    return f"wrote {path} ({len(content):,} bytes): {use}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
