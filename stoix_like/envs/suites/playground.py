"""Adapter for MuJoCo Playground.

The models of the DeepMind Control tasks are part of its package; the robots' models are in mujoco_menagerie, which the
suite would download.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from mujoco_playground import MjxEnv, dm_control_suite, locomotion, manipulation, registry, wrapper

from stoix_like.envs.arguments import check_names, check_scenario
from stoix_like.envs.environment import VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import Physics, PhysicsEnvironment, fit_parameters
from stoix_like.envs.wrappers import RepeatActions, TimeLimit
from stoix_like.errors import ConfigError, first_line

_POSITIVE = ("episode_length", "ctrl_dt", "sim_dt")
# What users cannot change in a task's configuration, besides groups of values and lists: `env.action_repeat` does
# what the wrappers of the suite do, and the rest belongs to the implementation in Warp, which needs a GPU of NVIDIA.
_FIXED = ("action_repeat", "impl", "naccdmax", "naconmax", "njmax", "vision")
_REPOSITORY = "https://github.com/google-deepmind/mujoco_menagerie"
# Tasks with steps that pass arguments to jax which newer versions do not have.
_OF_OLDER_JAX = ("LeapCubeReorient", "PandaRobotiqPushCube")
# Where the suite looks for the models, as the constant MENAGERIE_PATH; none of its functions takes another place.
_MODELS: Any = sys.modules[MjxEnv.__module__]


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
    chosen |= fit_parameters(params, chosen, name, _POSITIVE)
    # The default of the suite is Warp.
    overrides = chosen | ({"impl": "jax"} if "impl" in config else {})
    if name in dm_control_suite.ALL_ENVS:
        if assets is not None:
            raise ConfigError(f"env.assets={assets} has no effect: the model of {name} is part of its package")
        env = dm_control_suite.load(name, config_overrides=overrides)
    else:
        env = _load_robot(name, overrides, assets)
        if name in _OF_OLDER_JAX:
            _check_step(name, env)
    if env.n_substeps < 1:
        raise ConfigError(
            f"env.params.ctrl_dt={chosen['ctrl_dt']} is shorter than a step of the simulation of {name}: use at least"
            f" env.params.sim_dt={chosen['sim_dt']}"
        )
    replaced = wrapper.BraxDomainRandomizationVmapWrapper(env, lambda model: (model, None)).v_env_fn
    physics = Physics(env.mjx_model, replaced, lambda: registry.get_domain_randomizer(name))
    limited = TimeLimit(Vectorize(PhysicsEnvironment(env, env.mj_model, _pose, physics)), chosen["episode_length"])
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
    with _models_in(directory):
        try:
            return suite.load(name, config_overrides=overrides)
        except (KeyError, OSError, ValueError) as error:
            raise ConfigError(
                f"env.assets={directory} does not fit {name}: {first_line(error)}: use {_REPOSITORY} at commit"
                f" {_MODELS.MENAGERIE_COMMIT_SHA}"
            ) from error


def _check_step(name: str, env: Any) -> None:
    raw_key = jax.eval_shape(jax.random.key_data, jax.random.key(0))
    try:
        with jax.numpy_rank_promotion("allow"):
            jax.eval_shape(env.step, jax.eval_shape(env.reset, raw_key), jnp.zeros(env.action_size))
    except TypeError as error:
        raise ConfigError(
            f"env.scenario.name={name} does not run with jax {jax.__version__}: in mujoco_playground, {error}: choose"
            " another task"
        ) from error


@contextlib.contextmanager
def _models_in(directory: Path) -> Iterator[None]:
    before = _MODELS.MENAGERIE_PATH
    # The suite takes a path of its own kind.
    _MODELS.MENAGERIE_PATH = type(before)(directory)
    try:
        yield
    finally:
        _MODELS.MENAGERIE_PATH = before


def _pose(state: Any) -> dict[str, Any]:
    return {name: getattr(state.data, name) for name in ("qpos", "mocap_pos", "mocap_quat")}
