"""Adapter for brax.

The wrappers of brax, which reset automatically and report time limits as `done`, are not used.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
from brax import envs as brax_envs
from brax import fluid
from brax.envs.wrappers.training import DomainRandomizationVmapWrapper

from stoix_like.envs.arguments import check_names, check_scenario, construct
from stoix_like.envs.environment import VectorEnvironment, Vectorize
from stoix_like.envs.suites.physics import Physics, PhysicsEnvironment, fit_parameters
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import ConfigError
from stoix_like.user_code import refusing

# Forces of fluids, as on the swimmer, pass `a_min` to `jnp.clip`, which jax has removed.
fluid.jp = SimpleNamespace(**{**vars(jnp), "clip": lambda x, a_min: jnp.maximum(x, a_min)})

# The default of `brax.envs.create`.
_DEFAULTS = {"episode_length": 1000}


def scenarios() -> list[str]:
    """List the names of the registered environments."""
    return sorted(brax_envs._envs)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of brax."""
    check_scenario("brax", name, scenarios())
    limit = {**_DEFAULTS, **fit_parameters(params, _DEFAULTS, name, tuple(_DEFAULTS))}["episode_length"]
    cls = brax_envs._envs[name]
    named = [
        parameter.name
        for parameter in inspect.signature(cls).parameters.values()
        if parameter.kind.name != "VAR_KEYWORD"
    ]
    # Those with physics pass the steps of the simulation per action on to brax's base class.
    check_names("env.kwargs", kwargs, [*named, "n_frames"] if "backend" in named else named, name)
    if "n_frames" in kwargs and (type(kwargs["n_frames"]) is not int or kwargs["n_frames"] < 1):
        raise ConfigError(
            f"env.kwargs.n_frames={kwargs['n_frames']!r} is invalid for {name}: use an integer of at least 1"
        )
    with warnings.catch_warnings():
        # Every construction warns that brax is not actively maintained.
        warnings.filterwarnings("ignore", "Brax System", UserWarning)
        env = construct(cls, kwargs, name)
    with refusing(f"env.kwargs={dict(kwargs)} is invalid for {name}", "use values like the defaults"):
        adapted = PhysicsEnvironment(env, _model(env), _pose, _physics(env), name)
    return TimeLimit(Vectorize(adapted), limit)


def _model(env: Any) -> Any:
    # One environment, for tests, has no bodies.
    return env.sys.mj_model if hasattr(env, "sys") else None


def _physics(env: Any) -> Physics | None:
    if not hasattr(env, "sys"):
        return None
    replaced = DomainRandomizationVmapWrapper(env, lambda system: (system, None)).v_env_fn
    return Physics(env.sys, replaced, lambda: None)


def _pose(state: Any) -> dict[str, Any]:
    return {"qpos": state.pipeline_state.q}
