"""The auxiliary loss of REPPO: the critic predicts its own embedding of the next step, and the reward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stoix_like.networks.torso import MLPTorso
from stoix_like.systems.reppo.reppo_types import Successor
from stoix_like.utils.jax_utils import Scalar


class SelfPredictiveHead(nn.Module):
    """A head, and predictions of the next embedding and of the reward.

    Attributes:
        head: the head of the values.
        num_actions: number of discrete actions; None where the embedding is of an observation and an action.
    """

    head: nn.Module
    num_actions: int | None = None

    @nn.compact
    def __call__(self, embedding: jax.Array) -> tuple[Any, jax.Array, jax.Array]:
        """Return the output of the head, the embedding `[..., D]`, and predictions `[..., D + 1]`, per action.

        Args:
            embedding: `[..., D]`.
        """
        width = embedding.shape[-1]
        shape = (width + 1,) if self.num_actions is None else (self.num_actions, width + 1)
        hidden = MLPTorso((width,), activation="swish", use_layer_norm=True)(embedding)
        return self.head(embedding), embedding, nn.DenseGeneral(shape)(hidden)


class SelfPrediction(NamedTuple):
    """Functions of the output of the critic.

    Attributes:
        wrap: `(head, num_actions) -> head`, of which the critic is built.
        values: `(output) -> output of the head`.
        successor: `(output, reward, terminated) -> successor`, of steps with the output of the critic at their
            successors; `()` where nothing is predicted.
        predicted: `(output) -> predictions`, see `SelfPredictiveHead`; `()` where there are none.
        loss: `(predictions [B, D + 1], successor) -> (loss, metrics)`.
    """

    wrap: Callable[[Any, int | None], Any]
    values: Callable[[Any], Any]
    successor: Callable[[Any, jax.Array, jax.Array], Any]
    predicted: Callable[[Any], Any]
    loss: Callable[[Any, Successor], tuple[Any, dict[str, Any]]]


OFF = SelfPrediction(
    lambda head, num_actions: head,
    lambda output: output,
    lambda output, reward, terminated: (),
    lambda output: (),
    lambda predicted, successor: (0.0, {}),
)
"""Nothing is predicted."""


def make_self_prediction(coef: Scalar | None) -> SelfPrediction:
    """Build the auxiliary loss.

        L = coef mean (f(e_t) - (e_t+1, r_t))^2

    The mean is over entries; e_t is the embedding of the critic, and e_t+1 that of the critic before the update. The
    successor of a terminated step has no embedding, so its prediction has no error.

    Source: Voelcker et al. 2025 (REPPO), arXiv:2507.11019, section 4.

    Args:
        coef: weight of the loss; None for none.

    Returns:
        The functions.
    """
    if coef is None:
        return OFF

    def loss(predicted: jax.Array, successor: Successor) -> tuple[jax.Array, dict[str, Any]]:
        continues = (1.0 - successor.terminated)[:, None]
        error = jnp.square(predicted[:, :-1] - successor.embedding)
        errors = jnp.concatenate(
            [continues * error, jnp.square(predicted[:, -1:] - successor.reward[:, None])], axis=-1
        )
        aux_loss = jnp.mean(errors)
        return coef * aux_loss, {"aux_loss": aux_loss}

    def successor(output: Any, reward: jax.Array, terminated: jax.Array) -> Successor:
        return Successor(output[1], reward, terminated)

    return SelfPrediction(SelfPredictiveHead, lambda output: output[0], successor, lambda output: output[2], loss)
