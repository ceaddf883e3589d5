"""The fit of input layers and torsos to an observation space."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from flax.core import FrozenDict

from stoix_like.envs.legends import LAST_STEP, VIEW
from stoix_like.envs.spaces import Box, Dict, ObservationSpace, Space, entries
from stoix_like.errors import ConfigError, nearest
from stoix_like.networks.inputs import (
    ArrayInput,
    DictInput,
    EmbeddingActionInput,
    EmbeddingActionOnehotInput,
    EntriesInput,
    FeatureInput,
    FlattenInput,
    StepCountInput,
    TorsoInput,
)
from stoix_like.networks.requirements import MisfitError

_EXTENDING = (StepCountInput, EmbeddingActionInput, EmbeddingActionOnehotInput)
_VECTORS = (1,)


def observation_facts(space: Space) -> dict[str, Any]:
    """Return the properties of an observation space under the argument names of torsos."""
    facts: dict[str, Any] = {"has_channels": len(space.shape) != 2}
    if isinstance(space, Box) and jnp.issubdtype(space.dtype, jnp.integer) and np.all(np.isfinite(space.high)):
        facts["num_symbols"] = int(np.max(space.high)) + 1
    return facts


def fit_input(group: dict[str, Any], space: ObservationSpace, key: str) -> dict[str, Any]:
    """Let the input layer of a network return what its torso takes.

    Torsos declare the numbers of axes that they take in the class variable `view_dims`; before those that take vectors,
    views are flattened and the entries of dictionaries concatenated. Besides the last action and reward of
    `wrappers.ObserveLastStep`, other torsos take only the view.
    """
    layer, torso = group.get("input_layer"), group.get("pre_torso")
    if layer is None:
        return group
    takes, layer_key = getattr(torso, "view_dims", None), f"{key}.input_layer"
    if isinstance(layer, (DictInput, FlattenInput, TorsoInput, *_EXTENDING)):
        if takes is not None and 1 not in takes:
            problem = f"{key}.pre_torso={type(torso).__name__} takes images, but {layer_key} returns vectors"
            raise MisfitError(problem, "choose network=mlp")
        return {**group, "input_layer": _as_vectors(layer, space, layer_key)}
    view = _selected(layer, space, layer_key)
    if takes is None or view is None:
        return group
    if not isinstance(view, Dict) and len(view.shape) in takes:
        return {**group, "pre_torso": _with_facts(torso, view)}
    if takes != _VECTORS and isinstance(view, Dict) and view is space and set(view.spaces) <= {VIEW, *LAST_STEP}:
        # Convolutions take the image; the last action and the last reward join their output.
        return {
            **group,
            "input_layer": _fit_dict(DictInput(FrozenDict({VIEW: torso})), view, layer_key),
            "pre_torso": ArrayInput(),
        }
    if takes != _VECTORS:
        raise MisfitError(f"{key}.pre_torso does not fit observations of {_describe(view)}", "choose network=mlp")
    return {**group, "input_layer": _as_vectors(layer, space, layer_key)}


def _as_vectors(layer: nn.Module, space: ObservationSpace, key: str) -> nn.Module:
    """Return an input layer that returns vectors from observations of a space."""
    if isinstance(layer, DictInput):
        return _fit_dict(layer, space, key)
    if isinstance(layer, TorsoInput):
        return layer.copy(**fit_input({"input_layer": layer.input_layer, "pre_torso": layer.pre_torso}, space, key))
    if isinstance(layer, _EXTENDING):
        return layer.copy(input_layer=_as_vectors(layer.input_layer, space, f"{key}.input_layer"))
    view = None if isinstance(layer, FlattenInput) else _selected(layer, space, key)
    if isinstance(view, Dict):
        return FlattenInput(layer, tuple(len(entry.shape) for entry in entries(view).values()))
    return layer if view is None or len(view.shape) == 1 else FlattenInput(layer, len(view.shape))


def _fit_dict(layer: DictInput, space: ObservationSpace, key: str) -> DictInput:
    if not isinstance(space, Dict):
        raise ConfigError(f"{key}=DictInput takes dictionaries, not observations of {_describe(space)}: use ArrayInput")
    views, torsos = entries(space), {}
    for name, torso in layer.layers.items():
        if name not in views:
            raise ConfigError(f"{key}.layers.{name} is not an entry of the observation: {nearest(name, views)}")
        takes = getattr(torso, "view_dims", None)
        if takes not in (None, _VECTORS) and len(views[name].shape) not in takes:
            raise ConfigError(
                f"{key}.layers.{name}={type(torso).__name__} does not fit an entry of {_describe(views[name])}: use a"
                " torso of dense layers, or leave the entry out to flatten it"
            )
        torsos[name] = _with_facts(torso, views[name])
    return layer.copy(layers=FrozenDict(torsos), view_dims=tuple(len(view.shape) for view in views.values()))


def _selected(layer: Any, space: ObservationSpace, key: str) -> ObservationSpace | None:
    """Return the space of the output of an input layer without parameters; None if it is unknown."""
    if isinstance(layer, FeatureInput):
        field, *path = layer.feature_name.split(".")
        if field == "step_count":
            return Box(0, np.inf, (), jnp.int32)
        return _entry(space, path, f"{key}.feature_name={layer.feature_name}") if field == "agent_view" else None
    if isinstance(layer, EntriesInput):
        return Dict({name: _entry(space, [name], f"{key}.names={name}") for name in layer.names})
    return None if isinstance(space, Dict) and not isinstance(layer, ArrayInput) else space


def _entry(space: ObservationSpace, path: list[str], what: str) -> ObservationSpace:
    """Return an entry of a space, which may be a `Dict` again."""
    found = space
    for name in path:
        if not isinstance(found, Dict) or name not in found.spaces:
            known = entries(space, "agent_view")
            hint = nearest(what.partition("=")[2], known)
            if not isinstance(space, Dict):
                hint = "the environment returns one array, agent_view"
            if what.endswith((".own", ".world")):
                hint = "games of several agents have it with +env.kwargs.world=true env.flatten_observation=false"
            raise ConfigError(f"{what} is not part of the observation: {hint}")
        found = found.spaces[name]
    return found


def _with_facts(torso: Any, space: ObservationSpace) -> Any:
    """Return a torso that knows the channels and symbols of its view, where they were not configured."""
    if isinstance(space, Dict):
        return torso
    unknown = {"has_channels": True, "num_symbols": None}
    found = {
        name: fact
        for name, fact in observation_facts(space).items()
        if getattr(torso, name, fact) == unknown[name] and fact != unknown[name]
    }
    return torso.copy(**found) if found else torso


def _describe(space: ObservationSpace) -> str:
    return f"the entries {', '.join(entries(space))}" if isinstance(space, Dict) else f"shape {tuple(space.shape)}"
