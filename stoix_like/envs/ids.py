"""Ids of gymnasium in place of the choice of an environment: `env=CartPole-v1`."""

from __future__ import annotations

import contextlib
import functools
import sys
from pathlib import Path
from typing import Any

import yaml

from stoix_like.envs.suites import load_suite
from stoix_like.errors import ConfigError, MissingExtraError

TABLE = "_rows.yaml"
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@functools.cache
def rows(directory: Path) -> dict[str, dict[str, Any]]:
    """Return the environments of each suite's table by choice, `jumanji/snake`, as configurations of Hydra."""
    found = {}
    for table in directory.glob(f"*/{TABLE}"):
        for name, row in yaml.load(table.read_text(encoding="utf-8"), _Loader).items():
            suite, scenario = table.parent.name, row["scenario"]
            keys = {key: value for key, value in row.items() if key not in ("about", "base")}
            keys["scenario"] = scenario if isinstance(scenario, dict) else {"name": scenario}
            base = f"{suite}/{row['base']}" if "base" in row else suite
            found[f"{suite}/{name}"] = {"defaults": [f"/env/{base}@_here_", "_self_"], **keys}
    return found


@functools.cache
def with_id(name: str, directory: Path) -> list[str]:
    """Return the overrides for an id of gymnasium, and say once what they are."""
    overrides = [f"env={_suite_of(name, directory)}", f"env.scenario.name={name}"]
    own = ["env=gymnasium", overrides[1]]
    other = ", on the host" if overrides == own else f"; gymnasium's own: {' '.join(own)}"
    if overrides != own or _is_known(name):
        print(f"env={name} is {' '.join(overrides)}{other}", file=sys.stderr)
    return overrides


def preprocessed_id(name: str) -> str:
    """Return the id under which gymnasium's suite preprocesses an Atari game."""
    with contextlib.suppress(MissingExtraError):
        return str(load_suite("gymnasium").preprocessed_id(name))
    return ""


def scenario_override(suite: str, name: str) -> str:
    """Return the override for a scenario of a suite; Atari games get the usual preprocessing."""
    if suite == "gymnasium" and preprocessed_id(name):
        return f"env={name}"
    is_atari = suite == "envpool" and load_suite(suite).is_atari(name)
    return f"env={suite}{'/_atari' * is_atari} env.scenario.name={name}"


def _is_known(name: str) -> bool:
    """Return whether gymnasium has an id, or the module before its colon may register it."""
    with contextlib.suppress(MissingExtraError):
        return ":" in name or name in load_suite("gymnasium").scenarios()
    return False


def _suite_of(name: str, directory: Path) -> str:
    """Return the choice of `env` for an id: gymnax, if it has the id, or a suite with a file for it."""
    if name.startswith("ALE/"):
        return "gymnasium/_atari"
    with contextlib.suppress(MissingExtraError):
        if name in load_suite("gymnax").scenarios():
            return "gymnax"
    bases = {row["defaults"][0][5:-7] for row in rows(directory).values() if row["scenario"]["name"] == name}
    if bases and "gymnasium" not in bases:
        return min(bases)
    game = preprocessed_id(name)
    if not name.endswith(game):
        raise ConfigError(
            f"env={name} is the raw game: use env={game}, which has the usual preprocessing (no-op starts, four frames"
            " per step with the maximum of the last two, four grey views of 84x84, clipped rewards in training), or,"
            f" for the raw game, env=gymnasium env.scenario.name={name}"
        )
    return "gymnasium/_atari" if game else "gymnasium"
