"""Environments as a file describes them: what a policy knows of them, without what steps them."""

from __future__ import annotations

from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import State, VectorEnvironment, restart
from stoix_like.envs.legends import Feature, Legend
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete, Tuple, first_choices, mapped
from stoix_like.envs.wrappers import AgentRows, Wrapper, layers

# The key of the number that all entries of an array of bounds are.
_EVERYWHERE = "everywhere"


class DescribedEnvironment(VectorEnvironment):
    """Environments that start episodes with observations of zeros, and take no step."""

    def __init__(self, description: dict[str, Any]) -> None:
        self.observation_space = _space_of(description["observation_space"])
        self.action_space = _space_of(description["action_space"])
        self.on_host = bool(description["on_host"])
        self._mask, self._counts = description["action_mask"], bool(description["step_count"])
        self.num_players, self.num_agents = int(description["num_players"]), int(description["num_agents"])
        self.team_reward = bool(description["team_reward"])
        legend = description["legend"]
        features = (Feature(**{**feature, "places": tuple(feature["places"])}) for feature in legend["features"])
        self._legend = Legend(tuple(features), tuple(legend["actions"]), tuple(legend["velocities"]))

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        mask = None if self._mask is None else jnp.ones(self._mask, bool)
        count = jnp.zeros((), jnp.int32) if self._counts else None
        first = restart(Observation(_zeros(self.observation_space), mask, count))
        return (), jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (len(keys), *leaf.shape)), first)

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> NoReturn:
        """Raise a TypeError."""
        raise TypeError("described environments take no steps: build them by factory.make_eval")

    def legend(self) -> Legend:
        return self._legend


def describe(env: VectorEnvironment, observation: Observation) -> dict[str, Any] | None:
    """Describe environments in values of JSON.

    `observation`: the shapes of their observations, `[N, ...]`.
    Returns the description of their observations, and of the actions of `unwrapped`.
    """
    own, base = type(env.unwrapped), VectorEnvironment
    converts = own.native_action is not base.native_action or (not env.on_host and own.view_of is not base.view_of)
    view, mask, count = observation
    declared = jax.eval_shape(lambda: jax.tree.map(lambda leaf: leaf[None], _zeros(env.observation_space)))
    if converts or _forms(view) != _forms(declared):
        return None
    legend = env.legend()
    return {
        "observation_space": _plain(env.observation_space),
        "action_space": _plain(env.unwrapped.action_space),
        "action_mask": None if mask is None else list(mask.shape[1:]),
        "step_count": count is not None,
        **{name: getattr(env, name) for name in ("on_host", "num_players", "num_agents", "team_reward")},
        "legend": {**legend._asdict(), "features": [feature._asdict() for feature in legend.features]},
    }


def conversions(env: VectorEnvironment) -> list[type[Wrapper]]:
    """Return the wrappers that convert actions, the outermost first; `AgentRows` keeps their units."""
    found = list[type[Wrapper]]()
    for layer in layers(env):
        own = type(layer)
        keeps = own.inner_action is Wrapper.inner_action and own.native_action is Wrapper.native_action
        if not keeps and own is not AgentRows:
            found.append(own)
    return found


def _forms(tree: PyTree) -> Any:
    """Return the structure of a tree of arrays, and the dtype and the shape of each without its first axis."""
    return jax.tree.structure(tree), [(jnp.dtype(leaf.dtype), leaf.shape[1:]) for leaf in jax.tree.leaves(tree)]


def _zeros(space: Any) -> PyTree:
    return mapped(space, lambda part: jnp.zeros(part.shape, part.dtype), dict)


def _plain(space: Any) -> dict[str, Any]:
    """Return a space in values of JSON, in which infinite bounds are null."""
    match space:
        case Dict():
            return {"kind": "Dict", "spaces": {name: _plain(entry) for name, entry in space.spaces.items()}}
        case Tuple():
            return {"kind": "Tuple", "spaces": [_plain(entry) for entry in space.spaces]}
        case Mixed():
            return {"kind": "Mixed", "space": _plain(space.space)}
        case Discrete():
            dtype = str(jnp.dtype(space.dtype))
            return {"kind": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": dtype}
        case MultiDiscrete():
            nvec, dtype = [*map(int, space.nvec)], str(jnp.dtype(space.dtype))
            return {"kind": "MultiDiscrete", "nvec": nvec, "start": first_choices(space).tolist(), "dtype": dtype}
        case Box():
            bounds = {"low": _plain_bound(space.low), "high": _plain_bound(space.high)}
            form = {"shape": [*map(int, space.shape)], "dtype": str(jnp.dtype(space.dtype)), "stacked": space.stacked}
            return {"kind": "Box", **bounds, **form}
    raise TypeError(f"{type(space).__name__} is not a space that a file can describe")


def _plain_bound(bound: Any) -> Any:
    """Return a bound; an image's is an array of one number."""
    array = np.asarray(bound)
    if array.ndim and array.size and (array == array.flat[0]).all():
        return {_EVERYWHERE: array.flat[0].item()}
    return array.tolist()


def _space_of(plain: dict[str, Any]) -> Any:
    """Return the space of `_plain`."""
    match plain["kind"]:
        case "Dict":
            return Dict({name: _space_of(entry) for name, entry in plain["spaces"].items()})
        case "Tuple":
            return Tuple([_space_of(entry) for entry in plain["spaces"]])
        case "Mixed":
            return Mixed(_space_of(plain["space"]))
        case "Discrete":
            return Discrete(int(plain["n"]), jnp.dtype(plain["dtype"]), int(plain.get("start", 0)))
        case "MultiDiscrete":
            nvec, start = (tuple(map(int, plain.get(name, ()))) for name in ("nvec", "start"))
            return MultiDiscrete(nvec, jnp.dtype(plain["dtype"]), start or None)
        case "Box":
            shape, dtype = tuple(map(int, plain["shape"])), jnp.dtype(plain["dtype"])
            low, high = (_bound_of(plain[end], sign * np.inf, shape, dtype) for end, sign in (("low", -1), ("high", 1)))
            return Box(low, high, shape, dtype, int(plain["stacked"]))
    raise ValueError(f"kind={plain['kind']!r} is not a kind of space")


def _bound_of(plain: Any, infinity: float, shape: tuple[int, ...], dtype: Any) -> Any:
    array = np.asarray(plain[_EVERYWHERE] if isinstance(plain, dict) else plain, np.float64)
    array = np.where(np.isnan(array), infinity, array)
    if isinstance(plain, dict | list):
        # Integers may have infinite bounds.
        return np.broadcast_to(array.astype(dtype) if np.isfinite(array).all() else array, shape)
    return array.item()
