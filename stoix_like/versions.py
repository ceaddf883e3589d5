"""The versions that a result depends on."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterable

PACKAGES = ("stoix_like", "jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "hydra-core")


def versions(others: Iterable[str] = ()) -> dict[str, str | None]:
    """Return the versions of Python and of the packages that a result depends on."""
    found = {package: _version(package) for package in others}
    present = {package: version for package, version in found.items() if version is not None}
    return {"python": platform.python_version(), **{package: _version(package) for package in PACKAGES}, **present}


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
