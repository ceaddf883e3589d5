"""Hindsight experience replay: samples whose desired goal is one that the agent reached, and rewards to match.

Steps are relabelled when a batch is sampled: the buffer holds each of them once, with the number of its episode in
addition. Numbers grow along the row of an environment, so that a binary search finds the ends of an episode, as far as
it is stored: the newest one ends with the newest step, and the oldest one may lack its start.

Source: Andrychowicz et al. 2017, "Hindsight experience replay" (arXiv:1707.01495), sections 3.2 and 4.5.

Shape letters: N environments per shard, L stored steps per environment, K steps per rollout, W steps per window, B
windows per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import ACHIEVED, DESIRED, GoalReward, PyTree, SystemSpec
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, between, one_of
from stoix_like.utils.jax_utils import Scalar, append_dims
from stoix_like.utils.replay.types import Step

# Beyond the numbers of the keys that others split off.
_STREAM = 2**31 - 4


@dataclass(frozen=True, kw_only=True)
class RelabelConfig(Part):
    """Hindsight experience replay."""

    # Where the goal of a relabelled sample was achieved: at its step or after it in its episode, all equally likely or
    # in proportion to `gamma^steps`, at the end of the episode, anywhere in it, or anywhere in the buffer; None: off.
    relabel: Annotated[str | None, one_of("future", "geometric", "final", "episode", "random")] = None
    # Traced in populations, which type checks of this package at run time must allow.
    relabel_fraction: Annotated[float | jax.Array, between(0.0, 1.0)] = 0.8  # share of relabelled samples

    def check_relabel(self, fits: bool, store_next_observation: bool) -> None:
        """Refuse samples that cannot be relabelled. `fits`: whether the buffer samples windows of a target each."""
        if self.relabel is None:
            return
        key = f"system.relabel={self.relabel}"
        if not fits:
            raise ConfigError(
                f"{key}: this system learns from sequences or whole windows, whose goals are not replaced: use null, or"
                " q_learning/ff_dqn, sac/ff_sac or ddpg/ff_td3"
            )
        if not store_next_observation:
            raise ConfigError(
                f"{key} reads what was achieved after truncated steps, which system.store_next_observation=false does"
                " not store: use true"
            )

    def numbered(self, state: Any, stored: Step) -> Step:
        """Number the episodes of steps that follow the stored ones. `stored`: `[N, K, ...]`, without extras."""
        if self.relabel is None:
            return stored
        steps, last = state.experience, state.current_index - 1
        number = steps.extras[:, last] + _ended(steps)[:, last]
        after = jnp.cumsum(_ended(stored), axis=1, dtype=jnp.int32)
        return stored._replace(extras=number[:, None] + after - _ended(stored))


class Relabel(NamedTuple):
    """Functions that replace the goals of a share of windows.

    The reward and the end of each step are `goal_reward` of its new goal. A step that terminated for another reason
    than its goal still does. A step that ended its episode otherwise is truncated, because the next one follows.
    """

    # `(sample, state, key, windows [B, W, ...])`: `sample` of the flashbax buffer drew the windows, by the same key.
    replayed: Callable[..., Step]
    recorded: Callable[..., Step]  # `(key, rows [W, B], windows [W, B, ...])`, of recorded data


def make_relabel(config: RelabelConfig, spec: SystemSpec, gamma: Scalar, reward_scale: Scalar) -> Relabel:
    """Build the functions; both return the windows as they are where no strategy is configured."""
    if config.relabel is None:
        return Relabel(lambda sample, state, key, windows: windows, lambda key, rows, windows: windows)
    draw = partial(_draw, config.relabel, gamma)

    def keys(key: jax.Array) -> jax.Array:
        return jax.random.split(jax.random.fold_in(key, _STREAM))

    def replayed(sample: Callable[..., Any], state: Any, key: jax.Array, windows: Step) -> Step:
        goal_reward, (share_key, goal_key) = _checked(config, spec), keys(key)
        numbers = state.experience.extras
        places = jnp.arange(numbers.size, dtype=jnp.int32).reshape(numbers.shape)
        first = sample(state.replace(experience=places), key).experience[:, 0]
        length = numbers.shape[1]
        start = jnp.where(state.is_full, state.current_index, 0)
        stored = jnp.where(state.is_full, length, state.current_index)
        row, time = draw(numbers, start, stored, goal_key, *jnp.divmod(first, length))
        goal = jax.tree.map(lambda x: x[row, time], state.experience.next_observation.agent_view[ACHIEVED])
        return replace(goal_reward, share_key, windows, goal)

    def recorded(key: jax.Array, rows: jax.Array, windows: Step) -> Step:
        goal_reward, (share_key, goal_key) = _checked(config, spec), keys(key)
        data: Any = spec.data
        steps = jnp.asarray(data.steps)
        # Each episode has one row more than steps.
        places = jnp.arange(len(steps), dtype=jnp.int32)
        first = jnp.searchsorted(steps, rows[0]).astype(jnp.int32)
        end = jnp.int32(len(steps))
        _, time = draw((steps - places)[None], jnp.int32(0), end, goal_key, jnp.zeros_like(first), first)
        goal = jax.tree.map(lambda x: jnp.asarray(x)[steps[time] + 1], data.observation.agent_view[ACHIEVED])
        swapped = partial(jax.tree.map, lambda x: jnp.swapaxes(x, 0, 1))
        return swapped(replace(goal_reward, share_key, swapped(windows), goal))

    def replace(goal_reward: GoalReward, key: jax.Array, windows: Step, goal: PyTree) -> Step:
        chosen = jax.random.uniform(key, windows.reward.shape[:1]) < config.relabel_fraction

        def replaced(desired: jax.Array, goal: jax.Array) -> jax.Array:
            return jnp.where(append_dims(chosen, desired.ndim), goal[:, None], desired)

        assert windows.next_observation is not None
        before, after = windows.observation.agent_view, windows.next_observation.agent_view
        outcome = jax.vmap(jax.vmap(goal_reward))
        desired = jax.tree.map(replaced, after[DESIRED], goal)
        _, was_reached = outcome(after[ACHIEVED], after[DESIRED])
        reward, reached = outcome(after[ACHIEVED], desired)
        terminated = reached | (windows.terminated & ~was_reached)
        changed = chosen[:, None]
        terminated = jnp.where(changed, terminated, windows.terminated)
        return windows._replace(
            observation=windows.observation._replace(
                agent_view={**before, DESIRED: jax.tree.map(replaced, before[DESIRED], goal)}
            ),
            next_observation=windows.next_observation._replace(agent_view={**after, DESIRED: desired}),
            reward=jnp.where(changed, (reward * reward_scale).astype(windows.reward.dtype), windows.reward),
            terminated=terminated,
            truncated=_ended(windows) & ~terminated,
        )

    return Relabel(replayed, recorded)


def _draw(
    strategy: str,
    gamma: Scalar,
    numbers: jax.Array,
    start: jax.Array,
    stored: jax.Array,
    key: jax.Array,
    row: jax.Array,
    time: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Draw the steps whose successors are the goals of steps `[B]`; both by row and place in the ring.

    `numbers`: of the episodes, `[N, L]`; `start`: the place of the oldest step, of `stored` ones.
    """
    num_rows, length = numbers.shape
    if strategy == "random":
        row_key, key = jax.random.split(key)
        row = jax.random.randint(row_key, row.shape, 0, num_rows)
        return row, (start + jax.random.randint(key, row.shape, 0, stored)) % length
    number, age = numbers[row, time], (time - start) % length

    def search(number: jax.Array) -> jax.Array:
        """Return the age of the first stored step of an episode with at least this number."""

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            low, high = ends
            middle = (low + high) // 2
            # Differences, because numbers may wrap around.
            is_before = (numbers[row, (start + middle) % length] - number < 0) & (low < high)
            return jnp.where(is_before, middle + 1, low), jnp.where(is_before, high, middle)

        ends = jnp.zeros_like(age), jnp.broadcast_to(stored.astype(age.dtype), age.shape)
        return jax.lax.fori_loop(0, length.bit_length(), halve, ends)[0]

    last = search(number + 1) - 1
    if strategy == "geometric":
        last = age + geometric_steps(key, last - age + 1, gamma)
    elif strategy != "final":
        last = jax.random.randint(key, age.shape, search(number) if strategy == "episode" else age, last + 1)
    return row, (start + last) % length


def geometric_steps(key: jax.Array, num_steps: jax.Array, gamma: Scalar) -> jax.Array:
    """Draw one of the first n steps, `P(k) = (1 - gamma) gamma^k / (1 - gamma^n)` for `0 <= k < n`.

    `num_steps`: `[B]`, n; `gamma` may be 1, where all are equally likely.
    Returns k, `[B]`.
    """
    # The inverse of the cumulative distribution; below 1, it has no 0 / 0.
    rate = jnp.log(jnp.minimum(gamma, 1.0 - 2.0**-24))
    below = jax.random.uniform(key, num_steps.shape) * -jnp.expm1(num_steps * rate)
    return jnp.minimum(jnp.floor(jnp.log1p(-below) / rate).astype(num_steps.dtype), num_steps - 1)


def _ended(steps: Any) -> jax.Array:
    return steps.terminated | steps.truncated


def _checked(config: RelabelConfig, spec: SystemSpec) -> GoalReward:
    """Return the reward of goals, if the environments have one and show them."""
    entries = getattr(spec.observation_space, "spaces", {})
    if spec.goal_reward is None or not {ACHIEVED, DESIRED} <= set(entries):
        raise ConfigError(
            f"system.relabel={config.relabel} needs environments with a `goal_reward` that observe {ACHIEVED} and"
            f" {DESIRED}, without env settings that change them: use null, or env=goals/bit_flip"
        )
    return spec.goal_reward
