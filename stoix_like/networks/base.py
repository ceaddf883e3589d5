"""Whole networks: an input layer, a torso and a head."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import flax.linen as nn

from stoix_like.base_types import Observation, ObservationGlobalState
from stoix_like.networks.inputs import ArrayInput

Kwargs = Mapping[str, Any]


def _mask_of(observation: Any) -> dict[str, Any]:
    """The action mask of an observation as an argument for a head; nothing where there is none."""
    if isinstance(observation, Observation | ObservationGlobalState) and observation.action_mask is not None:
        return {"action_mask": observation.action_mask}
    return {}


class FeedForwardActor(nn.Module):
    """A policy without memory.

    Where an observation has an action mask, the head gets it as `action_mask`.

    Attributes:
        action_head: from an embedding to a distribution over actions.
        torso: from what the input layer read to an embedding.
        input_layer: what of an observation the network reads.
    """

    action_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Give the policy.

        Args:
            observation: with any leading axes.
            input_kwargs: further arguments for the input layer.
            torso_kwargs: further arguments for the torso.
            head_kwargs: further arguments for the head.

        Returns:
            What the head makes: a distribution over actions.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.action_head(x, **_mask_of(observation) | dict(head_kwargs or {}))


class FeedForwardCritic(nn.Module):
    """A value function without memory.

    Attributes:
        critic_head: from an embedding to values.
        torso: from what the input layer read to an embedding.
        input_layer: what of an observation the network reads.
    """

    critic_head: nn.Module
    torso: nn.Module
    input_layer: nn.Module = ArrayInput()

    @nn.compact
    def __call__(
        self,
        observation: Any,
        input_kwargs: Kwargs | None = None,
        torso_kwargs: Kwargs | None = None,
        head_kwargs: Kwargs | None = None,
    ) -> Any:
        """Give the value.

        Args:
            observation: with any leading axes.
            input_kwargs: further arguments for the input layer, such as an `action`.
            torso_kwargs: further arguments for the torso.
            head_kwargs: further arguments for the head.

        Returns:
            What the head makes, such as values `[...]`.
        """
        x = self.input_layer(observation, **(input_kwargs or {}))
        x = self.torso(x, **(torso_kwargs or {}))
        return self.critic_head(x, **(head_kwargs or {}))
