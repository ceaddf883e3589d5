"""The default search space of a system, from the YAML files of the package."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from stoix_like.composition import config_dir
from stoix_like.config import RunConfig
from stoix_like.run.population.members import float_fields
from stoix_like.run.set_up.influence import effective
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.schema import get_value

FILE = "_space.yaml"


def default_space(setup: RunSetup, fixed: Collection[str] = ()) -> dict[str, dict[str, list[float]]]:
    """Return the ranges in which the hyperparameters of a configuration are worth searching."""
    ranges = configured_space(setup.config, fixed)
    used = effective(setup.parts, setup.env, ranges)
    return {name: one for name, one in ranges.items() if name in used}


def configured_space(config: RunConfig, fixed: Collection[str] = ()) -> dict[str, dict[str, list[float]]]:
    """Return the ranges of the hyperparameters that a configuration has and has not switched off."""
    found, known, root = {}, float_fields(type(config.system)), config_dir() / "system"
    # The ranges of a family replace the common ones.
    files = (root / FILE, root / config.system_name.partition("/")[0] / FILE)
    ranges: dict[str, Any] = {}
    for path in filter(Path.is_file, files):
        ranges |= yaml.safe_load(path.read_text(encoding="utf-8"))
    for name, given in ranges.items():
        value = get_value(config.system, name) if name in known and name not in fixed else None
        if given is None or value is None or not isinstance(value, (int, float)):
            continue
        ((form, (low, high)),) = given.items()
        if form == "log_uniform" and value <= 0.0:
            continue
        found[name] = {form: [min(float(low), value), max(float(high), value)]}
    return found
