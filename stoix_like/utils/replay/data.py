"""Recorded data in addition to a replay buffer, or in its place.

An episode of T steps has T + 1 rows: a row holds an observation, the action taken there, and the reward and the flags
of that step; of the last row of an episode only the observation counts, the true successor of the step before. So each
observation is stored once, and every step has its successor.

The data of a run are one argument of its programs, which all members and all shards share.

Shape letters: R rows, S steps, W steps per window, B windows per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec, TimeStep, Trajectory, Transition
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, between
from stoix_like.utils.jax_utils import Scalar, append_dims
from stoix_like.utils.replay.types import Step

ReplayT = TypeVar("ReplayT", bound=Any)


@dataclass(frozen=True, kw_only=True)
class DataFile(Part):
    """A data set."""

    data: str | None = None  # its file; None for none


@dataclass(frozen=True, kw_only=True)
class DataConfig(DataFile):
    """Hyperparameters of recorded data in addition to a replay buffer."""

    # Traced in populations, which type checks of this package at run time must allow.
    # Share of each batch that comes from the data; at 1 there is no replay buffer.
    data_fraction: Annotated[float | jax.Array, between(0.0, 1.0)] = 0.5
    # This share at the end of the run, changed linearly; None: it stays.
    final_data_fraction: Annotated[float | jax.Array | None, between(0.0, 1.0)] = None

    @property
    def only_data(self) -> bool:
        """True if the data take the place of a replay buffer."""
        shares = self.data_fraction, self.final_data_fraction
        are_one = all(isinstance(share, float | None) and share in (1.0, None) for share in shares)
        return self.data is not None and are_one

    def check_data(self, has_all: bool) -> None:
        """Refuse data for a system that cannot learn from them."""
        if self.data is not None and not has_all:
            raise ConfigError(
                f"system.data={self.data}: this system learns from windows of its own rollouts, most with what its"
                " policy knew then, which data do not hold: use null, or another system with a replay buffer"
            )

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        if self.data is None or self.final_data_fraction is None:
            return {}
        return {"share of data": float(self.share(updates / num_updates))}

    def share(self, fraction: Any) -> Any:
        """Return the share of the data in a batch after a fraction of the run, which may be traced."""
        first, last = self.data_fraction, self.final_data_fraction
        return first if last is None else first + (last - first) * jnp.minimum(1.0, fraction)


class Data(NamedTuple):
    """Recorded data."""

    observation: Observation  # `[R, ...]`
    action: Any  # `[R, ...]`, in the units of the agent
    reward: Any  # `[R]` float32, scaled and clipped as in training
    terminated: Any  # `[R]` bool
    truncated: Any  # `[R]` bool
    valid: Any  # `[R]` bool, False for the last row of each episode
    steps: Any  # `[S]` int32, the rows of the steps

    def windows(self, key: jax.Array, batch: int, length: int, whole: bool = False) -> jax.Array:
        """Draw consecutive steps. Returns `[W, B]` rows."""
        number = len(self.steps)
        first = jax.random.randint(key, (batch,), 0, max(number - length + 1, 1) if whole else number)
        return jnp.asarray(self.steps)[jnp.minimum(first[None] + jnp.arange(length)[:, None], number - 1)]

    def is_first(self, rows: jax.Array) -> jax.Array:
        """Return whether steps are the first ones of their episodes."""
        return (rows == 0) | ~jnp.asarray(self.valid)[rows - 1]

    def take(self, rows: jax.Array, reward_scale: Scalar) -> Step:
        """Return the steps at rows `[...]`, with scaled rewards."""
        observation, action, reward, terminated, truncated = jax.tree.map(lambda x: jnp.asarray(x)[rows], self[:5])
        successor = jax.tree.map(lambda x: jnp.asarray(x)[rows + 1], self.observation)
        return Step(observation, action, reward * reward_scale, terminated, truncated, successor)

    def next_action(self, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return the actions after steps, and whether there are any: not after the last step of an episode."""
        return jnp.asarray(self.action)[rows + 1], jnp.asarray(self.valid)[rows + 1]

    def trajectory(self, number: int | None = None) -> Trajectory:
        """Return the first steps, by default all, as a rollout `[S, 1, ...]`."""
        rows = jnp.asarray(self.steps)[:number, None]
        steps = self.take(rows, 1.0)._replace(extras=())
        return Trajectory(Transition(**steps._asdict(), is_first=self.is_first(rows)), ())


def with_clipped_rewards(spec: SystemSpec, largest: Scalar) -> SystemSpec:
    """Clip the rewards of recorded data and of goals, if there are any."""
    if (goal_reward := spec.goal_reward) is not None:

        def clipped(achieved: PyTree, desired: PyTree) -> tuple[jax.Array, jax.Array]:
            reward, terminated = goal_reward(achieved, desired)
            return jnp.clip(reward, -largest, largest), terminated

        spec = spec._replace(goal_reward=clipped)
    if spec.data is None:
        return spec
    return spec._replace(data=spec.data._replace(reward=jnp.clip(spec.data.reward, -largest, largest)))


class Counted(NamedTuple):
    """The state of a replay buffer, and the number of rollouts added to it after the warm-up."""

    buffer: Any
    rollouts: jax.Array


def count_from(local: PyTree, rollouts: int) -> PyTree:
    """Return local states with a share of data that continues after rollouts which their buffers do not hold."""

    def add(node: Any) -> Any:
        return node._replace(rollouts=node.rollouts + rollouts) if isinstance(node, Counted) else node

    return jax.tree.map(add, local, is_leaf=lambda node: isinstance(node, Counted))


def with_data(
    config: DataConfig, spec: SystemSpec, replay: ReplayT, draw: Callable[[jax.Array], Any], axes: tuple[int, ...]
) -> ReplayT:
    """Let the batches of a replay buffer hold recorded data, or consist of them.

    `draw`: `(key) -> batch`, a batch of only data; its `indices` are those that the replay buffer ignores, or None.
    """
    if config.data is None:
        return replay
    if config.only_data:
        functions: dict[str, Any] = dict.fromkeys(replay._fields, lambda state, *_: state)
        functions |= {"init": lambda timestep: (), "sample": lambda state, key, *_: draw(key)}
        return replay._replace(**functions)
    feedback = replay._fields[-1]
    write = getattr(replay, feedback)

    def init(timestep: TimeStep) -> Counted:
        return Counted(replay.init(timestep), jnp.int32(-spec.warmup_rollouts))

    def add(state: Counted, trajectory: Trajectory) -> Counted:
        return Counted(replay.add(state.buffer, trajectory), state.rollouts + 1)

    def sample(state: Counted, key: jax.Array, *args: Any) -> Any:
        data_key, buffer_key, order_key = jax.random.split(key, 3)
        drawn, recorded = replay.sample(state.buffer, buffer_key, *args), draw(data_key)
        has_priorities = isinstance(drawn.indices, jax.Array)
        if has_priorities:
            # Negative: the sample of the replay buffer that this one replaces.
            # As heavy as the others on average: theirs are at most 1.
            weight = recorded.weight * jnp.mean(drawn.weight)
            recorded = recorded._replace(indices=~drawn.indices, weight=weight)
        batch = jax.tree.leaves(drawn[0])[0].shape[axes[0]]
        number = jnp.round(config.share(state.rollouts / spec.num_updates) * batch)
        # The last ones: streams have their newest sequences first. Priorities draw in the order of the buffer: its
        # last environments would never be learned from; one sample stays, see `feed_back`.
        places = jax.random.permutation(order_key, batch) if has_priorities else jnp.arange(batch)
        is_data = places >= batch - jnp.minimum(number, batch - has_priorities)

        def choose(axis: int, one: jax.Array, other: jax.Array) -> jax.Array:
            return jnp.where(append_dims(is_data, one.ndim - axis), one.astype(other.dtype), other)

        entries = zip(axes, recorded, drawn, strict=True)
        return type(drawn)(*(jax.tree.map(partial(choose, axis), *pair) for axis, *pair in entries))

    def feed_back(state: Counted, indices: Any, values: PyTree) -> Counted:
        if isinstance(indices, jax.Array):
            # Of a sample that occurs twice, the priority of zero has no effect.
            is_data = indices < 0
            indices, values = jnp.where(is_data, jnp.max(indices), indices), jnp.where(is_data, 0.0, values)
        return state._replace(buffer=write(state.buffer, indices, values))

    return replay._replace(init=init, add=add, sample=sample, **{feedback: feed_back})
