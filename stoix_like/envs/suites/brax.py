"""Adapter for brax.

The wrappers of brax, which reset automatically and report time limits as `done`, are not used.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from brax import envs as brax_envs
from brax import fluid
from brax.envs.wrappers.training import DomainRandomizationVmapWrapper

from stoix_like.envs.arguments import check_names, check_scenario, construct, fit_params, parameters_of
from stoix_like.envs.environment import Physics, VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import PhysicsEnvironment
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.user_code import refusing

# Forces of fluids, as on the swimmer, pass `a_min` to `jnp.clip`, which jax has removed.
fluid.jp = SimpleNamespace(**{**vars(jnp), "clip": lambda x, a_min: jnp.maximum(x, a_min)})


def scenarios() -> list[str]:
    """List the names of the registered environments."""
    return sorted(brax_envs._envs)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of brax."""
    check_scenario("brax", name, scenarios())
    defaults = {"episode_length": 1000}  # as `brax.envs.create`
    limit = (defaults | fit_params(defaults, params, name, defaults))["episode_length"]
    cls = brax_envs._envs[name]
    named = [parameter.name for parameter in parameters_of(cls) if parameter.kind is not parameter.VAR_KEYWORD]
    # Those with physics pass the steps of the simulation per action on to brax's base class.
    check_names("env.kwargs", kwargs, [*named, "n_frames"] if "backend" in named else named, name)
    with warnings.catch_warnings():
        # Every construction warns that brax is not actively maintained.
        warnings.filterwarnings("ignore", "Brax System", UserWarning)
        env = construct(cls, kwargs, name)
    with refusing(f"env.kwargs={dict(kwargs)} is invalid for {name}", "use values like the defaults"):
        model = physics = None
        if hasattr(env, "sys"):  # one environment, for tests, has no bodies
            replaced = DomainRandomizationVmapWrapper(env, lambda system: (system, None)).v_env_fn
            model, physics = env.sys.mj_model, Physics(env.sys, replaced)
        adapted = PhysicsEnvironment(env, model, lambda state: {"qpos": state.pipeline_state.q}, physics, name)
    return TimeLimit(Vectorize(adapted), limit)
