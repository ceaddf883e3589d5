"""Adapter for the DeepMind Control tasks of MuJoCo Playground, whose models are part of its package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mujoco_playground import dm_control_suite, locomotion, manipulation, registry, wrapper

from stoix_like.envs.arguments import check_names, check_scenario
from stoix_like.envs.environment import VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import Physics, PhysicsEnvironment, fit_parameters
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import ConfigError

# What can be changed in a task's configuration. Its other keys have no effect here: the wrappers of the suite
# alone read `action_repeat`, and the rest belongs to the implementation in Warp, which needs a GPU of NVIDIA.
_PARAMS = ("episode_length", "ctrl_dt", "sim_dt")


def scenarios() -> list[str]:
    """List the names of the supported tasks."""
    return sorted(dm_control_suite.ALL_ENVS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of MuJoCo Playground.

    Args:
        name: one of `scenarios()`.
        kwargs: must be empty.
        params: entries of the task's configuration to change by name: `episode_length` in steps, `ctrl_dt` and `sim_dt`
            in seconds.

    Returns:
        The environments.

    Raises:
        ConfigError: if the name or a parameter is unknown, or a value is invalid.
    """
    if name in locomotion.ALL_ENVS + manipulation.ALL_ENVS:
        raise ConfigError(f"env.scenario.name={name!r} is not supported: it would download models of mujoco_menagerie")
    check_scenario("playground", name, scenarios())
    check_names("env.kwargs", kwargs, (), name)
    config = dm_control_suite.get_default_config(name)
    chosen = {key: config[key] for key in _PARAMS}
    chosen |= fit_parameters(params, chosen, name)
    # The default of the suite is Warp.
    env = dm_control_suite.load(name, config_overrides=chosen | {"impl": "jax"})
    if env.n_substeps < 1:
        raise ConfigError(
            f"env.params.ctrl_dt={chosen['ctrl_dt']} is shorter than a step of the simulation of {name}: use at least"
            f" env.params.sim_dt={chosen['sim_dt']}"
        )
    replaced = wrapper.BraxDomainRandomizationVmapWrapper(env, lambda model: (model, None)).v_env_fn
    physics = Physics(env.mjx_model, replaced, lambda: registry.get_domain_randomizer(name))
    return TimeLimit(Vectorize(PhysicsEnvironment(env, env.mj_model, _pose, physics)), chosen["episode_length"])


def _pose(state: Any) -> dict[str, Any]:
    return {name: getattr(state.data, name) for name in ("qpos", "mocap_pos", "mocap_quat")}
