"""Input layers: the selection of a network's input from an observation and an action."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from stoix_like.base_types import Observation, ObservationGlobalState


def _view(observation: Any) -> Array:
    """Return the `agent_view` of an observation, or the array itself."""
    if isinstance(observation, Observation | ObservationGlobalState):
        return observation.agent_view
    return observation


def as_floats(x: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """Convert pixels, integers and booleans to floats.

    Args:
        x: array of any shape.

    Returns:
        Floats unchanged, uint8 scaled from 0 … 255 to [0, 1], other types cast to float32.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / 255.0
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


class ArrayInput(nn.Module):
    """An input layer that selects an array, or the `agent_view` of an observation."""

    @nn.compact
    def __call__(self, embedding: Any) -> Shaped[Array, "..."]:
        """Return the array."""
        return _view(embedding)


class FeatureInput(nn.Module):
    """An input layer that selects one field of an observation.

    Attributes:
        feature_name: name of the field, such as `agent_view` or `global_state`.
    """

    feature_name: str

    @nn.compact
    def __call__(self, input_object: Any) -> Shaped[Array, "..."]:
        """Return the field.

        Raises:
            AttributeError: the observation has no such field, or the environment leaves it empty.
        """
        feature = getattr(input_object, self.feature_name, None)
        if feature is None:
            fields = getattr(input_object, "_fields", ())
            present = " or ".join(name for name in fields if getattr(input_object, name) is not None)
            raise AttributeError(f"feature_name={self.feature_name} is not part of the observation: use {present}")
        return feature


class FlattenInput(nn.Module):
    """An input layer that flattens the output of another one, such as images for a torso of dense layers.

    Attributes:
        input_layer: the other input layer.
        view_dims: number of trailing axes to flatten.
    """

    input_layer: nn.Module
    view_dims: int

    @nn.compact
    def __call__(self, observation: Any, **kwargs: Any) -> Float[Array, "*batch D"]:
        """Flatten the trailing axes.

        Args:
            observation: an observation with a view `[..., *view]`.
            **kwargs: keyword arguments of the other input layer.

        Returns:
            `[..., D]` floats, see `as_floats`.
        """
        view = as_floats(self.input_layer(observation, **kwargs))
        return view.reshape(*view.shape[: view.ndim - self.view_dims], -1)


class EmbeddingActionInput(nn.Module):
    """An input layer that concatenates an observation and a continuous action."""

    @nn.compact
    def __call__(self, embedding: Any, action: Shaped[Array, "*batch A"]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis.

        Args:
            embedding: `[..., D]`, or an observation with a view of this shape; see `as_floats`.
            action: `[..., A]`.

        Returns:
            `[..., D + A]`.
        """
        return jnp.concatenate([as_floats(_view(embedding)), action], axis=-1)


class EmbeddingActionOnehotInput(nn.Module):
    """An input layer that concatenates an observation and a one-hot discrete action.

    Attributes:
        action_dim: number of actions.
    """

    action_dim: int

    @nn.compact
    def __call__(self, observation_embedding: Any, action: Int[Array, "*batch"]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis.

        Args:
            observation_embedding: `[..., D]`, or an observation with a view of this shape; see `as_floats`.
            action: `[...]`, integers in `0 … action_dim - 1`.

        Returns:
            `[..., D + action_dim]`.
        """
        view = as_floats(_view(observation_embedding))
        return jnp.concatenate([view, jax.nn.one_hot(action, self.action_dim, dtype=view.dtype)], axis=-1)
