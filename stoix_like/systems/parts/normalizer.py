"""Normalisation of observations and rewards by running statistics, as functions of their state."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Axes, Observation, PyTree, Transition
from stoix_like.errors import ConfigError
from stoix_like.networks.recurrent.linear import linear_recurrence
from stoix_like.schema import Part, above
from stoix_like.utils import running_statistics
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import Scalar, as_floats
from stoix_like.utils.replay import Data

MAX_ABS_VALUE = 10.0
"""Clipping limit of normalised observations, in standard deviations."""

MIN_STD = 1e-6
"""The smallest deviation that observations are divided by."""
MIN_STD_OF_DATA = 1e-3
"""The smallest deviation for systems that may learn only from data: what hardly varies there may vary in evaluations,
and statistics of data never learn of it. Fujimoto & Gu 2021 (TD3+BC), arXiv:2106.06860, add it to the deviations."""

# A run may be restored with `jax_enable_x64`, or without.
_zeros = partial(jnp.zeros, dtype=jnp.float32)


class Normalizer(NamedTuple):
    """Normalisation of the `agent_view` of observations; bytes, which are pixels, pass through."""

    init: Callable[[Observation], PyTree]  # `(observation [N, ...]) -> state`, empty statistics
    update: Callable[[PyTree, Observation], PyTree]  # `(state, observation [T, N, ...]) -> state`, merges all shards
    apply: Callable[[PyTree, Observation], Observation]  # `(state, observation [..., ...]) -> observation`


def make_normalizer(
    enabled: bool, axes: Axes, max_abs_value: float = MAX_ABS_VALUE, min_std: float = MIN_STD, data: Data | None = None
) -> Normalizer:
    """Build a normaliser, or the identity with an empty state."""
    if not enabled:
        return Normalizer(lambda _: (), lambda state, _: state, lambda _, observation: observation)

    def numbers(observation: Observation) -> PyTree:
        return jax.tree.map(lambda x: x if x.dtype == jnp.uint8 else as_floats(x), observation.agent_view)

    def init(observation: Observation) -> PyTree:
        empty = running_statistics.initialize_statistics(jax.tree.map(lambda x: x[0], numbers(observation)))
        # All shards have the same data.
        return empty if data is None else update(empty, data.trajectory().transitions.observation, ())

    def update(state: PyTree, observation: Observation, names: tuple[str, ...] = axes.names) -> PyTree:
        batch = numbers(observation)
        return running_statistics.update_statistics(state, batch, std_min_value=min_std, pmap_axes=names)

    def apply(state: PyTree, observation: Observation) -> Observation:
        view = running_statistics.normalize(numbers(observation), state, max_abs_value)
        return observation._replace(agent_view=view)

    return Normalizer(init, update, apply)


class RewardNormalizer(NamedTuple):
    """Division of rewards by the running standard deviation of the discounted return.

    The return of a step sums the rewards up to it, `g_t = gamma g_{t-1} + r_t`, and starts again with each
    episode, terminated or truncated. Rewards keep their sign: no mean is subtracted.
    """

    init: Callable[[], PyTree]  # `() -> statistics`, empty statistics, shared by all shards
    init_returns: Callable[[int], PyTree]  # `(num_envs) -> returns [N]`, the returns of one shard before its first step
    apply: Callable[[PyTree, PyTree, Transition], tuple[jax.Array, PyTree, PyTree]]


def make_reward_normalizer(
    enabled: bool, gamma: Scalar, axes: Axes, max_abs_value: float = 10.0, num_policies: int = 1
) -> RewardNormalizer:
    """Build a normaliser of rewards, or the identity with an empty state."""
    if not enabled:
        return RewardNormalizer(lambda: (), lambda _: (), lambda state, returns, steps: (steps.reward, state, returns))

    def apply(state: PyTree, returns: jax.Array, steps: Transition) -> tuple[jax.Array, PyTree, jax.Array]:
        returns, each = _running_returns(gamma, returns, steps.reward, steps.is_first)
        by_policy = each if num_policies == 1 else each.reshape(len(each), -1, num_policies)
        state = running_statistics.update_statistics(state, by_policy, pmap_axes=axes.names)
        std = state.std if num_policies == 1 else jnp.tile(state.std, len(returns) // num_policies)[None]
        return jnp.clip(steps.reward / std, -max_abs_value, max_abs_value), state, returns

    shape = () if num_policies == 1 else num_policies
    return RewardNormalizer(
        init=lambda: running_statistics.initialize_statistics(_zeros(shape)), init_returns=_zeros, apply=apply
    )


def _running_returns(
    gamma: Scalar, returns: jax.Array, reward: jax.Array, is_first: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the returns `[N]` after the last step of a rollout `[T, N]`, and those after each step."""
    if not on_cpu():
        each = linear_recurrence(jnp.where(is_first, 0.0, gamma), reward, returns)
        return each[-1], each

    def add(g_tm1: jax.Array, step: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        r_t, is_first = step
        g_t = gamma * jnp.where(is_first, 0.0, g_tm1) + r_t
        return g_t, g_t

    return jax.lax.scan(add, returns, (reward, is_first))


class ReturnStatistics(NamedTuple):
    """Statistics of the discounted return."""

    moments: running_statistics.RunningStatisticsState  # its mean and standard deviation
    largest: jax.Array  # its largest magnitude so far


class ReturnScaler(NamedTuple):
    """Division of replayed rewards by a scale of the discounted return; the identity without it."""

    init: Callable[[], PyTree] = lambda: ()  # `() -> statistics`, empty statistics, shared by all shards
    # `(num_envs) -> returns` of the episodes under way, of one shard.
    init_returns: Callable[[int], PyTree] = lambda num_envs: ()
    # `(statistics, returns, transitions [T, N]) -> (statistics, returns)`, merges the batch of all shards.
    update: Callable[..., tuple[PyTree, PyTree]] = lambda statistics, returns, steps: (statistics, returns)
    # `(statistics, reward) -> reward`.
    apply: Callable[[PyTree, jax.Array], jax.Array] = lambda statistics, reward: reward


@dataclass(frozen=True, kw_only=True)
class ReplayNormalisation(Part):
    """Normalisation of what a replay buffer stores as it is."""

    normalize_observations: bool = False  # whether to normalise observations; deviations are at least `MIN_STD_OF_DATA`
    normalize_rewards: bool = False  # whether replayed rewards are divided by a running scale of the return
    max_scaled_return: Annotated[float, above(0.0)] = 5.0  # bound of the magnitude of returns of scaled rewards

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Refuse a factor that the scale of the rewards takes back."""
        factor = config.reward_scale
        if self.normalize_rewards and isinstance(factor, float) and factor != 1.0:
            raise ConfigError(
                f"system.reward_scale={factor:g} has no effect with system.normalize_rewards=true, which divides"
                " rewards by their own scale: use 1"
            )


def make_return_scaler(
    config: ReplayNormalisation, gamma: Scalar, reward_scale: Scalar, axes: Axes, data: Data | None = None
) -> ReturnScaler:
    """Build a scaler of replayed rewards, or the identity with an empty state.

        r / max(sqrt(Var[g] + 1e-8), max|g| / max_scaled_return),   g_t = gamma g_{t-1} + r_t

    Source: Lee et al., Hyperspherical Normalization for Scalable Deep Reinforcement Learning (2025), arXiv:2502.15280,
    section 4.
    """
    if not config.normalize_rewards:
        return ReturnScaler()

    def init() -> ReturnStatistics:
        empty = ReturnStatistics(running_statistics.initialize_statistics(_zeros(())), _zeros(()))
        # All shards have the same data.
        return empty if data is None else update(empty, _zeros(1), data.trajectory().transitions, ())[0]

    def update(
        statistics: ReturnStatistics, returns: jax.Array, steps: Transition, names: tuple[str, ...] = axes.names
    ) -> tuple[ReturnStatistics, jax.Array]:
        returns, each = _running_returns(gamma, returns, reward_scale * steps.reward, steps.is_first)
        moments = running_statistics.update_statistics(statistics.moments, each, pmap_axes=names)
        largest = jnp.max(jnp.abs(each))
        largest = jax.lax.pmax(largest, names) if names else largest
        return ReturnStatistics(moments, jnp.maximum(statistics.largest, largest)), returns

    def apply(statistics: ReturnStatistics, reward: jax.Array) -> jax.Array:
        deviation = jnp.sqrt(jnp.square(statistics.moments.std) + 1e-8)
        return reward / jnp.maximum(deviation, statistics.largest / config.max_scaled_return)

    return ReturnScaler(init=init, init_returns=_zeros, update=update, apply=apply)
