"""`stoix-like fetch`: download data that a system needs, once and explicitly."""

from __future__ import annotations

import hashlib
import http.client
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from stoix_like import weights
from stoix_like.errors import ConfigError, reason
from stoix_like.storage.files import write_bytes

_SECONDS = 60


class _Data(NamedTuple):
    """A file to download: its address, its checksum, an upper bound of its size, where it goes, and the key for it."""

    url: str
    sha256: str
    max_bytes: int
    path: Path
    key: str


def fetch(name: str, out: Path | None = None, url: str | None = None) -> str:
    """Download a file, unless it is there already, and check it.

    Args:
        name: what to download, `disco103`.
        out: the file to write; None for a directory of this user, where the system that needs it finds it.
        url: another address of the same file, `https://`, `http://` or `file://`.

    Returns:
        What was done, for the user.

    Raises:
        ConfigError: the file cannot be downloaded or written, or its checksum is wrong.
    """
    data = known()[name]
    path = data.path if out is None else out.expanduser()
    use = f"{data.key}=null finds it" if out is None else f"use it with {data.key}={path}"
    if path.is_file() and _digest(path.read_bytes()) == data.sha256:
        return f"{path} is there already: {use}"
    if path.is_dir():
        raise ConfigError(f"--out={path} is a directory: choose a file in it, such as {path / data.path.name}")
    address = data.url if url is None else url
    content = _download(address, data.max_bytes)
    if (found := _digest(content)) != data.sha256:
        raise ConfigError(f"--url={address}: the sha256 of the file is {found}, not {data.sha256}: nothing is written")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, content)
    except OSError as error:
        raise ConfigError(f"--out={path} cannot be written ({error.strerror}): choose another file") from error
    return f"wrote {path} ({len(content):,} bytes): {use}"


def known() -> dict[str, _Data]:
    """Return what can be downloaded, by name."""
    path = weights.default_path()
    return {"disco103": _Data(weights.URL, weights.SHA256, weights.MAX_BYTES, path, "system.weights")}


def _download(url: str, limit: int) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=_SECONDS) as response:
            content: bytes = response.read(limit + 1)
    except (OSError, ValueError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        raise ConfigError(
            f"--url={url} cannot be downloaded ({reason(error)}): check the connection, or give another --url"
        ) from error
    return content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
