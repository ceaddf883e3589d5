"""Heads: from an embedding to a distribution over actions, or to values.

Every head maps `[..., D]` for any leading axes. A policy head says in `action_spaces` (and `needs_bounds`) which
action spaces it can act in.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import distrax
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import constant, lecun_normal, orthogonal
from jaxtyping import Array, Bool, Float

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete, Space
from stoix_like.networks.distributions import (
    AffineBeta,
    AffineTanhTransformedDistribution,
    Categorical,
    ClippedBeta,
    Deterministic,
    DiscreteValuedTfpDistribution,
    EpsilonGreedy,
    Independent,
    MultiDiscreteActionDistribution,
    MultivariateNormalDiag,
    StateDependentNoise,
    legal_actions,
    mask_logits,
    squash,
)
from stoix_like.networks.layers import NoisyLinear
from stoix_like.networks.torso import MLPTorso, NoisyMLPTorso
from stoix_like.networks.utils import Initializer, accepted, action_facts, fits, mask_argument, parse_initializer
from stoix_like.utils.jax_utils import Scalar, prepend_dims

Shape = int | Sequence[int]
"""A number of actions, or the shape of one action."""
Embedding = Float[Array, "*batch D"]
"""What a torso makes: `[..., D]`."""
Mask = Bool[Array, "*batch A"]
"""True where an action is legal: `[..., A]`."""
Epsilon = int | float | Float[Array, "..."]
"""Probability of a random action: one, or one per environment."""
Bounds = int | float | Float[Array, "..."] | Sequence[Any]
AtomPolicy = tuple[EpsilonGreedy, Float[Array, "*batch A K"], Float[Array, "*batch K"]]
"""An epsilon-greedy policy, the logits of its return distributions, and their atoms or quantiles."""


def _shape(size: Shape) -> tuple[int, ...]:
    return (size,) if isinstance(size, int | np.integer) else tuple(size)


def _dense(embedding: Array, shape: tuple[int, ...], kernel_init: Initializer | str) -> Array:
    """A dense layer from `[..., D]` to `[..., *shape]`; called within a compact method."""
    x = nn.Dense(math.prod(shape), kernel_init=parse_initializer(kernel_init))(embedding)
    return x.reshape(*embedding.shape[:-1], *shape)


def _two_parameters(embedding: Array, action_dim: Shape, kernel_init: Initializer | str) -> tuple[Array, Array]:
    """Two parameters per entry of an action, by one matrix product; called within a compact method."""
    shape = _shape(action_dim)
    parameters = _dense(embedding, (2, *shape), kernel_init)
    first, second = jnp.moveaxis(parameters, -1 - len(shape), 0)
    return first, second


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
        legal = None if action_mask is None else legal_actions(action_mask, sizes)
        logits = mask_logits(_dense(embedding, (sum(sizes),), self.kernel_init), legal)
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
    minimum: Bounds
    maximum: Bounds
    min_scale: Scalar = 1e-3
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> Independent:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over actions `[..., *action_dim]`.
        """
        loc, scale = _two_parameters(embedding, self.action_dim, self.kernel_init)
        normal = distrax.Normal(loc, jax.nn.softplus(scale) + self.min_scale)
        squashed = AffineTanhTransformedDistribution(normal, self.minimum, self.maximum)
        return Independent(squashed, len(_shape(self.action_dim)))


class MultivariateNormalDiagHead(nn.Module):
    """A normal policy with independent entries.

        a ~ N(mu, init_scale softplus(s) / softplus(0) + min_scale)

    Attributes:
        action_dim: entries of an action, or the shape of an action.
        init_scale: standard deviation where s is zero, as it nearly is at first, in units of the action.
        min_scale: lower limit of the standard deviation, in units of the action.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    action_dim: Shape
    init_scale: Scalar = 0.3
    min_scale: Scalar = 1e-3
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> MultivariateNormalDiag:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over actions `[..., *action_dim]`.
        """
        loc, scale = _two_parameters(embedding, self.action_dim, self.kernel_init)
        scale = jax.nn.softplus(scale) * (self.init_scale / math.log(2.0)) + self.min_scale
        return MultivariateNormalDiag(loc, scale, len(_shape(self.action_dim)))


class BetaDistributionHead(nn.Module):
    """A Beta policy, stretched over the bounds of the actions.

        a = minimum + (maximum - minimum) x,   x ~ Beta(1 + softplus(u), 1 + softplus(v))

    Source: Chou et al., Improving Stochastic Policy Gradients in Continuous Control with the Beta Distribution
    (2017), section 4.

    Attributes:
        action_dim: entries of an action, or the shape of an action.
        minimum: lower bounds, of the shape of an action or a scalar.
        maximum: upper bounds, of the shape of an action or a scalar.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    needs_bounds: ClassVar[bool] = True
    action_dim: Shape
    minimum: Bounds
    maximum: Bounds
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> Independent:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over actions `[..., *action_dim]`.
        """
        alpha, beta = (1.0 + jax.nn.softplus(x) for x in _two_parameters(embedding, self.action_dim, self.kernel_init))
        stretched = AffineBeta(ClippedBeta(alpha, beta), self.minimum, self.maximum)
        return Independent(stretched, len(_shape(self.action_dim)))


class StateDependentNoiseHead(nn.Module):
    """A normal policy whose noise is linear in the embedding (gSDE); the same key at each step explores smoothly.

    Source: Raffin et al., Smooth Exploration for Robotic Reinforcement Learning (2022).

    Attributes:
        action_dim: entries of an action, or the shape of an action.
        init_scale: standard deviation at first, for an embedding whose entries are of size one, in units of the
            action.
        min_scale: lower limit of the standard deviation, in units of the action.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    action_dim: Shape
    init_scale: Scalar = 0.3
    min_scale: Scalar = 1e-3
    kernel_init: Initializer | str = orthogonal(0.01)

    @nn.compact
    def __call__(self, embedding: Embedding) -> StateDependentNoise:
        """Make the policy.

        Args:
            embedding: `[..., D]`; no gradient passes through its part in the noise.

        Returns:
            A distribution over actions `[..., *action_dim]`.
        """
        width, shape = embedding.shape[-1], _shape(self.action_dim)
        loc = _dense(embedding, shape, self.kernel_init)
        # Not in Python's math: the scale may be traced.
        log_scale_init = constant(jnp.log(self.init_scale / math.sqrt(width)))
        log_scale = self.param("log_noise_scale", log_scale_init, (width, *shape))
        return StateDependentNoise(loc, jax.lax.stop_gradient(embedding), jnp.exp(log_scale), self.min_scale)


class DeterministicHead(nn.Module):
    """A policy without noise; squashed by tanh where there are bounds.

    Source: Lillicrap et al., Continuous Control with Deep Reinforcement Learning (2016), section 7.

    Attributes:
        action_dim: entries of an action, or the shape of an action.
        kernel_init: initialiser of the weights, or its name.
        minimum: lower bounds, of the shape of an action or a scalar; None for actions as they come.
        maximum: upper bounds, of the shape of an action or a scalar; None for actions as they come.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    action_dim: Shape
    kernel_init: Initializer | str = orthogonal(0.01)
    minimum: Bounds | None = None
    maximum: Bounds | None = None

    @nn.compact
    def __call__(self, embedding: Embedding) -> Independent:
        """Make the policy.

        Args:
            embedding: `[..., D]`.

        Returns:
            A distribution over the one action `[..., *action_dim]`.
        """
        shape = _shape(self.action_dim)
        action = _dense(embedding, shape, self.kernel_init)
        if self.minimum is not None and self.maximum is not None:
            action = squash(action, self.minimum, self.maximum)
        return Independent(Deterministic(action), len(shape))


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


class CategoricalCriticHead(nn.Module):
    """A distribution over values on evenly spaced atoms.

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.

    Attributes:
        num_atoms: number of atoms.
        vmax: largest value; None for `(num_atoms - 1) / 2`, atoms one apart.
        vmin: smallest value; None for `-vmax`.
        kernel_init: initialiser of the weights, or its name.
    """

    num_atoms: int = 601
    vmax: Scalar | None = None
    vmin: Scalar | None = None
    kernel_init: Initializer | str = orthogonal(1.0)

    @nn.compact
    def __call__(self, embedding: Embedding) -> DiscreteValuedTfpDistribution:
        """Give the distribution, with `mean` `[...]`, of an embedding `[..., D]`."""
        vmax = 0.5 * (self.num_atoms - 1) if self.vmax is None else self.vmax
        vmin = -vmax if self.vmin is None else self.vmin
        return DiscreteValuedTfpHead(vmin, vmax, self.num_atoms, kernel_init=self.kernel_init)(embedding)


class DiscreteValuedTfpHead(nn.Module):
    """Distributions over values on evenly spaced atoms, of any shape.

    Attributes:
        vmin: smallest value, a scalar or of shape `logits_shape`.
        vmax: largest value, a scalar or of shape `logits_shape`.
        num_atoms: number of atoms.
        logits_shape: shape of the values; None for a scalar.
        kernel_init: initialiser of the weights, or its name.
    """

    vmin: Bounds
    vmax: Bounds
    num_atoms: int
    logits_shape: Sequence[int] | None = None
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(self, inputs: Embedding) -> DiscreteValuedTfpDistribution:
        """Give the distributions, with `mean` `[..., *logits_shape]`, of embeddings `[..., D]`."""
        logits = _dense(inputs, (*(self.logits_shape or ()), self.num_atoms), self.kernel_init)
        atoms = jnp.linspace(jnp.asarray(self.vmin), jnp.asarray(self.vmax), self.num_atoms, axis=-1)
        return DiscreteValuedTfpDistribution(atoms, logits=logits)


class QuantileCriticHead(nn.Module):
    """A value as evenly weighted quantiles.

    Source: Dabney et al., Distributional Reinforcement Learning with Quantile Regression (2018), section 4.

    Attributes:
        num_quantiles: number of quantiles.
        kernel_init: initialiser of the weights, or its name.
    """

    num_quantiles: int
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(self, embedding: Embedding) -> tuple[Float[Array, "*batch Q"], Float[Array, "*batch Q"]]:
        """Give quantiles and their levels, `[..., num_quantiles]` each, of an embedding `[..., D]`."""
        quantiles = _dense(embedding, (self.num_quantiles,), self.kernel_init)
        levels = jnp.asarray(quantile_levels(self.num_quantiles), quantiles.dtype)
        return quantiles, jnp.broadcast_to(levels, quantiles.shape)


class ImplicitQuantileCriticHead(nn.Module):
    """The quantiles of a value at whatever levels are asked for, one value or one per action.

        z_tau = W (x * relu(V cos(pi i tau) + b)),   i = 0 … num_cosines - 1

    Source: Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning (2018), equation 4
    (the cosines are of the paper's text, i from zero).

    Attributes:
        num_quantiles: number of levels where none are given.
        num_values: None for one value, else the number of actions.
        num_cosines: width of the embedding of a level.
        kernel_init: initialiser of the weights, or its name.
    """

    num_quantiles: int = 64
    num_values: int | None = None
    num_cosines: int = 64
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding, tau: Float[Array, "*batch Q"] | None = None
    ) -> tuple[Float[Array, "*batch_and_quantiles"], Float[Array, "*batch Q"]]:
        """Give quantiles.

        Args:
            embedding: `[..., D]`.
            tau: `[..., Q]` levels in (0, 1); None draws them from the rng collection `tau`, or, without that
                collection, spaces them evenly.

        Returns:
            Quantiles `[..., Q]` or `[..., Q, num_values]`, and the levels `[..., Q]`, in float32.
        """
        shape = (*embedding.shape[:-1], self.num_quantiles)
        if tau is None and self.has_rng("tau"):
            tau = jax.random.uniform(self.make_rng("tau"), shape)
        elif tau is None:
            tau = jnp.broadcast_to(jnp.asarray(quantile_levels(self.num_quantiles)), shape)
        # Always in float32: in bfloat16 the angles of the high frequencies would be off by whole turns.
        tau = tau.astype(jnp.float32)
        frequencies = jnp.pi * jnp.arange(self.num_cosines, dtype=jnp.float32)
        cosines = jnp.cos(tau[..., None] * prepend_dims(frequencies, tau.ndim + 1))
        level = jax.nn.relu(_dense(cosines.astype(embedding.dtype), (embedding.shape[-1],), self.kernel_init))
        values = () if self.num_values is None else (self.num_values,)
        return _dense(embedding[..., None, :] * level, values, self.kernel_init), tau


class DiscreteQNetworkHead(nn.Module):
    """Action values, and the policy that is greedy but for epsilon.

    Source: Mnih et al., Human-level Control through Deep Reinforcement Learning (2015).

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon = 0.1
    kernel_init: Initializer | str = orthogonal(1.0)

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> EpsilonGreedy:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`, in place of the attribute.
            action_mask: `[..., A]`, True where an action is legal.

        Returns:
            A distribution over actions `[...]`; its `preferences` `[..., A]` are the values.
        """
        q = _dense(embedding, (self.action_dim,), self.kernel_init)
        return _epsilon_greedy(self, q, epsilon, action_mask)


def _epsilon_greedy(head: Any, q: Array, epsilon: Any, action_mask: Array | None) -> EpsilonGreedy:
    return EpsilonGreedy(q, head.epsilon if epsilon is None else epsilon, action_mask)


class _Dueling:
    """Two streams of layers that make a value and advantages; a head brings their sizes."""

    def _layers(self: Any) -> tuple[Callable[[], nn.Module], Callable[[int], nn.Module]]:
        """How to make the torso of a stream, and its last layer of a given width."""
        kernel_init = parse_initializer(self.kernel_init)
        torso = functools.partial(MLPTorso, self.layer_sizes, self.activation, self.use_layer_norm, kernel_init)
        return torso, functools.partial(nn.Dense, kernel_init=kernel_init)

    def _duel(self: Any, embedding: Array, num_atoms: int = 1) -> Array:
        """Values, or logits of their atoms, `[..., A, num_atoms]`; called within a compact method."""
        torso, last = self._layers()

        def stream(rows: int) -> Array:
            flat = last(rows * num_atoms)(torso()(embedding))
            return flat.reshape(*embedding.shape[:-1], rows, num_atoms)

        value, advantage = stream(1), stream(self.action_dim)
        return value + advantage - advantage.mean(-2, keepdims=True)


class DuelingQNetwork(_Dueling, nn.Module):
    """Action values from a state value and advantages, each with layers of its own.

        q(s, a) = v(s) + A(s, a) - mean_b A(s, b)

    Source: Wang et al., Dueling Network Architectures for Deep Reinforcement Learning (2016), equation 9.

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        layer_sizes: width of the layers of either stream, in units.
        activation: name of the activation function.
        use_layer_norm: whether to normalise before each activation.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon
    layer_sizes: Sequence[int]
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> EpsilonGreedy:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`, in place of the attribute.
            action_mask: `[..., A]`, True where an action is legal.

        Returns:
            A distribution over actions `[...]`; its `preferences` `[..., A]` are the values.
        """
        return _epsilon_greedy(self, self._duel(embedding)[..., 0], epsilon, action_mask)


class DistributionalDiscreteQNetwork(nn.Module):
    """Distributions of action values on evenly spaced atoms (C51).

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        num_atoms: number of atoms.
        vmin: smallest value.
        vmax: largest value.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon
    num_atoms: int
    vmin: Scalar
    vmax: Scalar
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> AtomPolicy:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`, in place of the attribute.
            action_mask: `[..., A]`, True where an action is legal.

        Returns:
            A distribution over actions `[...]`, whose `preferences` are the mean values; the logits of the atoms
            `[..., A, num_atoms]`; the atoms `[..., num_atoms]`.
        """
        logits = _dense(embedding, (self.action_dim, self.num_atoms), self.kernel_init)
        return _atom_policy(self, logits, epsilon, action_mask)


def _atom_policy(head: Any, logits: Array, epsilon: Any, action_mask: Array | None) -> AtomPolicy:
    q, atoms = _mean_over_atoms(head, logits)
    return _epsilon_greedy(head, q, epsilon, action_mask), logits, atoms[..., 0, :]


def _mean_over_atoms(head: Any, logits: Array) -> tuple[Array, Array]:
    """The mean value `[...]` and the atoms `[..., K]`, for logits `[..., K]`."""
    atoms = jnp.broadcast_to(jnp.linspace(head.vmin, head.vmax, head.num_atoms, dtype=logits.dtype), logits.shape)
    return (jax.nn.softmax(logits, axis=-1) * atoms).sum(-1), atoms


class DistributionalDuelingQNetwork(_Dueling, nn.Module):
    """Dueling distributions of action values on evenly spaced atoms.

    Source: Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning (2018), section 3.

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        num_atoms: number of atoms.
        vmin: smallest value.
        vmax: largest value.
        layer_sizes: width of the layers of either stream, in units.
        activation: name of the activation function.
        use_layer_norm: whether to normalise before each activation.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon
    num_atoms: int
    vmin: Scalar
    vmax: Scalar
    layer_sizes: Sequence[int]
    activation: str = "relu"
    use_layer_norm: bool = False
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> AtomPolicy:
        """Make the policy; arguments and result as of `DistributionalDiscreteQNetwork`."""
        return _atom_policy(self, self._duel(embedding, self.num_atoms), epsilon, action_mask)


class NoisyDistributionalDuelingQNetwork(DistributionalDuelingQNetwork):
    """Dueling distributions of action values whose layers have learnt noise, from the rng collection `noise`.

    Source: Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning (2018), section 3.

    Attributes:
        sigma_zero: scale of the noise at first.
    """

    sigma_zero: Scalar = 0.5

    def _layers(self) -> tuple[Callable[[], nn.Module], Callable[[int], nn.Module]]:
        kernel_init, noise = parse_initializer(self.kernel_init), {"sigma_zero": self.sigma_zero}
        names = {"activation": self.activation, "use_layer_norm": self.use_layer_norm, "kernel_init": kernel_init}
        torso = functools.partial(NoisyMLPTorso, self.layer_sizes, **names, **noise)
        return torso, functools.partial(NoisyLinear, kernel_init=kernel_init, **noise)


class DistributionalContinuousQNetwork(nn.Module):
    """The distribution of one value on evenly spaced atoms, of a state and a continuous action (D4PG).

    Source: Barth-Maron et al., Distributed Distributional Deterministic Policy Gradients (2018), appendix A.

    Attributes:
        num_atoms: number of atoms.
        vmin: smallest value.
        vmax: largest value.
        kernel_init: initialiser of the weights, or its name.
    """

    num_atoms: int
    vmin: Scalar
    vmax: Scalar
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch K"], Float[Array, "*batch K"]]:
        """Give the mean value `[...]`, the logits of the atoms and the atoms, `[..., num_atoms]` each."""
        logits = _dense(embedding, (self.num_atoms,), self.kernel_init)
        q, atoms = _mean_over_atoms(self, logits)
        return q, logits, atoms


class QuantileDiscreteQNetwork(nn.Module):
    """Evenly weighted quantiles of action values (QR-DQN).

    Source: Dabney et al., Distributional Reinforcement Learning with Quantile Regression (2018), section 4.

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        num_quantiles: number of quantiles.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon
    num_quantiles: int
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> tuple[EpsilonGreedy, Float[Array, "*batch Q A"]]:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`, in place of the attribute.
            action_mask: `[..., A]`, True where an action is legal.

        Returns:
            A distribution over actions `[...]`, whose `preferences` are the mean values; the quantiles
            `[..., num_quantiles, A]`, at the levels of `quantile_levels`.
        """
        quantiles = _dense(embedding, (self.num_quantiles, self.action_dim), self.kernel_init)
        return _epsilon_greedy(self, quantiles.mean(-2), epsilon, action_mask), quantiles


class ImplicitQuantileDiscreteQNetwork(nn.Module):
    """Quantiles of action values at sampled levels (IQN).

    Source: Dabney et al., Implicit Quantile Networks for Distributional Reinforcement Learning (2018).

    Attributes:
        action_dim: number of actions.
        epsilon: probability of a random action, in [0, 1].
        num_quantiles: number of levels where none are given.
        num_cosines: width of the embedding of a level.
        kernel_init: initialiser of the weights, or its name.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    action_dim: int
    epsilon: Epsilon
    num_quantiles: int = 64
    num_cosines: int = 64
    kernel_init: Initializer | str = lecun_normal()

    @nn.compact
    def __call__(
        self,
        embedding: Embedding,
        tau: Float[Array, "*batch Q"] | None = None,
        epsilon: Epsilon | None = None,
        action_mask: Mask | None = None,
    ) -> tuple[EpsilonGreedy, Float[Array, "*batch Q A"], Float[Array, "*batch Q"]]:
        """Make the policy.

        Args:
            embedding: `[..., D]`.
            tau: `[..., Q]` levels, see `ImplicitQuantileCriticHead`.
            epsilon: probability of a random action, a number or one per environment `[N]`, in place of the attribute.
            action_mask: `[..., A]`, True where an action is legal.

        Returns:
            A distribution over actions `[...]`, whose `preferences` are the means of the quantiles; the quantiles
            `[..., Q, A]`; their levels `[..., Q]`.
        """
        critic = ImplicitQuantileCriticHead(self.num_quantiles, self.action_dim, self.num_cosines, self.kernel_init)
        quantiles, tau = critic(embedding, tau)
        return _epsilon_greedy(self, quantiles.mean(-2), epsilon, action_mask), quantiles, tau


def quantile_levels(num_quantiles: int) -> np.ndarray:
    """The middles of evenly weighted quantiles, `(i + 1/2) / num_quantiles`, `[num_quantiles]`."""
    return (np.arange(num_quantiles, dtype=np.float32) + 0.5) / num_quantiles


class PolicyValueHead(nn.Module):
    """A policy and a value from one embedding.

    Attributes:
        action_head: from an embedding to a distribution over actions.
        critic_head: from an embedding to values.
    """

    action_head: nn.Module
    critic_head: nn.Module

    @nn.compact
    def __call__(self, embedding: Embedding, action_mask: Bool[Array, "..."] | None = None) -> tuple[Any, Any]:
        """Give what the heads make of an embedding `[..., D]`: policy, value; a policy that takes a mask gets it."""
        masked = {} if action_mask is None else mask_argument(self.action_head, action_mask)
        return self.action_head(embedding, **masked), self.critic_head(embedding)


class LinearHead(nn.Module):
    """A dense layer of any shape.

    Attributes:
        output_dim: width of the last axis of the output.
        kernel_init: initialiser of the weights, or its name.
        pre_shape: the axes of the output before the last.
    """

    output_dim: int
    kernel_init: Initializer | str = orthogonal(0.01)
    pre_shape: Sequence[int] | None = None

    @nn.compact
    def __call__(self, embedding: Embedding) -> Float[Array, "*batch_and_output"]:
        """Transform `[..., D]` into `[..., *pre_shape, output_dim]`."""
        return _dense(embedding, (*(self.pre_shape or ()), self.output_dim), self.kernel_init)


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
