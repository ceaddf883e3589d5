"""Heads for any purpose: a linear head, a policy with a value, and the default policy head of an action space."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
from jax.nn.initializers import orthogonal
from jaxtyping import Array, Bool, Float

from stoix_like.envs.spaces import Mixed, Space, action_facts, fits
from stoix_like.networks import distributions
from stoix_like.networks.from_config.checks import accepted
from stoix_like.networks.heads.base import Embedding, PolicyHead, dense, mask_argument
from stoix_like.networks.heads.continuous import (
    BoundedNormalHead,
    MultivariateNormalDiagHead,
    NormalAffineTanhDistributionHead,
)
from stoix_like.networks.heads.discrete import CategoricalHead, MultiDiscreteHead
from stoix_like.networks.requirements import POLICY_AND_VALUE, STOCHASTIC_POLICY
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import Scalar


class LinearHead(nn.Module):
    """A dense layer with an output of any shape."""

    output_dim: int  # width of the last output axis
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    pre_shape: Sequence[int] | None = None  # output axes before the last

    @nn.compact
    def __call__(self, embedding: Embedding) -> Float[Array, "*batch_and_output"]:
        """Transform `[..., D]` into `[..., *pre_shape, output_dim]`."""
        return dense(embedding, (*(self.pre_shape or ()), self.output_dim), self.kernel_init)


class PolicyValueHead(PolicyHead, nn.Module):
    """A policy and a value from one embedding."""

    outputs: ClassVar[str | None] = POLICY_AND_VALUE
    takes_action_mask: ClassVar[bool] = True

    action_head: nn.Module  # maps an embedding to a distribution over actions
    critic_head: nn.Module  # maps an embedding to values

    @nn.compact
    def __call__(self, embedding: Embedding, action_mask: Bool[Array, "..."] | None = None) -> tuple[Any, Any]:
        """Return policy and value.

        Args:
            embedding: `[..., D]`.
            action_mask: mask for the action head, True where an action is legal; None where all are legal.

        Returns:
            The outputs of the action head and of the critic head.

        Raises:
            ValueError: the action head does not take the mask, see `PolicyHead`.
        """
        masked = mask_argument(self.action_head, action_mask)
        return self.action_head(embedding, **masked), self.critic_head(embedding)


class MixedHead(PolicyHead, nn.Module):
    """A policy over dictionaries or tuples of actions, with a head of its own for each part."""

    outputs: ClassVar[str | None] = STOCHASTIC_POLICY
    action_spaces: ClassVar[tuple[type, ...]] = (Mixed,)
    takes_action_mask: ClassVar[bool] = True

    action_space: Mixed  # the action space
    # Builds the head of the space of one part; None for `policy_head`.
    part_head: Callable[[Space], nn.Module] | None = None

    @nn.compact
    def __call__(
        self, embedding: Embedding, action_mask: Bool[Array, "*batch L"] | None = None
    ) -> distributions.MixedActionDistribution:
        """Return the policy: a distribution over vectors, see `spaces.Mixed`."""
        space = self.action_space
        pairs = zip(map(self.part_head or policy_head, space.parts), space.masks(action_mask), strict=True)
        parts = [head(embedding, **mask_argument(head, mask)) for head, mask in pairs]
        return distributions.MixedActionDistribution(parts, space)


_POLICY_HEADS = (
    CategoricalHead,
    MultiDiscreteHead,
    MixedHead,
    NormalAffineTanhDistributionHead,
    MultivariateNormalDiagHead,
)


def policy_head(action_space: Space) -> nn.Module:
    """Return the default policy head of an action space; for a `Box`, a normal, squashed to bounds if there are any."""
    for head in _POLICY_HEADS:
        if fits(head, action_space):
            return head(**accepted(head, action_facts(action_space)))
    raise TypeError(f"action_space={action_space} has no policy head: use Discrete, MultiDiscrete, Box or Mixed")


def dreamer_policy_head(action_space: Space, uniform_mix: Scalar = 0.01) -> nn.Module:
    """Return the policy head of DreamerV3 for an action space.

    As `policy_head`, but with choices that keep some probability, and a normal policy with bounded mean and deviation
    for a bounded `Box`.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, actor critic learning.

    `uniform_mix`: probability of a uniformly random choice, for discrete actions.
    """
    if isinstance(action_space, Mixed):
        return MixedHead(action_space, functools.partial(dreamer_policy_head, uniform_mix=uniform_mix))
    if fits(BoundedNormalHead, action_space):
        return BoundedNormalHead(**accepted(BoundedNormalHead, action_facts(action_space)))
    head = policy_head(action_space)
    return head.copy(uniform_mix=uniform_mix) if isinstance(head, CategoricalHead | MultiDiscreteHead) else head
