"""Returns of imagined and of replayed sequences.

Shape letters: H imagined steps, S starts of imagination, T replayed entries, B sequences.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.multistep import batch_lambda_returns
from stoix_like.utils.replay import Stream


def imagined_returns(
    reward: jax.Array, continues: jax.Array, value: jax.Array, terminated: jax.Array, gamma: Scalar, lambda_: Scalar
) -> tuple[jax.Array, jax.Array]:
    """Compute lambda-returns of imagined steps, and their weights.

        R_h = r_{h+1} + gamma c_{h+1} ((1 - lambda) v_{h+1} + lambda R_{h+1}),   R_H = v_H
        w_h = (1 - terminated) prod_{1 <= i <= h} gamma c_i

    Source: Hafner et al. 2025, arXiv:2301.04104, equation 5. The weight is the discounted probability that an episode
    reaches the step; nothing follows a start that terminated.

    `reward`: `[H, S]`, of the steps that lead to the latents `1 … H`.
    `continues`: `[H, S]`, probabilities that the episodes have not terminated there.
    `value`: `[H + 1, S]`, of the latents `0 … H`.
    `terminated`: `[S]` bool, whether the episode terminated at the start.
    `lambda_`: mixing parameter in [0, 1].
    Returns returns and weights of the latents `0 … H - 1`, `[H, S]` each.
    """
    discount = gamma * continues
    returns = batch_lambda_returns(reward, discount, value[1:], lambda_, time_major=True)
    return returns, jnp.cumprod(jnp.concatenate([1.0 - terminated[None], discount[:-1]]), axis=0)


def replayed_returns(entries: Stream, value: jax.Array, gamma: Scalar, lambda_: Scalar) -> tuple[jax.Array, jax.Array]:
    """Compute lambda-returns of replayed entries, and which of them count.

        R_t = r_{t+1} + gamma (1 - terminated_{t+1}) ((1 - lambda_{t+1}) v_{t+1} + lambda_{t+1} R_{t+1})

    with v in place of the last R, and lambda zero at the last entry of an episode: a truncated one ends with its value.

    `entries`: `[T, B]`.
    `value`: `[T, B]`, of the entries.
    `lambda_`: mixing parameter in [0, 1].
    Returns returns `[T - 1, B]`, and `[T - 1, B]` bool: False for last entries.
    """
    discount = gamma * (1.0 - entries.terminated[1:])
    returns = batch_lambda_returns(
        *(entries.reward[1:], discount, value[1:], lambda_), time_major=True, truncation_t=entries.is_last[1:]
    )
    return returns, ~entries.is_last[:-1]
