"""Heads of value quantiles."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import lecun_normal
from jaxtyping import Array, Float

from stoix_like.networks import distributions
from stoix_like.networks.heads.base import Embedding, Epsilon, Mask, dense
from stoix_like.networks.heads.q_networks import EpsilonGreedyHead, epsilon_greedy
from stoix_like.networks.requirements import ACTION_VALUE_ANY_QUANTILES, ACTION_VALUE_QUANTILES, VALUE_QUANTILES
from stoix_like.networks.torso import MLPTorso
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import prepend_dims


def quantile_levels(num_quantiles: int) -> np.ndarray:
    """Return the midpoint levels of evenly weighted quantiles, `(i + 1/2) / num_quantiles`, `[num_quantiles]`."""
    return (np.arange(num_quantiles, dtype=np.float32) + 0.5) / num_quantiles


class QuantileCriticHead(nn.Module):
    """Evenly weighted quantiles of a value.

    Source: Dabney et al., Distributional Reinforcement Learning with Quantile Regression (2018), section 4.
    """

    outputs: ClassVar[str | None] = VALUE_QUANTILES

    num_quantiles: int  # number of quantiles
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> tuple[Float[Array, "*batch Q"], Float[Array, "*batch Q"]]:
        """Return quantiles and their levels, `[..., num_quantiles]` each, for an embedding `[..., D]`."""
        quantiles = dense(embedding, (self.num_quantiles,), self.kernel_init)
        levels = jnp.asarray(quantile_levels(self.num_quantiles), quantiles.dtype)
        return quantiles, jnp.broadcast_to(levels, quantiles.shape)


class ImplicitQuantileCriticHead(nn.Module):
    """Quantiles of action values at any levels, for `ImplicitQuantileDiscreteQNetwork`.

        z_tau = f(x * relu(V cos(pi i tau) + b)),   i = 0 … num_cosines - 1

    Source: Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning (2018), equation 4;
    i starts at zero, as in the text of the paper. f are dense layers, all but the last with an activation:
    with only the last, the quantiles of all inputs would be combinations of the same functions of the level.
    """

    num_quantiles: int  # number of levels where none are passed
    num_values: int  # number of actions
    num_cosines: int = 64  # number of cosine features of a level
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name
    layer_sizes: Sequence[int] = ()  # width of each layer of f before the last one, in units
    activation: str = "relu"  # name of the activation function of these layers

    @nn.compact
    def __call__(
        self, embedding: Embedding, tau: Float[Array, "*batch Q"] | None = None
    ) -> tuple[Float[Array, "*batch Q A"], Float[Array, "*batch Q"]]:
        """Return the quantiles, `[..., Q, num_values]`, and their levels in float32.

        `tau`: levels in (0, 1); None spaces them evenly.
        """
        if tau is None:
            # The same levels for all inputs: they are embedded once.
            tau = prepend_dims(jnp.asarray(quantile_levels(self.num_quantiles)), embedding.ndim)
        # Always in float32: in bfloat16 the angles of the high frequencies would be off by whole turns.
        tau = tau.astype(jnp.float32)
        frequencies = jnp.arange(self.num_cosines, dtype=jnp.float32)
        cosines = _cos_pi(tau[..., None] * prepend_dims(frequencies, tau.ndim + 1))
        level = jax.nn.relu(dense(cosines.astype(embedding.dtype), (embedding.shape[-1],), self.kernel_init))
        layers = MLPTorso(self.layer_sizes, self.activation, kernel_init=self.kernel_init)
        quantiles = dense(layers(embedding[..., None, :] * level), (self.num_values,), self.kernel_init)
        return quantiles, jnp.broadcast_to(tau, quantiles.shape[: embedding.ndim])


def _cos_pi(x: Array) -> Array:
    """Compute cos(pi x) to the precision of float32: `jnp.cos` would take half the time of a gradient step on a CPU."""
    # cos(pi x) = sin(pi s) with s in [-1/2, 1/2], where the Taylor series up to s^11 has an error below 6e-8.
    s = 0.5 - jnp.abs(x - 2.0 * jnp.round(0.5 * x))
    coefficients = [(-1) ** k * math.pi ** (2 * k + 1) / math.factorial(2 * k + 1) for k in range(6)]
    return s * functools.reduce(lambda series, c: series * s**2 + c, reversed(coefficients), jnp.zeros_like(s))


class QuantileDiscreteQNetwork(EpsilonGreedyHead):
    """Evenly weighted quantiles of action values (QR-DQN).

    Source: Dabney et al., Distributional Reinforcement Learning with Quantile Regression (2018), section 4.
    """

    outputs: ClassVar[str | None] = ACTION_VALUE_QUANTILES

    num_quantiles: int  # number of quantiles
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> tuple[distributions.EpsilonGreedy, Float[Array, "*batch Q A"]]:
        """Return the policy and its quantiles.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`; None for the attribute.
            action_mask: `[..., A]`, True where an action is legal; None where all are legal.

        Returns:
            A distribution over actions `[...]` with `preferences` `[..., A]`, the mean values; the quantiles
            `[..., num_quantiles, A]`, at the levels of `quantile_levels`.
        """
        quantiles = dense(embedding, (self.num_quantiles, self.action_dim), self.kernel_init)
        return epsilon_greedy(self, quantiles.mean(-2), epsilon, action_mask), quantiles


class ImplicitQuantileDiscreteQNetwork(EpsilonGreedyHead):
    """Quantiles of action values at sampled levels (IQN).

    Source: Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning (2018).
    """

    outputs: ClassVar[str | None] = ACTION_VALUE_ANY_QUANTILES

    num_quantiles: int = 64  # number of levels where none are passed
    num_cosines: int = 64  # number of cosine features of a level
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name
    layer_sizes: Sequence[int] = ()  # see `ImplicitQuantileCriticHead`
    activation: str = "relu"  # see `ImplicitQuantileCriticHead`

    @nn.compact
    def __call__(
        self,
        embedding: Embedding,
        tau: Float[Array, "*batch Q"] | None = None,
        epsilon: Epsilon | None = None,
        action_mask: Mask | None = None,
    ) -> tuple[distributions.EpsilonGreedy, Float[Array, "*batch Q A"], Float[Array, "*batch Q"]]:
        """Return the policy, whose `preferences` are the means of the quantiles, the quantiles, and their levels.

        `tau`: levels, see `ImplicitQuantileCriticHead`.
        `epsilon`: probability of a random action, a number or one per environment `[N]`; None for the attribute.
        `action_mask`: True where an action is legal; None where all are legal.
        """
        critic = ImplicitQuantileCriticHead(
            self.num_quantiles, self.action_dim, self.num_cosines, self.kernel_init, self.layer_sizes, self.activation
        )
        quantiles, tau = critic(embedding, tau)
        return epsilon_greedy(self, quantiles.mean(-2), epsilon, action_mask), quantiles, tau
