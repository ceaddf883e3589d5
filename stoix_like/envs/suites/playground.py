"""Adapter for MuJoCo Playground.

The models of the DeepMind Control tasks are part of its package; the robots' models are in mujoco_menagerie, which the
suite would download.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from mujoco import MjSpec
from mujoco_playground import MjxEnv, dm_control_suite, locomotion, manipulation, registry, wrapper

from stoix_like.envs.arguments import check_names, check_scenario, fit_params
from stoix_like.envs.environment import Physics, VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import PhysicsEnvironment
from stoix_like.envs.wrappers import RepeatActions, TimeLimit
from stoix_like.errors import ConfigError
from stoix_like.user_code import refusing
from stoix_like.utils.jax_utils import with_attribute

# What users cannot change in a task's configuration, besides groups of values and lists: `env.action_repeat` does
# what the wrappers of the suite do, and the rest belongs to the implementation in Warp, which needs a GPU of NVIDIA.
_FIXED = ("action_repeat", "impl", "naccdmax", "naconmax", "njmax", "vision")
_REPOSITORY = "https://github.com/google-deepmind/mujoco_menagerie"
# Their modules call `jnp.clip` with a name that newer versions of jax do not have.
_OLD_CLIP = ("LeapCubeReorient", "PandaRobotiqPushCube")
# Where the suite looks for the models, as the constant MENAGERIE_PATH; none of its functions takes another place.
_MODELS: Any = sys.modules[MjxEnv.__module__]
# The reacher compares versions as strings, where 3.17 precedes 3.3, and then calls a function of the older ones.
_SPEC: Any = MjSpec
_SPEC.find_body = _SPEC.body


def scenarios() -> list[str]:
    """List the names of the tasks; robots need `assets`."""
    return sorted(registry.ALL_ENVS)


def make(
    name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], assets: str | None = None
) -> VectorEnvironment:
    """Build environments of MuJoCo Playground.

    `assets`: directory of a checkout of mujoco_menagerie; None: where Playground itself keeps one.
    """
    check_scenario("playground", name, scenarios())
    check_names("env.kwargs", kwargs, (), name)
    config = registry.get_default_config(name)
    chosen = {key: config[key] for key in config if isinstance(config[key], int | float) and key not in _FIXED}
    chosen |= fit_params(chosen, params, name, positive=("episode_length",))
    # The default of the suite is Warp.
    overrides = chosen | ({"impl": "jax"} if "impl" in config else {})
    if name in dm_control_suite.ALL_ENVS:
        if assets is not None:
            raise ConfigError(f"env.assets={assets} has no effect: the model of {name} is part of its package")
        env = dm_control_suite.load(name, config_overrides=overrides)
    else:
        env = _load_robot(name, overrides, assets)
    if name in _OLD_CLIP:
        renamed = {"clip": lambda array, *bounds, a_max=None: jnp.clip(array, *(bounds or (None, a_max)))}
        vars(sys.modules[type(env).__module__])["jp"] = SimpleNamespace(**vars(jnp) | renamed)
    if env.n_substeps < 1:
        raise ConfigError(
            f"env.params.ctrl_dt={chosen['ctrl_dt']} is shorter than a step of the simulation of {name}: use at least"
            f" env.params.sim_dt={chosen['sim_dt']}"
        )
    replaced = wrapper.BraxDomainRandomizationVmapWrapper(env, lambda model: (model, None)).v_env_fn
    physics = Physics(env.mjx_model, replaced, lambda: registry.get_domain_randomizer(name))

    def pose(state: Any) -> dict[str, Any]:
        return {name: getattr(state.data, name) for name in ("qpos", "mocap_pos", "mocap_quat")}

    limited = TimeLimit(Vectorize(PhysicsEnvironment(env, env.mj_model, pose, physics)), chosen["episode_length"])
    # As the suite trains them.
    repeats = config.get("action_repeat", 1)
    return limited if repeats == 1 else RepeatActions(limited, repeats)


def _load_robot(name: str, overrides: dict[str, Any], assets: str | None) -> Any:
    """Build a task with the models of a checkout of mujoco_menagerie, without downloading one."""
    directory = Path(_MODELS.MENAGERIE_PATH) if assets is None else Path(assets).expanduser()
    if not directory.is_dir():
        what = f"env.scenario.name={name} needs models" if assets is None else f"env.assets={assets} is not a directory"
        raise ConfigError(
            f"{what} of mujoco_menagerie, which no run downloads: git clone {_REPOSITORY} PATH, git -C PATH checkout"
            f" {_MODELS.MENAGERIE_COMMIT_SHA}, and set env.assets=PATH"
        )
    suite = locomotion if name in locomotion.ALL_ENVS else manipulation
    advice = f"use {_REPOSITORY} at commit {_MODELS.MENAGERIE_COMMIT_SHA}"
    models = with_attribute(_MODELS, "MENAGERIE_PATH", type(_MODELS.MENAGERIE_PATH)(directory))  # of its own kind
    with models, refusing(f"env.assets={directory} does not fit {name}", advice):
        return suite.load(name, config_overrides=overrides)
