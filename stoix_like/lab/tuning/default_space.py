"""The default search space of a system, from the YAML files of the package."""

from __future__ import annotations

from collections.abc import Collection, Mapping
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
    found, known = {}, float_fields(type(config.system))
    for name, given in _ranges(config.system_name).items():
        value = get_value(config.system, name) if name in known and name not in fixed else None
        if given is None or value is None or not isinstance(value, (int, float)):
            continue
        ((form, (low, high)),) = given.items()
        if form == "log_uniform" and value <= 0.0:
            continue
        found[name] = {form: [min(float(low), value), max(float(high), value)]}
    return found


def _ranges(system_name: str) -> Mapping[str, Any]:
    """Return the ranges of all systems, with the ranges of a family."""
    root = config_dir() / "system"
    family = root / system_name.partition("/")[0] / FILE
    own = yaml.safe_load(family.read_text(encoding="utf-8")) if family.is_file() else {}
    return {**yaml.safe_load((root / FILE).read_text(encoding="utf-8")), **own}
