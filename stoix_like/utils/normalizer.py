"""Normalisation of observations and rewards by running statistics, as functions of their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes, Observation, Transition
from stoix_like.utils import running_statistics

MAX_ABS_VALUE = 10.0
"""Clipping limit of normalised observations, in standard deviations."""


class Normalizer(NamedTuple):
    """Normalisation of the `agent_view` of observations; integers and booleans, such as pixels, pass through.

    Attributes:
        init: `(observation [N, ...]) -> state`, empty statistics.
        update: `(state, observation [T, N, ...]) -> state`, merges the batch of all shards.
        apply: `(state, observation [..., ...]) -> observation`.
    """

    init: Callable[[Observation], Any]
    update: Callable[[Any, Observation], Any]
    apply: Callable[[Any, Observation], Observation]


def make_normalizer(enabled: bool, axes: Axes, max_abs_value: float = MAX_ABS_VALUE) -> Normalizer:
    """Build a normaliser, or the identity with an empty state.

    Args:
        enabled: whether to normalise; False gives the identity.
        axes: the mapped axes that a batch is spread over.
        max_abs_value: clipping limit of normalised values, in standard deviations.

    Returns:
        The functions of the normaliser.
    """
    if not enabled:
        return Normalizer(lambda _: (), lambda state, _: state, lambda _, observation: observation)

    def init(observation: Observation) -> Any:
        return running_statistics.initialize_statistics(jax.tree.map(lambda x: x[0], observation.agent_view))

    def update(state: Any, observation: Observation) -> Any:
        return running_statistics.update_statistics(state, observation.agent_view, pmap_axes=axes.names or None)

    def apply(state: Any, observation: Observation) -> Observation:
        view = running_statistics.normalize(observation.agent_view, state, max_abs_value)
        return observation._replace(agent_view=view)

    return Normalizer(init, update, apply)


class RewardNormalizer(NamedTuple):
    """Division of rewards by the running standard deviation of the discounted return.

    The return of a step is that of the rewards up to it, `g_t = gamma g_{t-1} + r_t`, and starts anew with each
    episode, terminated or truncated. Rewards keep their sign: no mean is subtracted.

    Attributes:
        init: `() -> statistics`, empty statistics, shared by all shards.
        init_returns: `(num_envs) -> returns [N]`, the returns of one shard before its first step.
        apply: `(statistics, returns [N], transitions [T, N]) -> (reward [T, N], statistics, returns [N])`, merges the
            batch of all shards and normalises it.
    """

    init: Callable[[], Any]
    init_returns: Callable[[int], Any]
    apply: Callable[[Any, Any, Transition], tuple[jax.Array, Any, Any]]


def make_reward_normalizer(enabled: bool, gamma: Any, axes: Axes, max_abs_value: float = 10.0) -> RewardNormalizer:
    """Build a normaliser of rewards, or the identity with an empty state.

    Args:
        enabled: whether to normalise; False gives the identity.
        gamma: discount per step; it may be traced.
        axes: the mapped axes that a batch is spread over.
        max_abs_value: clipping limit of normalised rewards.

    Returns:
        The functions of the normaliser.
    """
    if not enabled:
        return RewardNormalizer(lambda: (), lambda _: (), lambda state, returns, steps: (steps.reward, state, returns))

    def apply(state: Any, returns: jax.Array, steps: Transition) -> tuple[jax.Array, Any, jax.Array]:
        def add(g_tm1: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            r_t, is_first = step
            g_t = gamma * jnp.where(is_first, 0.0, g_tm1) + r_t
            return g_t, g_t

        returns, each = jax.lax.scan(add, returns, (steps.reward, steps.is_first))
        state = running_statistics.update_statistics(state, each, pmap_axes=axes.names or None)
        return jnp.clip(steps.reward / state.std, -max_abs_value, max_abs_value), state, returns

    return RewardNormalizer(
        init=lambda: running_statistics.initialize_statistics(jnp.zeros(())),
        init_returns=lambda num_envs: jnp.zeros(num_envs),
        apply=apply,
    )
