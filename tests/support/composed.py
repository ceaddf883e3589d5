"""Configurations from parts that are composed once: to compose takes ten times as long as to override values."""

import functools
import re

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like import composition
from stoix_like.errors import ConfigError

# The value of a key, or one that is added below a group. All other overrides choose, add or delete.
_VALUE = re.compile(r"(?!env\._target_)\+?[a-z]\w*(\.\w+)+=")
# Choices of groups on which no other group depends, and choices on which those groups do not depend.
_ALONE, _OTHER = re.compile(r"(arch|env|logger|checkpoint)=[\w/]+"), re.compile(r"[~+]?(system|network)=?.*")


@functools.cache
def _compose(*choices):
    return composition.compose_config(choices)


@functools.cache
def _join(*choices):
    others = [choice for choice in choices if not _ALONE.fullmatch(choice)]
    if not all(map(_OTHER.fullmatch, others)):
        return _compose(*choices)
    config = _compose(*others).copy()
    for choice in filter(_ALONE.fullmatch, choices):
        group = choice.partition("=")[0]
        config[group] = _compose(choice)[group]
    return config


def compose_config(overrides):
    values = [override for override in overrides if _VALUE.match(override)]
    added = [override[1:].partition("=")[0] for override in values if override.startswith("+")]
    try:
        config = _join(*(override for override in overrides if override not in values))
        if all(OmegaConf.select(config, key, default=...) is ... for key in added):
            return composition.override_config(config, values)
    except (ConfigError, OmegaConfBaseException):
        pass
    return composition.compose_config(overrides)
