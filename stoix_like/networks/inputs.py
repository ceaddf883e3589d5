"""Input layers: the selection of a network's input from an observation and an action."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from stoix_like.base_types import Observation, ObservationGlobalState
from stoix_like.envs.spaces import entries
from stoix_like.errors import nearest
from stoix_like.utils.jax_utils import as_floats

ViewDims = int | Sequence[int]
"""Number of trailing axes of a view; for a dictionary, of each of its entries in the order of `entries`."""


def _view(observation: Any) -> Any:
    """Return the `agent_view` of an observation, or the value itself."""
    if isinstance(observation, Observation | ObservationGlobalState):
        return observation.agent_view
    return observation


def _flatten(view: Shaped[Array, "..."], num_dims: int) -> Float[Array, "*batch D"]:
    """Convert a view to floats, and flatten its trailing axes."""
    return as_floats(view).reshape(*view.shape[: view.ndim - num_dims], -1)


def _named_dims(view: Any, view_dims: ViewDims) -> dict[str, tuple[Any, int]]:
    """Return each entry of a view by name, with the number of its trailing axes."""
    arrays = entries(view)
    dims = [view_dims] * len(arrays) if isinstance(view_dims, int) else view_dims
    return {name: (array, num) for (name, array), num in zip(arrays.items(), dims, strict=True)}


class ArrayInput(nn.Module):
    """An input layer that selects an array, or the `agent_view` of an observation."""

    @nn.compact
    def __call__(self, embedding: Any) -> Any:
        """Return the array, or the dictionary of arrays."""
        return _view(embedding)


class FeatureInput(nn.Module):
    """An input layer that selects one field of an observation, or one entry of a field."""

    # Name of the field, such as `agent_view` or `global_state`; a dot selects an entry of a dictionary,
    # `agent_view.grid`.
    feature_name: str

    @nn.compact
    def __call__(self, input_object: Any) -> Any:
        """Return the field or the entry.

        Raises:
            AttributeError: the observation has no such field, or the environment leaves it empty, or the field has no
                such entry.
        """
        field, *path = self.feature_name.split(".")
        feature = getattr(input_object, field, None)
        if feature is None:
            fields = getattr(input_object, "_fields", ())
            present = " or ".join(name for name in fields if getattr(input_object, name) is not None)
            present = present or f"an Observation (found: {type(input_object).__name__})"
            raise AttributeError(f"feature_name={self.feature_name} is not part of the observation: use {present}")
        for name in path:
            if not isinstance(feature, Mapping) or name not in feature:
                known = [entry for entry in entries(getattr(input_object, field), field) if entry != field]
                hint = nearest(self.feature_name, known) if known else f"use {field}, which is an array"
                raise AttributeError(f"feature_name={self.feature_name} is not part of the observation: {hint}")
            feature = feature[name]
        return feature


class EntriesInput(nn.Module):
    """An input layer that selects entries of the `agent_view`, a dictionary."""

    names: Sequence[str]  # names of the entries, such as `observation` and `desired_goal`

    @nn.compact
    def __call__(self, embedding: Any) -> dict[str, Any]:
        """Return the entries by name."""
        return {name: _view(embedding)[name] for name in self.names}


class FlattenInput(nn.Module):
    """An input layer that flattens the output of another one, such as images for a torso of dense layers."""

    input_layer: nn.Module  # the other input layer
    view_dims: ViewDims  # number of trailing axes to flatten; a list for the entries of a dictionary, sorted by name

    @nn.compact
    def __call__(self, observation: Any, **kwargs: Any) -> Float[Array, "*batch D"]:
        """Flatten the trailing axes, and concatenate the entries of a dictionary, sorted by name.

        Args:
            observation: an observation with a view `[..., *view]`, or a dictionary of them.
            **kwargs: keyword arguments of the other input layer.

        Returns:
            `[..., D]` floats, see `as_floats`.
        """
        views = _named_dims(self.input_layer(observation, **kwargs), self.view_dims)
        return jnp.concatenate([_flatten(*view) for view in views.values()], axis=-1)


class DictInput(nn.Module):
    """An input layer that embeds each entry of a dictionary by a torso of its own, and concatenates the results."""

    # Torsos by the name of the entry, such as `grid` or `agent.position`; other entries are flattened.
    layers: Mapping[str, nn.Module]
    # Number of trailing axes of each entry, sorted by name; it follows from the observation space.
    view_dims: ViewDims = 1

    @nn.compact
    def __call__(self, observation: Any) -> Float[Array, "*batch D"]:
        """Embed the entries, and concatenate them sorted by name.

        Args:
            observation: an observation with a dictionary of arrays `[..., *entry]` as view.

        Returns:
            `[..., D]` floats; entries without a torso are flattened, see `as_floats`.

        Raises:
            ValueError: a torso is named after no entry.
        """
        views = _named_dims(_view(observation), self.view_dims)
        for name in self.layers:
            if name not in views:
                raise ValueError(f"layers.{name} is not an entry of the observation: {nearest(name, views)}")
        return jnp.concatenate([self._embed(name, *view) for name, view in views.items()], axis=-1)

    def _embed(self, name: str, view: Array, num_dims: int) -> Array:
        if name not in self.layers:
            return _flatten(view, num_dims)
        torso = self.layers[name]
        takes_vectors = getattr(torso, "view_dims", None) == (1,)
        return torso(_flatten(view, num_dims) if takes_vectors else view)


class TorsoInput(nn.Module):
    """An input layer that embeds the output of another one by a torso, such as images before an action joins them."""

    pre_torso: nn.Module  # maps the output of the other input layer to an embedding
    input_layer: nn.Module = ArrayInput()  # the other input layer

    @nn.compact
    def __call__(self, observation: Any) -> Float[Array, "*batch F"]:
        """Embed the output of the other input layer, a view that the torso takes: `[..., F]`."""
        return self.pre_torso(self.input_layer(observation))


class StepCountInput(nn.Module):
    """An input layer that appends the steps since the episode started, see `env.step_count`."""

    input_layer: nn.Module = ArrayInput()  # the input layer of the other features, a vector
    scale: float = 1000.0  # steps per unit of the appended feature, such as the time limit

    def __post_init__(self) -> None:
        """Check that the scale is positive."""
        if not self.scale > 0:
            raise ValueError(f"scale={self.scale} must be positive: use the time limit of the environment")
        super().__post_init__()

    @nn.compact
    def __call__(self, observation: Any, **kwargs: Any) -> Float[Array, "*batch F"]:
        """Append `step_count / scale` to the features.

        Args:
            observation: an observation.
            **kwargs: keyword arguments of the other input layer.

        Returns:
            `[..., D + 1]`.

        Raises:
            AttributeError: the observation has no `step_count`.
        """
        steps = getattr(observation, "step_count", None)
        if steps is None:
            raise AttributeError(
                "StepCountInput needs step_count, which the observation lacks: set env.step_count=true"
            )
        features = as_floats(self.input_layer(observation, **kwargs))
        return jnp.concatenate([features, (steps / self.scale).astype(features.dtype)[..., None]], axis=-1)


class EmbeddingActionInput(nn.Module):
    """An input layer that concatenates an observation and a continuous action."""

    input_layer: nn.Module = ArrayInput()  # the input layer of the observation, a vector

    @nn.compact
    def __call__(self, embedding: Any, action: Shaped[Array, "..."]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis: `[..., D + A]`."""
        view = as_floats(self.input_layer(embedding))
        batch = view.shape[:-1]
        if action.shape[: len(batch)] != batch:
            raise ValueError(f"action.shape={action.shape} must start with the batch axes {batch} of the observation")
        vector = action.reshape(*batch, math.prod(action.shape[len(batch) :]))
        return jnp.concatenate([view, vector], axis=-1)


class EmbeddingActionOnehotInput(nn.Module):
    """An input layer that concatenates an observation and a one-hot discrete action."""

    action_dim: int  # number of actions
    input_layer: nn.Module = ArrayInput()  # the input layer of the observation, a vector

    @nn.compact
    def __call__(self, observation_embedding: Any, action: Int[Array, "*batch"]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis: `[..., D + action_dim]`."""
        view = as_floats(self.input_layer(observation_embedding))
        return jnp.concatenate([view, jax.nn.one_hot(action, self.action_dim, dtype=view.dtype)], axis=-1)
