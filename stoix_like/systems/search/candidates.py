"""The actions that a search considers: all of them, or samples of the policy (Hubert et al. 2021, arXiv:2104.06303).

mctx chooses among the indices `0 … K - 1`; the node tells which actions they are. Actions are sampled from the policy
itself (beta = pi), so the corrected prior of section 5.1, `beta^ pi / beta`, is the empirical distribution of the
samples: `1 / K` for each continuous action, and for a discrete one its share of the samples.

Shape letters: B batch, K actions per node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution
from stoix_like.envs.spaces import Box, Discrete, Space


class Found(NamedTuple):
    """Result of a search in a state, from which the networks learn."""

    candidates: jax.Array | None  # `[..., K, *action]`, the actions considered; None for all discrete ones
    weights: jax.Array  # `[..., K]`, their probabilities
    value: jax.Array  # `[...]` of the state; in the replay buffer, the bootstrap value of its true successor


class Candidates(NamedTuple):
    """The actions that a search considers in each node."""

    # `(policy, key) -> (prior logits [B, K], actions [B, K, ...] or None)`; None for `0 … K - 1`.
    choose: Callable[[Any, jax.Array], tuple[jax.Array, jax.Array | None]]
    example: Found  # what a search finds in one state


def all_actions(space: Discrete) -> Candidates:
    """Consider every discrete action in each node, with the policy as the prior."""
    return Candidates(
        lambda pi, _: (pi.logits, None), Found(None, jnp.zeros((space.n,), jnp.float32), jnp.zeros((), jnp.float32))
    )


def samples_of_the_policy(space: Space, num_samples: int) -> Candidates:
    """Consider `num_samples` actions that the policy samples in each node, with `sampled_prior`."""

    def choose(pi: Distribution, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        actions = jnp.moveaxis(pi.sample(seed=key, sample_shape=(num_samples,)), 0, 1)
        return sampled_prior(space, actions), actions

    action = jax.eval_shape(space.sample, jax.random.key(0))
    candidates = jnp.zeros((num_samples, *action.shape), action.dtype)
    return Candidates(choose, Found(candidates, jnp.zeros((num_samples,), jnp.float32), jnp.zeros((), jnp.float32)))


def sampled_prior(space: Space, actions: jax.Array) -> jax.Array:
    """Compute the logarithms of the corrected prior, up to a constant.

        log |{j: a_j = a_k}| for the first of equal actions, and the lowest float for its duplicates

    Source: Hubert et al. 2021, section 5.1, with beta = pi.

    `actions`: `[B, K, ...]` samples of the policy.
    Returns `[B, K]` logits; children with the lowest float are never visited, and have the weight 0.
    """
    batch, num_samples = actions.shape[:2]
    if isinstance(space, Box):
        return jnp.zeros((batch, num_samples))
    same = (actions[:, :, None] == actions[:, None]).reshape(batch, num_samples, num_samples, -1).all(-1)
    is_first = jnp.argmax(same, axis=-1) == jnp.arange(num_samples)[None]
    return jnp.where(is_first, jnp.log(same.sum(-1)), jnp.finfo(jnp.float32).min)


def take_action(actions: jax.Array | None, index: jax.Array) -> jax.Array:
    """Return the actions `[B, ...]` with the indices `[B]` of candidates `[B, K, ...]`; without these, the indices."""
    return index if actions is None else actions[jnp.arange(len(index)), index]


def search_policy_loss(pi: Any, actions: jax.Array | None, weights: jax.Array) -> jax.Array:
    """Compute the cross-entropies of a policy and the weights that a search gave to its candidates.

        L = -sum_k w_k log pi(a_k)

    Source: Hubert et al. 2021, section 5.2.

    `actions`: `[*B, K, ...]`; None for all discrete actions.
    """
    if actions is None:
        return -jnp.sum(weights * pi.logits, axis=-1)
    batch_dims = weights.ndim - 1
    log_prob = jnp.moveaxis(pi.log_prob(jnp.moveaxis(actions, batch_dims, 0)), 0, -1)
    return -jnp.sum(weights * log_prob, axis=-1)
