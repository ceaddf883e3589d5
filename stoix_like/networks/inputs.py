"""Input layers: what of an observation, and of an action, a network reads."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Shaped

from stoix_like.base_types import Observation, ObservationGlobalState


def _view(observation: Any) -> Array:
    """The array that an observation shows; an array as it is."""
    if isinstance(observation, Observation | ObservationGlobalState):
        return observation.agent_view
    return observation


def as_floats(x: Shaped[Array, "..."]) -> Float[Array, "..."]:
    """Bring pixels and other integers into the form that dense layers and convolutions read.

    Args:
        x: array of any shape.

    Returns:
        Floats as they are, uint8 scaled from 0 … 255 to [0, 1], anything else as float32.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / 255.0
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.float32)


class ArrayInput(nn.Module):
    """Reads an array, or the `agent_view` of an observation."""

    @nn.compact
    def __call__(self, embedding: Any) -> Shaped[Array, "..."]:
        """Take the array from what is given."""
        return _view(embedding)


class FeatureInput(nn.Module):
    """Reads one field of an observation.

    Attributes:
        feature_name: name of the field, such as `agent_view` or `global_state`.
    """

    feature_name: str

    @nn.compact
    def __call__(self, input_object: Any) -> Shaped[Array, "..."]:
        """Take the field from an observation.

        Raises:
            AttributeError: where the observation has no such field.
        """
        return getattr(input_object, self.feature_name)


class FlattenInput(nn.Module):
    """Reads what another input layer reads, as vectors of floats, such as images for a torso of dense layers.

    Attributes:
        input_layer: the other input layer.
        view_dims: trailing axes to join into one.
    """

    input_layer: nn.Module
    view_dims: int

    @nn.compact
    def __call__(self, observation: Any, **kwargs: Any) -> Float[Array, "*batch D"]:
        """Join the trailing axes.

        Args:
            observation: whose view is `[..., *view]`.
            **kwargs: further arguments of the other input layer.

        Returns:
            `[..., D]` floats, see `as_floats`.
        """
        view = as_floats(self.input_layer(observation, **kwargs))
        return view.reshape(*view.shape[: view.ndim - self.view_dims], -1)


class EmbeddingActionInput(nn.Module):
    """Reads an observation and a continuous action side by side."""

    @nn.compact
    def __call__(self, embedding: Any, action: Shaped[Array, "*batch A"]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis.

        Args:
            embedding: `[..., D]`, or an observation with such a view.
            action: `[..., A]`.

        Returns:
            `[..., D + A]`.
        """
        return jnp.concatenate([_view(embedding), action], axis=-1)


class EmbeddingActionOnehotInput(nn.Module):
    """Reads an observation and a discrete action, one-hot, side by side.

    Attributes:
        action_dim: number of actions.
    """

    action_dim: int

    @nn.compact
    def __call__(self, observation_embedding: Any, action: Int[Array, "*batch"]) -> Float[Array, "*batch F"]:
        """Concatenate along the last axis.

        Args:
            observation_embedding: `[..., D]`, or an observation with such a view.
            action: `[...]`, integers in `0 … action_dim - 1`.

        Returns:
            `[..., D + action_dim]`.
        """
        view = _view(observation_embedding)
        return jnp.concatenate([view, jax.nn.one_hot(action, self.action_dim, dtype=view.dtype)], axis=-1)
