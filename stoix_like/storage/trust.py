"""The check of which code a run directory may execute when it is loaded."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable
from typing import Any

import flax.linen as nn

from stoix_like.errors import ConfigError

# Layers and networks, and the two functions that build them.
_MODULES = re.compile(r"(stoix_like\.networks|flax\.linen)(\.[A-Za-z]\w*)*")
_FUNCTIONS = ("stoix_like.networks.heads.policy_head", "stoix_like.networks.base.chained_torsos")
_SYSTEMS = re.compile(r"stoix_like\.systems(\.[A-Za-z]\w*)+")


def check_trusted(config: Iterable[tuple[str, Any]], where: str) -> None:
    """Refuse a configuration that would execute foreign code when it is loaded.

    Args:
        config: pairs of a key and a plain value.
        where: the name of the file, for messages.

    Raises:
        ConfigError: names the key and the value.
    """
    for key, value in config:
        names = key.split(".")
        if "_target_" in names and not (names[-1] == "_target_" and _is_trusted(value)):
            refused = (
                f"{where}: {key}={value} is executed when the run is loaded, but only modules of stoix_like.networks"
                " and flax.linen are trusted"
            )
        elif names[:2] == ["system", "module"] and not (names[2:] == [] and _fits(_SYSTEMS, value)):
            refused = (
                f"{where}: {key}={value} is imported when the run is loaded, but only stoix_like.systems is trusted"
            )
        elif isinstance(value, str) and "${" in value:
            refused = f"{where}: {key}={value} is interpolated when the run is loaded, but no interpolation is trusted"
        else:
            continue
        raise ConfigError(f"{refused}: read it and, if you trust it, use --trust (trust=True)")


def _is_trusted(target: Any) -> bool:
    """Return whether a name is one of the known functions, or a flax module that is defined under that name."""
    if target in _FUNCTIONS:
        return True
    if not _fits(_MODULES, target):
        return False
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return False
    is_module = isinstance(found, type) and issubclass(found, nn.Module)
    return is_module and _fits(_MODULES, found.__module__)


def _fits(pattern: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None
