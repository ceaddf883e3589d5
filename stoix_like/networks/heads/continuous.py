"""Policy heads for continuous actions."""

from __future__ import annotations

import math
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import constant, orthogonal

from stoix_like.envs.spaces import Box
from stoix_like.networks import distributions
from stoix_like.networks.heads.base import (
    Bounds,
    Embedding,
    PolicyHead,
    Shape,
    action_shape,
    dense,
    location_and_spread,
    two_parameters,
)
from stoix_like.networks.requirements import ACTION_VECTOR, DETERMINISTIC_POLICY, STOCHASTIC_POLICY
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import Scalar


class BoxHead(PolicyHead, nn.Module):
    """A stochastic policy for continuous actions."""

    outputs: ClassVar[str | None] = STOCHASTIC_POLICY
    action_spaces: ClassVar[tuple[type, ...]] = (Box,)

    action_dim: Shape  # number of entries of an action, or its shape


class BoundedBoxHead(BoxHead):
    """A stochastic policy for continuous actions with finite bounds, which samples leave only where a head says so."""

    needs_bounds: ClassVar[bool] = True
    within_bounds: ClassVar[bool] = True

    minimum: Bounds  # lower bounds, of the shape of an action or a scalar
    maximum: Bounds  # upper bounds, of the shape of an action or a scalar


class NormalAffineTanhDistributionHead(BoundedBoxHead):
    """A normal policy squashed to the action bounds.

        a = minimum + (maximum - minimum) (1 + tanh x) / 2,   x ~ N(mu, softplus(s) + min_scale)

    Source: Haarnoja et al., Soft Actor-Critic (2018), appendix C.
    """

    min_scale: Scalar = 1e-3  # lower limit of the standard deviation before squashing
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    # Whether s depends on the embedding; otherwise exp(p) log 2 with free parameters p stands for softplus(s).
    state_dependent_scale: bool = True

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.Independent:
        """Return the policy: a distribution over actions `[..., *action_dim]`."""
        loc, scale = location_and_spread(embedding, self.action_dim, self.kernel_init, self.state_dependent_scale)
        normal = distributions.Normal(loc, scale + self.min_scale)
        squashed = distributions.AffineTanhTransformedDistribution(normal, self.minimum, self.maximum)
        return distributions.Independent(squashed, len(action_shape(self.action_dim)))


class MultivariateNormalDiagHead(BoxHead):
    """A normal policy with independent entries.

    a ~ N(mu, init_scale softplus(s) / softplus(0) + min_scale)
    """

    init_scale: Scalar = 0.3  # standard deviation for s = 0, close to the initial one, in units of the action
    min_scale: Scalar = 1e-3  # lower limit of the standard deviation, in units of the action
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    # Whether s depends on the embedding; otherwise the deviation is `init_scale exp(p) + min_scale` with free
    # parameters p, the same in all states.
    state_dependent_scale: bool = True

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.MultivariateNormalDiag:
        """Return the policy: a distribution over actions `[..., *action_dim]`."""
        loc, scale = location_and_spread(embedding, self.action_dim, self.kernel_init, self.state_dependent_scale)
        scale = scale * (self.init_scale / math.log(2.0)) + self.min_scale
        return distributions.MultivariateNormalDiag(loc, scale, len(action_shape(self.action_dim)))


class BoundedNormalHead(BoundedBoxHead):
    """A normal policy with its mean within the action bounds; environments clip its samples.

        a ~ N(centre + half_width tanh(mu), half_width sigma)
        sigma = min_scale + (max_scale - min_scale) sigmoid(s + 2)

    Its entropy is exact, unlike a squashed normal policy's.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, actor critic learning; the limits follow the
    authors' code.
    """

    within_bounds: ClassVar[bool] = False

    min_scale: Scalar = 0.1  # smallest standard deviation, in units of half the distance between the bounds
    max_scale: Scalar = 1.0  # largest standard deviation, in the same units
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.MultivariateNormalDiag:
        """Return the policy: a distribution over actions `[..., *action_dim]`."""
        loc, spread = two_parameters(embedding, self.action_dim, self.kernel_init)
        scale = self.min_scale + (self.max_scale - self.min_scale) * jax.nn.sigmoid(spread + 2.0)
        _, width = distributions.interval(self.minimum, self.maximum, loc)
        loc = distributions.squash(loc, self.minimum, self.maximum)
        return distributions.MultivariateNormalDiag(loc, 0.5 * width * scale, len(action_shape(self.action_dim)))


class BetaDistributionHead(BoundedBoxHead):
    """A Beta policy stretched to the action bounds.

        a = minimum + (maximum - minimum) x,   x ~ Beta(1 + softplus(u), 1 + softplus(v))

    Source: Chou et al., Improving Stochastic Policy Gradients in Continuous Control with the Beta Distribution
    (2017), section 4.
    """

    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.Independent:
        """Return the policy: a distribution over actions `[..., *action_dim]`."""
        alpha, beta = (1.0 + jax.nn.softplus(x) for x in two_parameters(embedding, self.action_dim, self.kernel_init))
        stretched = distributions.AffineBeta(distributions.ClippedBeta(alpha, beta), self.minimum, self.maximum)
        return distributions.Independent(stretched, len(action_shape(self.action_dim)))


class StateDependentNoiseHead(BoxHead):
    """A normal policy with noise linear in the embedding (gSDE); reuse a key over steps for smooth exploration.

    Source: Raffin et al., Smooth Exploration for Robotic Reinforcement Learning (2022).
    """

    # Initial standard deviation for an embedding with entries of magnitude one, in units of the action.
    init_scale: Scalar = 0.3
    min_scale: Scalar = 1e-3  # lower limit of the standard deviation, in units of the action
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.StateDependentNoise:
        """Return the policy over actions `[..., *action_dim]`; no gradient flows through the noise to the embedding."""
        width, shape = embedding.shape[-1], action_shape(self.action_dim)
        loc = dense(embedding, shape, self.kernel_init)
        # jnp.log instead of math.log: the scale may be traced.
        log_scale_init = constant(jnp.log(self.init_scale / math.sqrt(width)))
        log_scale = self.param("log_noise_scale", log_scale_init, (width, *shape), jnp.float32)
        features = jax.lax.stop_gradient(embedding)
        return distributions.StateDependentNoise(loc, features, jnp.exp(log_scale), self.min_scale)


class DeterministicHead(BoxHead):
    """A deterministic policy, squashed by tanh where both bounds are set.

    Source: Lillicrap et al., Continuous Control with Deep Reinforcement Learning (2016), section 7.
    """

    outputs: ClassVar[str | None] = DETERMINISTIC_POLICY

    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    minimum: Bounds | None = None  # lower bounds, of the shape of an action or a scalar; None for unbounded actions
    maximum: Bounds | None = None  # upper bounds, of the shape of an action or a scalar; None for unbounded actions

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.Independent:
        """Return the policy: a distribution with probability one at an action `[..., *action_dim]`."""
        shape = action_shape(self.action_dim)
        action = dense(embedding, shape, self.kernel_init)
        if self.minimum is not None and self.maximum is not None:
            action = distributions.squash(action, self.minimum, self.maximum)
        return distributions.Independent(distributions.Deterministic(action), len(shape))


class ActionVectorHead(nn.Module):
    """A dense layer with an output of the shape of an action, without bounds, such as a velocity."""

    outputs: ClassVar[str | None] = ACTION_VECTOR

    action_dim: Shape  # number of entries of an action, or its shape
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> jax.Array:
        """Transform `[..., D]` into `[..., *action_dim]`."""
        return dense(embedding, action_shape(self.action_dim), self.kernel_init)
