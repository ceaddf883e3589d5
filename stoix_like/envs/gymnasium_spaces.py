"""Conversion of gymnasium's spaces."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import PyTree
from stoix_like.envs.host import HostSpec
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, Space, Tuple, choices, is_picture, one_hot
from stoix_like.errors import ConfigError


def make_spec(
    name: str,
    observations: gymnasium.Space[Any],
    actions: gymnasium.Space[Any],
    channels_first: bool = False,
    stacked: int = 1,
) -> HostSpec:
    """Describe an environment on the host by its spaces."""
    # Bounds of float64 that float32 does not hold are infinite.
    with np.errstate(over="ignore"):
        space, leaf, encode = _convert_observations(name, joined(observations))
        action_space = _convert_actions(name, actions)
    if channels_first and isinstance(space, Box):
        low, high = (np.moveaxis(np.asarray(bound), 0, -1) for bound in (space.low, space.high))
        space, encode = Box(low, high, low.shape, space.dtype, stacked), lambda view: jnp.moveaxis(view, 1, -1)
    return HostSpec(name, leaf, encode, space, action_space)


def joined(space: gymnasium.Space[Any]) -> gymnasium.Space[Any]:
    """Return a space in which tuples of choices are one `MultiDiscrete`; as arrays, its elements are the same."""
    match space:
        case gymnasium.spaces.Dict():
            return gymnasium.spaces.Dict({key: joined(part) for key, part in space.spaces.items()})
        case gymnasium.spaces.Tuple():
            parts = [part for part in space.spaces if isinstance(part, gymnasium.spaces.Discrete)]
            if len(parts) == len(space.spaces):
                start = [int(part.start) for part in parts]
                return gymnasium.spaces.MultiDiscrete([int(part.n) for part in parts], start=start)
    return space


def native_actions(space: gymnasium.Space[Any], actions: PyTree) -> PyTree:
    """Convert actions to the dtype of the environment's space.

    `actions`: `[N, ...]` elements of the converted space.
    Returns `[N, ...]` elements of `space`.
    """
    if isinstance(space, gymnasium.spaces.Dict):
        return {name: native_actions(part, actions[name]) for name, part in space.spaces.items()}
    if isinstance(space, gymnasium.spaces.Tuple):
        return tuple(native_actions(*each) for each in zip(space.spaces, actions, strict=True))
    return actions.astype(space.dtype)


def _convert_observations(
    name: str, space: gymnasium.Space[Any]
) -> tuple[Box | Dict, PyTree, Callable[[PyTree], PyTree]]:
    """Return the converted space, the shapes of one observation, and the conversion of observations `[N, ...]`."""
    match space:
        case gymnasium.spaces.Dict():
            parts = {key: _convert_observations(name, part) for key, part in space.spaces.items()}
            return (
                Dict({key: converted for key, (converted, _, _) in parts.items()}),
                {key: leaf for key, (_, leaf, _) in parts.items()},
                lambda view: {key: encode(view[key]) for key, (_, _, encode) in parts.items()},
            )
        case gymnasium.spaces.Box():
            dtype = np.dtype(np.uint8 if space.dtype == np.uint8 and is_picture(space) else np.float32)
            converted = Box(space.low.astype(dtype), space.high.astype(dtype), space.shape, dtype)
            return converted, jax.ShapeDtypeStruct(converted.shape, converted.dtype), lambda view: view
        case gymnasium.spaces.Discrete() | gymnasium.spaces.MultiDiscrete() if len(space.shape or ()) < 2:
            choice: Any = _convert_actions(name, space)
            box = Box(0.0, 1.0, (sum(choices(choice)),))
            return box, jax.ShapeDtypeStruct(choice.shape, jnp.int32), partial(one_hot, choice)
    raise ConfigError(
        f"{name} has observations of the space {space}, which is not supported: use Box, Discrete, a Tuple of Discrete,"
        " MultiDiscrete or a Dict of these, by a wrapper of the environment"
    )


def _convert_actions(name: str, space: gymnasium.Space[Any]) -> Space | Dict | Tuple:
    match space:
        case gymnasium.spaces.Dict():
            return Dict({key: _convert_actions(name, part) for key, part in space.spaces.items()})  # type: ignore[misc]
        case gymnasium.spaces.Tuple():
            return Tuple([_convert_actions(name, part) for part in space.spaces])
        case gymnasium.spaces.Discrete():
            return Discrete(int(space.n), start=int(space.start))
        case gymnasium.spaces.MultiDiscrete() if space.nvec.ndim == 1:
            return MultiDiscrete(tuple(space.nvec.tolist()), start=tuple(space.start.tolist()))
        case gymnasium.spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return _within(space)
    raise ConfigError(
        f"{name} has actions of the space {space}, which is not supported: use Discrete, MultiDiscrete, a Box of"
        " floats, or a Dict or Tuple of these, by a wrapper of the environment"
    )


def _within(space: gymnasium.spaces.Box) -> Box:
    """Return the box of actions in float32, with bounds rounded inwards: an environment may check its own."""
    low, high = (bound.astype(np.float32) for bound in (space.low, space.high))
    low = np.where(low < space.low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high > space.high, np.nextafter(high, np.float32(-np.inf)), high)
    return Box(low, high, space.shape)
