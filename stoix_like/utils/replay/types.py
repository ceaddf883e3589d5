"""Types that replay buffers store and return.

Shape letters: N environments per shard, W steps per window, B windows per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from stoix_like.base_types import Observation, TimeStep, Trajectory, Transition


class Step(NamedTuple):
    """Stored data of one step; None where a field is not stored.

    Extras are one number per step, such as the log-probability of the action, or in sequences any arrays.
    """

    observation: Observation
    action: jax.Array
    reward: jax.Array
    terminated: jax.Array
    truncated: jax.Array | None
    next_observation: Observation | None
    extras: Any = None


class Batch(NamedTuple):
    """Batch of windows, with one target per window."""

    observation: Observation  # `[B, ...]` observation of the first step
    action: jax.Array  # `[B, ...]` action of the first step
    reward: jax.Array  # `[B]` discounted sum of the rewards of the window
    discount: jax.Array  # `[B]` discount of the bootstrap value: `gamma^steps`, zero where the episode terminated
    next_observation: Observation  # `[B, ...]` true successor of the last step
    weight: jax.Array  # `[B]` weight of the loss: the importance-sampling weight, and zero where there is no target
    # `[B]` positions of the windows in the buffer, for `set_priorities`; None without priorities.
    indices: jax.Array | None
    # `[B, ...]` action after the first step, and `[B]` bool whether there is one.
    next_action: Any = None


class Replay(NamedTuple):
    """Replay buffer of one shard, as functions of its state. Within an update, `add` precedes the first `sample`."""

    init: Callable[[TimeStep], Any]  # `(timestep) -> state`, an empty buffer; `timestep` `[N, ...]` is an example
    add: Callable[[Any, Trajectory], Any]  # `(state, trajectory) -> state`; all trajectories have the same length
    # `(state, key, importance_exponent=1.0) -> Batch`; without priorities the exponent has no effect.
    sample: Callable[..., Batch]
    # `(state, key) -> Transition`, the steps of windows `[W, B, ...]`, without targets.
    sample_steps: Callable[[Any, jax.Array], Transition]
    # `(state, indices, priorities [B]) -> state`; windows are sampled in proportion to priorities.
    set_priorities: Callable[[Any, Any, jax.Array], Any]
