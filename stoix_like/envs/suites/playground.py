"""Adapter for the DeepMind Control tasks of MuJoCo Playground, whose models are part of its package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mujoco_playground import dm_control_suite, locomotion, manipulation

from stoix_like.envs.arguments import check_names, check_scenario
from stoix_like.envs.environment import VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import PhysicsEnvironment, fit_parameters
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import ConfigError

# The suite's default, warp, needs a GPU of NVIDIA.
_IMPLEMENTATIONS = ("jax", "warp")

# Keys of the suite's configuration that are not parameters here: its wrappers alone read `action_repeat`, and `vision`
# needs a renderer on a GPU.
_EXCLUDED = frozenset({"action_repeat", "vision", "vision_config"})


def scenarios() -> list[str]:
    """List the names of the supported tasks."""
    return sorted(dm_control_suite.ALL_ENVS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of MuJoCo Playground.

    Args:
        name: one of `scenarios()`.
        kwargs: must be empty.
        params: entries of the task's configuration to change by name: `episode_length` in steps, `ctrl_dt` and `sim_dt`
            in seconds, and `impl`, jax (default) or warp.

    Returns:
        The environments.

    Raises:
        ConfigError: if the name or a parameter is unknown, or a value is invalid.
    """
    if name in locomotion.ALL_ENVS + manipulation.ALL_ENVS:
        raise ConfigError(f"env.scenario.name={name!r} is not supported: it would download models of mujoco_menagerie")
    check_scenario("playground", name, scenarios())
    check_names("env.kwargs", kwargs, (), name)
    config = dm_control_suite.get_default_config(name).to_dict()
    defaults = {key: value for key, value in config.items() if key not in _EXCLUDED} | {"impl": _IMPLEMENTATIONS[0]}
    chosen = defaults | fit_parameters(params, defaults, name)
    if chosen["impl"] not in _IMPLEMENTATIONS:
        raise ConfigError(f"env.params.impl={chosen['impl']!r} is invalid for {name}: use jax or warp")
    env = dm_control_suite.load(name, config_overrides=chosen)
    if env.n_substeps < 1:
        raise ConfigError(
            f"env.params.ctrl_dt={chosen['ctrl_dt']} is shorter than a step of the simulation of {name}: use at least"
            f" env.params.sim_dt={chosen['sim_dt']}"
        )
    return TimeLimit(Vectorize(PhysicsEnvironment(env)), chosen["episode_length"])
