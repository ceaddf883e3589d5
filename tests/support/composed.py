"""Configurations from parts that are composed once: to compose takes ten times as long as to override values."""

import functools
import re
from collections.abc import Sequence

from omegaconf import DictConfig

from stoix_like import composition
from stoix_like.errors import ConfigError

# The value of a key. All other overrides choose, add or delete.
_VALUE = re.compile(r"(?!env\._target_)[a-z]\w*(\.\w+)+=")
# Choices of groups on which no other group depends, and choices on which those groups do not depend.
_ALONE, _OTHER = re.compile(r"(arch|env|logger|checkpoint)=[\w/]+"), re.compile(r"[~+]?(system|network)=?.*")


@functools.cache
def _compose(*choices: str) -> DictConfig:
    return composition.compose_config(choices)


@functools.cache
def _join(*choices: str) -> DictConfig:
    others = [choice for choice in choices if not _ALONE.fullmatch(choice)]
    if not all(map(_OTHER.fullmatch, others)):
        return _compose(*choices)
    config = _compose(*others).copy()
    for choice in filter(_ALONE.fullmatch, choices):
        group = choice.partition("=")[0]
        config[group] = _compose(choice)[group]
    return config


def compose_config(overrides: Sequence[str]) -> DictConfig:
    """Return what `composition.compose_config` returns, and raise what it raises."""
    values = [override for override in overrides if _VALUE.match(override)]
    try:
        return composition.override_config(_join(*(o for o in overrides if o not in values)), values)
    except ConfigError:
        return composition.compose_config(overrides)
