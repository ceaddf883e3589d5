"""`stoix-like eject`: an algorithm as a single file, with the settings of a configuration or of a run."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from stoix_like.composition import compose_config, group_choices
from stoix_like.config import RunConfig, flatten, parse_config
from stoix_like.envs import factory
from stoix_like.envs.suites.gymnax import HORIZON_ENDS_TASK
from stoix_like.errors import ConfigError, nearest
from stoix_like.policies.hub import local_run
from stoix_like.schema import convert, hints_of
from stoix_like.storage.config_file import read_config
from stoix_like.storage.files import check_writable
from stoix_like.versions import versions

SCRIPTS = ("ppo/ff_ppo", "ppo/rec_ppo", "q_learning/ff_dqn", "q_learning/ff_pqn", "sac/ff_sac", "search/ff_az")
"""The systems that have a single file."""

_KEYS = {
    "env_name": "env.scenario.name",
    "max_episode_steps": "env.params.max_steps_in_episode",
    "seed": "arch.seed",
    "total_timesteps": "arch.total_timesteps",
    "num_envs": "arch.total_num_envs",
    "num_evaluations": "arch.num_evaluation",
    "num_eval_episodes": "arch.num_eval_episodes",
}
# What changes no parameter of a run on one device of this kind: where it is recorded, and how it is started.
_NO_EFFECT = re.compile(
    r"(logger|checkpoint|hydra)\..*|system\.(name|module)|env\.(scenario\.task_name|vectorization|timeout|assets)|"
    r"arch\.(absolute_metric|on_nan|profile|compile_cache|deterministic|distributed|resume_from)"
)
# Nothing is logged or copied, so that the run of another user needs no trust for it.
_NOWHERE = ("logger=silent", "+checkpoint.mirror=null")


def eject(source: str, overrides: Sequence[str], out: Path | None = None) -> str:
    """Return the single file of a system. `out`: where to write it; None writes no file."""
    run = _find(source, overrides)
    text, config = inspect.getsource(script_of(run.system_name)), settings_of(run)
    for field in fields(config):
        if (value := getattr(config, field.name)) != field.default:
            text = _replace(text, field.name, value)
    text = f"# Written by `stoix-like eject {run.system_name}` of stoix_like {versions()['stoix_like']}.\n{text}"
    if out is not None:
        check_writable(out, "--out")
        try:
            with out.open("x", encoding="utf-8") as file:  # never one that has been edited since
                file.write(text)
        except FileExistsError as error:
            raise ConfigError(f"--out={out} exists already: choose another file") from error
    return text


def settings_of(run: RunConfig) -> Any:
    """Return the `Config` of the single file of a system with the settings of a run; refuse those that it lacks."""
    system, script = run.system_name, script_of(run.system_name)
    ours, plain = _values(run), _values(parse_config(compose_config([f"system={system}"])))
    keys = {}  # of each setting, those that have its value
    for name in (field.name for field in fields(script.Config)):
        of_networks = [key for key in plain if key.startswith("network.") and key.endswith(f".{name}")]
        keys[name] = [_KEYS[name]] if name in _KEYS else of_networks or [f"system.{name}"]
    # Of several keys, such as the layers of two networks, the others have the value of the first.
    alike = {key: ours.get(first) for first, *others in keys.values() for key in others}
    firsts = {names[0] for names in keys.values()}
    for key in (key for key in {**ours, **plain} if key not in firsts):
        value, only = ours.get(key), alike.get(key, plain.get(key))
        if value != only and (key, value) != ("arch.num_devices", 1) and not _NO_EFFECT.fullmatch(key):
            raise ConfigError(f"{key}={_shown(value)}: the single file of {system} has only {_shown(only)}: use that")
    if ours.get("system.evaluation_simulations") == 0:
        raise ConfigError(
            f"system.evaluation_simulations=0: the single file of {system} always searches: use 1 or more"
        )
    if run.env.scenario.name in HORIZON_ENDS_TASK:
        raise ConfigError(f"env.scenario.name={run.env.scenario.name}: time limits truncate in the single files")
    if len(getattr(factory.make_eval(run.env).observation_space, "shape", ())) != 1:
        raise ConfigError(f"env.scenario.name={run.env.scenario.name}: the single files take vectors as observations")
    hints = hints_of(script.Config)
    return script.Config(**{name: convert(hints[name], ours.get(keys[name][0]), keys[name][0]) for name in keys})


def script_of(system: str) -> ModuleType:
    """Import the single file of a system."""
    if system not in SCRIPTS:
        raise ConfigError(f"system={system} has no single file: use {', '.join(SCRIPTS)}")
    return importlib.import_module(f"stoix_like.single_file.{system.rpartition('/')[2]}")


def _find(source: str, overrides: Sequence[str]) -> RunConfig:
    if source in group_choices("system"):
        script_of(source)
        has_env = any(override.startswith(("env=", "env.", "experiment=", "+experiment=")) for override in overrides)
        env = ["env=gymnax/pendulum"] if source == "sac/ff_sac" and not has_env else []
        return parse_config(compose_config([f"system={source}", *env, *overrides]))
    if ":/" not in source and not os.path.exists(source):
        raise ConfigError(f"{source} is neither a system nor the directory of a run: {nearest(source, SCRIPTS)}")
    return parse_config(read_config(local_run(source), [*overrides, *_NOWHERE], learns=False))


def _values(run: RunConfig) -> dict[str, Any]:
    """Return the values of a configuration by key; a list of numbers is one value."""
    found: dict[str, Any] = {}
    for key, value in flatten(run.resolved):
        name, _, index = key.rpartition(".")
        found |= {name: (*found.get(name, ()), value)} if index.isdigit() else {key: value}
    return {key: None if value in ({}, []) else value for key, value in found.items()}


def _replace(source: str, name: str, value: Any) -> str:
    """Replace the default of a setting, the first line of the file that declares it."""
    text = json.dumps(value) if isinstance(value, str) else f"{value:_}" if type(value) is int else repr(value)
    line = re.compile(rf"^(    {name}: [^=\n]+ = )[^#\n]*?(  #.*)?$", re.MULTILINE)
    return line.sub(lambda match: f"{match[1]}{text}{match[2] or ''}", source, count=1)


def _shown(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
