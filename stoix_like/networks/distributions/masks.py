"""Action masks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.shapes import check_last_axes


def mask_logits(logits: Float[Array, "*batch A"], action_mask: Bool[Array, "*batch A"] | None) -> Float[Array, "..."]:
    """Set the logits of illegal actions to the lowest finite number.

    Their probability and gradient are zero. The number is finite so that products with it are never NaN. See
    `legal_actions` for rows without a legal action.

    `action_mask`: True where an action is legal; None where all are legal.
    """
    if action_mask is None:
        return logits
    check_mask(action_mask, logits)
    return jnp.where(legal_actions(action_mask), logits, jnp.finfo(logits.dtype).min)


def check_mask(action_mask: Any, logits: Array) -> None:
    """Refuse a mask that would broadcast silently, such as `[B, 1, A]` against `[B, A]`; see `check_last_axes`."""
    if action_mask is not None:
        check_last_axes("action_mask", np.shape(action_mask), logits.shape, 1, f"the logits {logits.shape}")


def mix_uniform(
    logits: Float[Array, "*batch A"], mix: Scalar, action_mask: Bool[Array, "*batch A"] | None = None
) -> Float[Array, "*batch A"]:
    """Mix the uniform distribution over legal actions into the probabilities, so that none of them vanishes.

        log((1 - mix) softmax(logits) + mix / |legal|)

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, world model learning and actor critic learning.

    `mix`: share of the uniform distribution, in [0, 1]; may be traced.
    `action_mask`: see `mask_logits`.
    Returns normalised log-probabilities, float32; the lowest finite number where an action is illegal.
    """
    check_mask(action_mask, logits)
    legal = None if action_mask is None else legal_actions(action_mask)
    count = logits.shape[-1] if legal is None else legal.sum(-1, keepdims=True)
    probs = (1.0 - mix) * jax.nn.softmax(logits.astype(jnp.float32)) + mix / count
    # Without a share, probabilities vanish, and their logarithm has no finite gradient.
    return mask_logits(jnp.log(jnp.maximum(probs, jnp.finfo(probs.dtype).tiny)), legal)


def mean_uniform_entropy(num_actions: int, action_mask: Bool[Array, "*batch A"] | None) -> Scalar:
    """Compute the mean entropy in nats, over a batch, of the uniform policy over legal actions.

        mean log |legal|

    `action_mask`: see `mask_logits`.
    """
    if action_mask is None:
        return math.log(num_actions)
    return jnp.mean(jnp.log(legal_actions(action_mask).sum(-1)))


def legal_actions(action_mask: Bool[Array, "*batch L"], sizes: Sequence[int] | None = None) -> Bool[Array, "*batch L"]:
    """Return an action mask with at least one legal action in every row.

    A row without a legal action, such as the final state of some games, is an error. A compiled program cannot raise:
    it treats all actions of such a row as legal.

    `sizes`: number of actions of each sub-action, `L` in total; None for a single choice among `L` actions.
    """
    if sizes is not None:
        parts = jnp.split(action_mask, np.cumsum(sizes)[:-1], axis=-1)
        return jnp.concatenate([legal_actions(part) for part in parts], axis=-1)
    action_mask = jnp.asarray(action_mask, bool)
    some = action_mask.any(-1, keepdims=True)
    if not isinstance(some, jax.core.Tracer) and not some.all():
        raise ValueError(
            f"action_mask has {(~some).sum()} row(s) without a legal action: every row needs at least one True"
        )
    return action_mask | ~some
