"""Heads of action values for discrete actions, with their epsilon-greedy policy."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import flax.linen as nn
from jax.nn.initializers import lecun_normal, orthogonal
from jaxtyping import Array, Float

from stoix_like.envs.spaces import Discrete
from stoix_like.networks import distributions
from stoix_like.networks.heads.base import Embedding, Epsilon, Mask, PolicyHead, dense
from stoix_like.networks.heads.critics import mean_over_atoms
from stoix_like.networks.layers import NoisyLinear
from stoix_like.networks.requirements import ACTION_VALUE_ATOMS, ACTION_VALUES
from stoix_like.networks.torso import MLPTorso, NoisyMLPTorso
from stoix_like.networks.utils import Initializer, parse_initializer
from stoix_like.utils.jax_utils import Scalar

AtomPolicy = tuple[Any, Float[Array, "*batch A K"], Float[Array, "*batch K"]]
"""An epsilon-greedy policy, the logits of its value distributions, and their atoms."""


class EpsilonGreedyHead(PolicyHead, nn.Module):
    """A head of action values for discrete actions, with their epsilon-greedy policy."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    takes_action_mask: ClassVar[bool] = True

    action_dim: int  # number of actions
    epsilon: Epsilon  # probability of a random action, in [0, 1]


class ActionValuesHead(EpsilonGreedyHead):
    """Action values and their epsilon-greedy policy."""

    outputs: ClassVar[str | None] = ACTION_VALUES

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> distributions.EpsilonGreedy:
        """Return the policy.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`; None for the attribute.
            action_mask: `[..., A]`, True where an action is legal; None where all are legal.

        Returns:
            A distribution over actions `[...]`; its `preferences` `[..., A]` are the action values.
        """
        return epsilon_greedy(self, self._values(embedding), epsilon, action_mask)

    def _values(self, embedding: Array) -> Array:
        """Return action values `[..., A]`; call it in a compact method."""
        raise NotImplementedError


class DiscreteQNetworkHead(ActionValuesHead):
    """Action values and their epsilon-greedy policy.

    Source: Mnih et al., Human-level Control through Deep Reinforcement Learning (2015).
    """

    epsilon: Epsilon = 0.1  # probability of a random action, in [0, 1]
    kernel_init: Initializer | str = orthogonal(1.0)  # initialiser of the weights, or its name

    def _values(self, embedding: Array) -> Array:
        return dense(embedding, (self.action_dim,), self.kernel_init)


class NoisyDiscreteQNetworkHead(DiscreteQNetworkHead):
    """Action values from a noisy layer.

    The noise comes from the rng collection `noise`.

    Source: Fortunato et al., Noisy Networks for Exploration (2018).
    """

    sigma_zero: Scalar = 0.5  # initial scale of the noise

    def _values(self, embedding: Array) -> Array:
        return NoisyLinear(self.action_dim, kernel_init=self.kernel_init, sigma_zero=self.sigma_zero)(embedding)


def epsilon_greedy(head: Any, q: Array, epsilon: Any, action_mask: Array | None) -> distributions.EpsilonGreedy:
    """Return the epsilon-greedy policy of action values `[..., A]`, with the epsilon of the head where it is None."""
    return distributions.EpsilonGreedy(q, head.epsilon if epsilon is None else epsilon, action_mask)


class _Dueling:
    """The value stream and the advantage stream of a dueling head, which has their sizes as attributes."""

    def _layers(self: Any) -> tuple[Callable[[], nn.Module], Callable[[int], nn.Module]]:
        """Return the constructors of a stream's torso and of its last layer, which takes its width."""
        kernel_init = parse_initializer(self.kernel_init)
        torso = functools.partial(MLPTorso, self.layer_sizes, self.activation, self.use_layer_norm, kernel_init)
        return torso, functools.partial(nn.Dense, kernel_init=kernel_init)

    def _duel(self: Any, embedding: Array, num_atoms: int = 1) -> Array:
        """Return values, or logits of atoms, `[..., A, num_atoms]`; call it in a compact method."""
        torso, last = self._layers()

        def stream(rows: int) -> Array:
            flat = last(rows * num_atoms)(torso()(embedding))
            return flat.reshape(*embedding.shape[:-1], rows, num_atoms)

        value, advantage = stream(1), stream(self.action_dim)
        return value + advantage - advantage.mean(-2, keepdims=True)


class DuelingQNetwork(_Dueling, ActionValuesHead):
    """Action values from separate layers for the state value and the advantages.

        q(s, a) = v(s) + A(s, a) - mean_b A(s, b)

    Source: Wang et al., Dueling Network Architectures for Deep Reinforcement Learning (2016), equation 9.
    """

    layer_sizes: Sequence[int]  # width of each layer of a stream, in units
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    def _values(self, embedding: Array) -> Array:
        return self._duel(embedding)[..., 0]


class ActionAtomsHead(EpsilonGreedyHead):
    """Distributions of action values on evenly spaced atoms, with the epsilon-greedy policy of their means."""

    outputs: ClassVar[str | None] = ACTION_VALUE_ATOMS

    num_atoms: int  # number of atoms
    vmin: Scalar  # smallest atom
    vmax: Scalar  # largest atom

    @nn.compact
    def __call__(
        self, embedding: Embedding, epsilon: Epsilon | None = None, action_mask: Mask | None = None
    ) -> AtomPolicy:
        """Return the policy and its value distributions.

        Args:
            embedding: `[..., D]`.
            epsilon: probability of a random action, a number or one per environment `[N]`; None for the attribute.
            action_mask: `[..., A]`, True where an action is legal; None where all are legal.

        Returns:
            A distribution over actions `[...]` with `preferences` `[..., A]`, the mean values; the logits
            `[..., A, num_atoms]`; the atoms `[..., num_atoms]`.
        """
        logits = self._logits(embedding)
        q, atoms = mean_over_atoms(self, logits)
        return epsilon_greedy(self, q, epsilon, action_mask), logits, atoms[..., 0, :]

    def _logits(self, embedding: Array) -> Array:
        """Return the logits `[..., A, num_atoms]`; call it in a compact method."""
        raise NotImplementedError


class DistributionalDiscreteQNetwork(ActionAtomsHead):
    """Distributions of action values on evenly spaced atoms (C51).

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.
    """

    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    def _logits(self, embedding: Array) -> Array:
        return dense(embedding, (self.action_dim, self.num_atoms), self.kernel_init)


class DistributionalDuelingQNetwork(_Dueling, ActionAtomsHead):
    """Distributions of action values on evenly spaced atoms, from dueling streams.

    Source: Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning (2018), section 3.
    """

    layer_sizes: Sequence[int]  # width of each layer of a stream, in units
    activation: str = "relu"  # name of the activation function
    use_layer_norm: bool = False  # whether layer normalisation precedes each activation
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    def _logits(self, embedding: Array) -> Array:
        return self._duel(embedding, self.num_atoms)


class _NoisyDueling(_Dueling):
    """The streams of a dueling head with noisy layers."""

    def _layers(self: Any) -> tuple[Callable[[], nn.Module], Callable[[int], nn.Module]]:
        kernel_init = parse_initializer(self.kernel_init)
        torso = functools.partial(
            NoisyMLPTorso,
            self.layer_sizes,
            activation=self.activation,
            use_layer_norm=self.use_layer_norm,
            kernel_init=kernel_init,
            sigma_zero=self.sigma_zero,
        )
        return torso, functools.partial(NoisyLinear, kernel_init=kernel_init, sigma_zero=self.sigma_zero)


class NoisyDuelingQNetwork(_NoisyDueling, DuelingQNetwork):
    """Action values from dueling streams of noisy layers.

    The noise comes from the rng collection `noise`.

    Source: Fortunato et al., Noisy Networks for Exploration (2018), section 4.
    """

    sigma_zero: Scalar = 0.5  # initial scale of the noise


class NoisyDistributionalDuelingQNetwork(_NoisyDueling, DistributionalDuelingQNetwork):
    """Distributions of action values on evenly spaced atoms, from dueling streams of noisy layers (Rainbow).

    The noise comes from the rng collection `noise`.

    Source: Hessel et al., Rainbow: Combining Improvements in Deep Reinforcement Learning (2018), section 3.
    """

    sigma_zero: Scalar = 0.5  # initial scale of the noise
