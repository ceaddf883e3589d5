"""`stoix-like eject`: an algorithm as a single file, with the settings of a configuration or of a run."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import jax

from stoix_like.composition import compose_config, group_choices
from stoix_like.config import RunConfig, flatten, parse_config
from stoix_like.envs import Box, Discrete, factory
from stoix_like.envs.suites.gymnax import HORIZON_ENDS_TASK
from stoix_like.errors import ConfigError, naming, nearest
from stoix_like.networks.utils import parse_activation_fn
from stoix_like.policies.hub import local_run
from stoix_like.run.host.plan import make_plan
from stoix_like.schema import convert
from stoix_like.storage.config_file import read_config
from stoix_like.storage.files import check_writable
from stoix_like.storage.run_files import CONFIG
from stoix_like.versions import versions

SCRIPTS = ("ppo/ff_ppo", "ppo/rec_ppo", "q_learning/ff_dqn", "q_learning/ff_pqn", "sac/ff_sac", "search/ff_az")
"""The systems that have a single file."""
CONTINUOUS = ("sac/ff_sac",)

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
_SAME = {"arch.num_devices": (None, 1)}
# Values that switch to what the files do not have.
_ABSENT = {"system.evaluation_simulations": 0}


def eject(source: str, overrides: Sequence[str], out: Path | None = None) -> str:
    """Return the single file of a system. `out`: where to write it; None writes no file."""
    text = render(_find(source, overrides))
    if out is not None:
        check_writable(out, "--out")
        try:
            # Never a file that has been edited since.
            with open(out, "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError as error:
            raise ConfigError(f"--out={out} exists already: choose another file") from error
    return text


def render(run: RunConfig) -> str:
    """Return the single file of a system with the settings of a run."""
    script, config = script_of(run.system_name), settings_of(run)
    source = inspect.getsource(script)
    for field in fields(config):
        value = getattr(config, field.name)
        if value != field.default:
            source = _replace(source, field.name, value)
    written_by = f"# Written by `stoix-like eject {run.system_name}` of stoix_like {versions()['stoix_like']}."
    return f"{written_by}\n{source}"


def settings_of(run: RunConfig) -> Any:
    """Return the `Config` of the single file of a system with the settings of a run."""
    hints = get_type_hints(script_of(run.system_name).Config)
    script, reference = script_of(run.system_name), parse_config(compose_config([f"system={run.system_name}"]))
    ours, plain = _values(run), _values(reference)
    keys = {field.name: _keys_of(field.name, plain) for field in fields(script.Config)}
    _check_others(run.system_name, ours, plain, {key for names in keys.values() for key in names})
    config = script.Config(
        **{
            field.name: _setting(run.system_name, hints[field.name], {key: ours.get(key) for key in keys[field.name]})
            for field in fields(script.Config)
        }
    )
    with naming(keys["activation"][0]):
        parse_activation_fn(config.activation)
    if not hasattr(jax.nn, config.activation):
        raise ConfigError(
            f"{keys['activation'][0]}={config.activation}: the single file of {run.system_name} takes functions of"
            " jax.nn, such as relu"
        )
    make_plan(run, num_devices=1)  # the sizes fit each other, and the budget
    _check_environment(run, script, config)
    return config


def script_of(system: str) -> ModuleType:
    """Import the single file of a system."""
    if system not in SCRIPTS:
        raise ConfigError(f"system={system} has no single file: use {', '.join(SCRIPTS)}")
    return importlib.import_module(f"stoix_like.single_file.{system.rpartition('/')[2]}")


def _find(source: str, overrides: Sequence[str]) -> RunConfig:
    systems = group_choices("system")
    if source in systems:
        script_of(source)
        return parse_config(compose_config([f"system={source}", *_environment(source, overrides), *overrides]))
    if ":/" not in source and not os.path.exists(source):
        raise ConfigError(f"{source} is neither a system nor the directory of a run: {nearest(source, SCRIPTS)}")
    run_dir = local_run(source)
    if not (run_dir / CONFIG).exists():
        raise ConfigError(f"{source} is not the directory of a run: it has no {CONFIG}")
    return parse_config(read_config(run_dir, [*overrides, *_NOWHERE], learns=False))


def _environment(system: str, overrides: Sequence[str]) -> list[str]:
    """Return the environment of a system with continuous actions, if none is chosen."""
    chosen = any(override.startswith(("env=", "env.", "experiment=", "+experiment=")) for override in overrides)
    return ["env=gymnax/pendulum"] if system in CONTINUOUS and not chosen else []


def _values(run: RunConfig) -> dict[str, Any]:
    """Return the values of a configuration by key; a list of numbers is one value, and counts are integers."""
    found: dict[str, Any] = {}
    for key, value in flatten(run.resolved):
        name, _, index = key.rpartition(".")
        if index.isdigit():
            found[name] = (*found.get(name, ()), value)
        else:
            found[key] = value
    return {key: None if value in ({}, []) else value for key, value in found.items()}


def _keys_of(field: str, values: Mapping[str, Any]) -> list[str]:
    """Return the keys that a setting has the value of; several, such as the layers of two networks, must agree."""
    if field in _KEYS:
        return [_KEYS[field]]
    of_networks = [key for key in values if key.startswith("network.") and key.endswith(f".{field}")]
    return of_networks or [f"system.{field}"]


def _check_others(system: str, ours: Mapping[str, Any], plain: Mapping[str, Any], known: set[str]) -> None:
    """Refuse settings that differ from the defaults, if the file does not have them."""
    for key in {**ours, **plain}:
        value, default = ours.get(key), plain.get(key)
        if key in known or value == default or _NO_EFFECT.fullmatch(key) or value in _SAME.get(key, ()):
            continue
        if key == "env.env_name":
            raise ConfigError(
                f"env={value}: the single file of {system} has only {default}: use env={default}/cartpole"
            )
        raise ConfigError(f"{key}={_shown(value)}: the single file of {system} has only {_shown(default)}: use that")


def _setting(system: str, hint: Any, values: Mapping[str, Any]) -> Any:
    """Return the value of a setting, in the type that the file declares."""
    (first, value), *others = values.items()
    for key, other in others:
        if other != value:
            raise ConfigError(
                f"{key}={_shown(other)} differs from {first}={_shown(value)}: the single file of {system} has one value"
                " for both: use the same"
            )
    if first in _ABSENT and value == _ABSENT[first]:
        raise ConfigError(f"{first}={_shown(value)}: the single file of {system} has no such case: use another value")
    return convert(hint, value, first)


def _check_environment(run: RunConfig, script: ModuleType, config: Any) -> None:
    """Refuse environments with observations or actions that the file does not take."""
    name, space = run.env.scenario.name, Box if run.system_name in CONTINUOUS else Discrete
    env = factory.make_eval(run.env)
    kind = "continuous" if space is Box else "discrete"
    if not isinstance(env.action_space, space):
        raise ConfigError(f"env.scenario.name={name}: the single file of {run.system_name} has only {kind} actions")
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), 1))
    shape = jax.eval_shape(script.make_env(name, config.max_episode_steps).reset, keys)[1].shape[1:]
    vectors = isinstance(env.observation_space, Box) and env.observation_space.shape == shape and len(shape) == 1
    if not vectors or name in HORIZON_ENDS_TASK:
        raise ConfigError(
            f"env.scenario.name={name}: the single files take environments with vectors as observations and time limits"
            " that truncate, such as CartPole-v1"
        )
    limit, longest = config.max_episode_steps, run.arch.max_eval_steps
    if limit is not None and limit > longest:
        raise ConfigError(
            f"{_KEYS['max_episode_steps']}={limit}: the single file of {run.system_name} evaluates whole episodes, and"
            f" the system stops them at arch.max_eval_steps={longest}: use at most {longest}"
        )


def _replace(source: str, name: str, value: Any) -> str:
    """Replace the default of a setting, the first line of the file that declares it."""
    text = json.dumps(value) if isinstance(value, str) else f"{value:_}" if type(value) is int else repr(value)
    line = re.compile(rf"^(    {name}: [^=\n]+ = )[^#\n]*?(  #.*)?$", re.MULTILINE)
    return line.sub(lambda match: f"{match[1]}{text}{match[2] or ''}", source, count=1)


def _shown(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
