"""Adapter for gymnax.

gymnax's `step` resets automatically, which is the runner's task here, so the adapter calls `reset_env` and `step_env`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_scenario, construct, fit_params
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.lazy_imports import deferred
from stoix_like.envs.legends import Legend, find_legend
from stoix_like.envs.scenes import classic_control, minatar, views
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, Discrete, Space, plain_bound
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.errors import ConfigError
from stoix_like.user_code import refusing
from stoix_like.utils.jax_utils import used_inputs

# Its renderings and conversions need them: to import them takes as long as all the rest of gymnax.
with deferred("gymnasium", "matplotlib", "seaborn"):
    import gymnax
    from gymnax.environments import spaces as gymnax_spaces

# Registered in gymnax, but not supported here, with the reason.
_UNSUPPORTED = {"MNISTBandit-bsuite": "it would download its images"}

# The task itself ends at the horizon. Treated as a time limit, it would bootstrap from states without further
# rewards, with values that are never corrected and could grow without bound.
HORIZON_ENDS_TASK = frozenset({"DiscountingChain-bsuite"})

# Their observations exceed the bounds that gymnax declares.
_WRONG_BOUNDS = frozenset({"GaussianBandit-misc", "MemoryChain-bsuite", "MetaMaze-misc"})


class GymnaxEnvironment(SuiteEnvironment):
    """An environment of gymnax."""

    def __init__(self, env: Any, params: Any, name: str) -> None:
        self.env, self.params, self._name = env, params, name
        self._horizon_ends_task = name in HORIZON_ENDS_TASK
        if name in gymnax.registered_envs:  # others may start in the middle, or truncate by a rule of their own
            limit = getattr(params, "max_steps_in_episode", None)
            self.truncates_after = None if limit is None else int(limit)
        declared = env.observation_space(params)
        self._num_classes = declared.n if isinstance(declared, gymnax_spaces.Discrete) else None
        self.action_space = _convert_actions(env.action_space(params))
        view = self.shapes()
        low, high = (0.0, 1.0) if self._num_classes is not None else (declared.low, declared.high)
        if name in _WRONG_BOUNDS:
            low, high = -np.inf, np.inf
        if self._num_classes is None and tuple(declared.shape) != view.shape:
            self.faults = (
                f"{name} returns observations of shape {list(view.shape)}, but its observation_space has the shape"
                f" {list(declared.shape)}: make them agree",
            )
            low, high = np.min(low), np.max(high)
        self.observation_space = Box(plain_bound(low), plain_bound(high), view.shape, view.dtype)

    def start(self, key: jax.Array) -> Any:
        return self.env.reset_env(key, self.params)

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        view, state, reward, terminated, _ = self.env.step_env(key, state, action, self.params)
        at_limit = self.env.is_truncated(state, self.params)
        return view, state, reward, terminated | at_limit if self._horizon_ends_task else terminated, at_limit

    def scene(self) -> Scene | None:
        scene = classic_control.find_scene(self._name, self.params)
        return scene or views.find_scene(self.observation_space, minatar.CHANNELS.get(self._name, ()))

    def legend(self) -> Legend:
        return find_legend(self._name)

    def observe(self, native: jax.Array) -> Observation:
        if self._num_classes is not None:
            return Observation(jax.nn.one_hot(native, self._num_classes, dtype=jnp.float32))
        return Observation(native if native.dtype == jnp.uint8 else jnp.asarray(native, jnp.float32))


def scenarios() -> list[str]:
    """List the ids of the supported environments."""
    return [name for name in gymnax.registered_envs if name not in _UNSUPPORTED]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of gymnax."""
    check_scenario("gymnax", name, scenarios(), _UNSUPPORTED)
    env, _ = gymnax.make(name)
    if not kwargs:
        return adapt(env, params, name)
    env = construct(type(env), kwargs, name)
    with refusing(f"env.kwargs={dict(kwargs)} is invalid for {name}", "use values like the defaults"):
        return adapt(env, params, name)


def adapt(env: Any, params: Mapping[str, Any], name: str) -> VectorEnvironment:
    """Convert an environment with the interface of gymnax."""
    defaults = env.default_params
    known = {entry.name: getattr(defaults, entry.name) for entry in dataclasses.fields(defaults)}
    fitted = fit_params(known, params, name)
    fitted = _derived(name, known, fitted)
    built = GymnaxEnvironment(env, dataclasses.replace(defaults, **fitted), name)
    # A user's environment may read them only for spaces.
    given = params if name in gymnax.registered_envs else {}
    if given and (unread := sorted(given.keys() - _read(name, env, built.params, given))):
        raise ConfigError(f"env.params.{unread[0]}={params[unread[0]]}: {name} does not read it: leave it out")
    return Vectorize(built)


def _derived(name: str, known: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters with those that gymnax declares in addition to the ones that they follow from."""
    if name != "CartPole-v1":
        return dict(given)
    pole = {**known, **given}
    mass, moment = pole["masscart"] + pole["masspole"], pole["masspole"] * pole["length"]
    return {"total_mass": mass, "polemass_length": moment, **given} if given else {}


def _read(name: str, env: Any, params: Any, given: Iterable[str]) -> set[str]:
    """Return the parameters that episodes depend on; all of them if they cannot be told by the data flow."""

    def play(values: Mapping[str, Any], key: jax.Array) -> Any:
        changed = dataclasses.replace(params, **_derived(name, vars(params), values))
        _, state = start = env.reset_env(key, changed)
        step = env.step_env(key, state, env.action_space(params).sample(key), changed)
        return start, step, env.is_truncated(step[1], changed)

    values = {}
    for key in given:
        # Integers may be too large.
        with refusing(f"env.params.{key}={getattr(params, key)} is invalid for {name}", "use values like the defaults"):
            values[key] = jnp.asarray(getattr(params, key))
    try:
        with jax.numpy_rank_promotion("allow"):
            return set(used_inputs(play, values, jax.random.key(0)))
    except Exception:  # Of a value that the environment needs in Python, or of actions without a sample.
        return set(values)


def _convert_actions(space: Any) -> Space:
    if isinstance(space, gymnax_spaces.Discrete):
        return Discrete(space.n)
    return Box(plain_bound(space.low), plain_bound(space.high), tuple(space.shape), space.dtype)
