"""Predictions of an agent that learns by a discovered update rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.envs.spaces import Discrete
from stoix_like.networks import distributions
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.heads.base import Embedding, Mask, PolicyHead, dense
from stoix_like.networks.requirements import DISCOVERED_PREDICTIONS
from stoix_like.networks.torso import MLPTorso
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import prepend_dims


class Predictions(NamedTuple):
    """Predictions of an agent of a discovered update rule."""

    policy: Any  # distribution over actions, of logits `[..., A]`
    y: Array  # logits `[..., Y]` of a prediction about the observation, with a meaning that the rule discovered
    z: Array  # logits `[..., A, Y]` of one about each action, likewise
    q: Array  # logits `[..., A, K]` of the distribution of each action's value
    next_policy: Array  # logits `[..., A, A]` of the policy after each action


class DiscoveredHead(PolicyHead, nn.Module):
    """A policy with the predictions that a discovered update rule reads and trains.

    Predictions about actions come from one step of an LSTM with the action as input.

    Source: Oh et al., Discovering state-of-the-art reinforcement learning algorithms (2025), section "Agent network".
    """

    outputs: ClassVar[str | None] = DISCOVERED_PREDICTIONS
    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    takes_action_mask: ClassVar[bool] = True

    action_dim: int  # number of actions, A
    num_predictions: int = 600  # length Y of the predictions with meanings that the rule discovered
    num_atoms: int = 601  # number of atoms of the distributions of action values, K
    lstm_size: int = 128  # width of the LSTM, in units
    layer_sizes: Sequence[int] = (128,)  # width of each layer between the LSTM and a prediction, in units
    # Initialiser of the weights of the policy and of `y`, or its name.
    kernel_init: Initializer | str = "truncated_normal(0.01)"

    @nn.compact
    def __call__(self, embedding: Embedding, action_mask: Mask | None = None) -> Predictions:
        """Return the policy and the other predictions; an action is legal where its mask is True, or without a mask."""
        logits = mask_logits(dense(embedding, (self.action_dim,), self.kernel_init), action_mask)
        y = dense(embedding, (self.num_predictions,), self.kernel_init)
        hidden = self._after_actions(embedding)
        sizes = {"z": self.num_predictions, "next_policy": self.action_dim, "q": self.num_atoms}
        about_actions = {name: self._predict(name, size, hidden) for name, size in sizes.items()}
        return Predictions(distributions.Categorical(logits=logits), y, **about_actions)

    def _after_actions(self, embedding: Array) -> Float[Array, "*batch A H"]:
        """Return the states of the LSTM after each action."""
        size, one_hot = self.lstm_size, jnp.eye(self.action_dim, dtype=embedding.dtype)
        cell = nn.Dense(size, name="root")(embedding)
        # The sum of the products of state and input is one product of both; the initialiser counts its width.
        from_state = nn.Dense(4 * size, use_bias=False, name="state")(jnp.tanh(cell))
        of_both = nn.initializers.truncated_normal((size + self.action_dim) ** -0.5)
        from_action = nn.Dense(4 * size, kernel_init=of_both, name="action")(one_hot)
        gates = from_state[..., None, :] + prepend_dims(from_action, cell.ndim + 1)
        take, new, keep, show = jnp.split(gates, 4, axis=-1)
        cell = jax.nn.sigmoid(keep + 1.0) * cell[..., None, :] + jax.nn.sigmoid(take) * jnp.tanh(new)
        return jax.nn.sigmoid(show) * jnp.tanh(cell)

    def _predict(self, name: str, size: int, hidden: Array) -> Array:
        torso = MLPTorso(self.layer_sizes, kernel_init="lecun_normal", name=f"{name}_torso")
        return nn.Dense(size, name=name)(torso(hidden))
