"""Search over sampled actions (Hubert et al. 2021, arXiv:2104.06303): every node of the tree holds actions of its own.

mctx chooses among the indices `0 … K - 1`; the node tells which actions they are. Actions are sampled from the policy
itself (beta = pi), so the corrected prior of section 5.1, `beta^ pi / beta`, is the empirical distribution of the
samples: `1 / K` for each continuous action, and for a discrete one its share of the samples.

Shape letters: B batch, K sampled actions per node.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import mctx

from stoix_like.base_types import PyTree
from stoix_like.envs.spaces import Box

Step = Callable[[Any, jax.Array, jax.Array, PyTree], tuple[jax.Array, jax.Array, Any, jax.Array, PyTree]]
"""A model `(params, key, action [B, ...], state) -> (reward [B], discount [B], policy, value [B], state)`, the last
three of the state after the action."""


class SampledNode(NamedTuple):
    """The embedding of a node.

    Attributes:
        state: `[B, ...]`, what the model steps.
        actions: `[B, K, ...]`, the sampled actions.
    """

    state: PyTree
    actions: jax.Array


def sample_actions(pi: Any, num_samples: int, key: jax.Array) -> jax.Array:
    """Sample actions of a policy with the batch shape `[B]`: `[B, K, ...]`, of which discrete ones may be equal."""
    return jnp.moveaxis(pi.sample(seed=key, sample_shape=(num_samples,)), 0, 1)


def sampled_prior(space: Any, actions: jax.Array) -> jax.Array:
    """Compute the logarithms of the corrected prior, up to a constant.

        log |{j: a_j = a_k}| for the first of equal actions, and the lowest float for its duplicates

    Source: Hubert et al. 2021, section 5.1, with beta = pi.

    Args:
        space: the action space.
        actions: `[B, K, ...]` samples of the policy.

    Returns:
        `[B, K]` logits; children with the lowest float are never visited, and have the weight 0.
    """
    batch, num_samples = actions.shape[:2]
    if isinstance(space, Box):
        return jnp.zeros((batch, num_samples))
    same = (actions[:, :, None] == actions[:, None]).reshape(batch, num_samples, num_samples, -1).all(-1)
    is_first = jnp.argmax(same, axis=-1) == jnp.arange(num_samples)[None]
    return jnp.where(is_first, jnp.log(same.sum(-1)), jnp.finfo(jnp.float32).min)


def sampled_root(
    space: Any, num_samples: int, pi: Any, value: jax.Array, state: PyTree, key: jax.Array
) -> mctx.RootFnOutput:
    """Return the root of a search over sampled actions.

    Args:
        space: the action space.
        num_samples: K.
        pi: the policy at the root, with the batch shape `[B]`.
        value: `[B]`.
        state: `[B, ...]`, what the model steps.
        key: of the samples.

    Returns:
        The root, with a `SampledNode` as its embedding.
    """
    actions = sample_actions(pi, num_samples, key)
    return mctx.RootFnOutput(
        prior_logits=sampled_prior(space, actions), value=value, embedding=SampledNode(state, actions)
    )


def over_samples(space: Any, num_samples: int, step: Step) -> Callable[..., Any]:
    """Turn a model into the `recurrent_fn` of a search over sampled actions.

    Args:
        space: the action space.
        num_samples: K.
        step: the model, of actions of the space.

    Returns:
        `(params, key, index [B], SampledNode) -> (RecurrentFnOutput, SampledNode)`.
    """

    def recurrent_fn(params: Any, key: jax.Array, index: jax.Array, node: SampledNode) -> tuple[Any, SampledNode]:
        step_key, sample_key = jax.random.split(key)
        reward, discount, pi, value, state = step(params, step_key, take_action(node.actions, index), node.state)
        actions = sample_actions(pi, num_samples, sample_key)
        output = mctx.RecurrentFnOutput(
            reward=reward, discount=discount, prior_logits=sampled_prior(space, actions), value=value
        )
        return output, SampledNode(state, actions)

    return recurrent_fn


def take_action(actions: jax.Array, index: jax.Array) -> jax.Array:
    """Return the actions `[B, ...]` with the indices `[B]` of sampled actions `[B, K, ...]`."""
    return actions[jnp.arange(len(index)), index]


def sampled_policy_loss(pi: Any, actions: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute the cross-entropies of a policy and the weights that a search gave to sampled actions.

        L = -sum_k w_k log pi(a_k)

    Source: Hubert et al. 2021, section 5.2.

    Args:
        pi: the policy, with the batch shape `[*B]`.
        actions: `[*B, K, ...]`.
        weights: `[*B, K]`, zero for duplicates.

    Returns:
        `[*B]`, in nats.
    """
    batch_dims = weights.ndim - 1
    log_prob = jnp.moveaxis(pi.log_prob(jnp.moveaxis(actions, batch_dims, 0)), 0, -1)
    return -jnp.sum(weights * log_prob, axis=-1)
