"""Heads: from an embedding to a distribution over actions, or to values.

Every head maps `[..., D]` for any leading axes. A policy head says in `action_spaces` (and `needs_bounds`) which
action spaces it can act in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import orthogonal
from jaxtyping import Array, Bool, Float

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space
from stoix_like.networks.distributions import (
    AffineTanhTransformedDistribution,
    Categorical,
    Independent,
    MultiDiscreteActionDistribution,
    MultivariateNormalDiag,
    mask_logits,
)
from stoix_like.networks.utils import Initializer, accepted, action_facts, fits, parse_initializer

Shape = int | Sequence[int]
Embedding = Float[Array, "*batch D"]


def _shape(size: Shape) -> tuple[int, ...]:
    return (size,) if isinstance(size, int | np.integer) else tuple(size)


def _dense(embedding: Array, shape: tuple[int, ...], kernel_init: Initializer | str) -> Array:
    """A dense layer from `[..., D]` to `[..., *shape]`; called within a compact method."""
    x = nn.Dense(math.prod(shape), kernel_init=parse_initializer(kernel_init))(embedding)
    return x.reshape(*embedding.shape[:-1], *shape)


def _loc_and_scale(embedding: Array, action_dim: Shape, kernel_init: Initializer | str) -> tuple[Array, Array]:
    """Two parameters per entry of an action, by one matrix product; called within a compact method."""
    shape = _shape(action_dim)
    parameters = _dense(embedding, (2, *shape), kernel_init)
    loc, scale = jnp.moveaxis(parameters, -1 - len(shape), 0)
    return loc, scale


class CategoricalHead(nn.Module):
    """A categorical policy.

    Attributes:
        action_dim: number of actions; or `(…, K)`, for an array of choices among K.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: Shape
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(
        self, embedding: Embedding, action_mask: Bool[Array, "*batch_and_actions"] | None = None
    ) -> distrax.Distribution:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            action_mask: `[..., *action_dim]`, True where an action is legal.

        Returns:
            A distribution over integers `[...]`.
        """
        shape = _shape(self.action_dim)
        pi = Categorical(logits=mask_logits(_dense(embedding, shape, self.kernel_init), action_mask))
        return Independent(pi, len(shape) - 1) if len(shape) > 1 else pi


class MultiDiscreteHead(nn.Module):
    """A policy of several independent choices.

    Attributes:
        action_dim: number of sub-actions.
        number_of_dims_per_distribution: size of each.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (MultiDiscrete,)
    action_dim: int
    number_of_dims_per_distribution: Sequence[int]
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(
        self, embedding: Embedding, action_mask: Bool[Array, "*batch L"] | None = None
    ) -> MultiDiscreteActionDistribution:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            action_mask: `[..., sum(sizes)]`, True where a choice is legal.

        Returns:
            A distribution over integers `[..., action_dim]`.
        """
        sizes = tuple(self.number_of_dims_per_distribution)
        logits = mask_logits(_dense(embedding, (sum(sizes),), self.kernel_init), action_mask)
        return MultiDiscreteActionDistribution(logits, sizes)


class NormalAffineTanhDistributionHead(nn.Module):
    """A normal policy squashed into the bounds of the actions.

        a = minimum + (maximum - minimum) (1 + tanh x) / 2,   x ~ N(mu, softplus(s) + min_scale)

    Source: Haarnoja et al., Soft Actor-Critic (2018), appendix C.

    Attributes:
        action_dim: entries of an action, or the shape of an action.
        minimum: lower bounds, of the shape of an action or a scalar.
        maximum: upper bounds, of the shape of an action or a scalar.
        min_scale: lower limit of the standard deviation before squashing.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    needs_bounds: ClassVar[bool] = True
    action_dim: Shape
    minimum: float | Sequence[Any]
    maximum: float | Sequence[Any]
    min_scale: float = 1e-3
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> Independent:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over actions `[..., *action_dim]`.
        """
        loc, scale = _loc_and_scale(embedding, self.action_dim, self.kernel_init)
        normal = distrax.Normal(loc, jax.nn.softplus(scale) + self.min_scale)
        squashed = AffineTanhTransformedDistribution(normal, self.minimum, self.maximum)
        return Independent(squashed, len(_shape(self.action_dim)))


class MultivariateNormalDiagHead(nn.Module):
    """A normal policy with independent entries.

        a ~ N(mu, init_scale softplus(s) / softplus(0) + min_scale)

    Attributes:
        action_dim: entries of an action.
        init_scale: standard deviation where s is zero, as it nearly is at first, in units of the action.
        min_scale: lower limit of the standard deviation, in units of the action.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    action_dim: int
    init_scale: float = 0.3
    min_scale: float = 1e-3
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> MultivariateNormalDiag:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over actions `[..., action_dim]`.
        """
        loc, scale = _loc_and_scale(embedding, self.action_dim, self.kernel_init)
        scale = jax.nn.softplus(scale) * (self.init_scale / math.log(2.0)) + self.min_scale
        return MultivariateNormalDiag(loc, scale)


class ScalarCriticHead(nn.Module):
    """One value.

    Attributes:
        kernel_init: initialiser of the weights, or its name.
    """

    kernel_init: Initializer | str = orthogonal(1.0)

    @nn.compact
    def __call__(self, embedding: Embedding) -> Float[Array, "*batch"]:
        """Give the value, `[...]`, of an embedding `[..., D]`."""
        return _dense(embedding, (), self.kernel_init)


_POLICY_HEADS = (
    CategoricalHead,
    MultiDiscreteHead,
    NormalAffineTanhDistributionHead,
    MultivariateNormalDiagHead,
)


def policy_head(action_space: Space) -> nn.Module:
    """The usual policy head for an action space.

    Args:
        action_space: of the environment.

    Returns:
        `CategoricalHead` for a discrete space, `MultiDiscreteHead` for a multi-discrete one, a squashed normal
        where there are bounds, a normal where there are none.

    Raises:
        TypeError: for a space of another kind.
    """
    for head in _POLICY_HEADS:
        if fits(head, action_space):
            return head(**accepted(head, action_facts(action_space)))
    raise TypeError(f"no policy head for the action space {action_space}")
