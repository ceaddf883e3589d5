"""Rollouts in the environments of one shard."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.architectures.acting import Act, act_and_step
from stoix_like.base_types import EpisodeMetrics, RolloutState, TimeStep, Trajectory, Transition
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.accelerate.packing import pack_outputs, pack_state, unpack, unpack_state
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.accelerate.randomness import MAX_BYTES_PER_ENV, count_equations, hoist
from stoix_like.utils.accelerate.successors import keep_truncated, no_successors, with_last

# Steps in one pass of a loop share its counter, its copies and the kernel that stores their results: compiled for an
# H200, PPO on CartPole starts 13 kernels per step in a pass of one, 9.8 in a pass of four. It also compiles longer.
_MAX_UNROLL = 4
_MAX_EQUATIONS = 1000

# Stands for an entry of a step that is not stored.
NOTHING: Any = ()


class Rollout(NamedTuple):
    """A trajectory `[T, N, ...]`, and the episode metrics `[T, N]` of every step."""

    trajectory: Trajectory
    episodes: EpisodeMetrics


def rollout(
    env: VectorEnvironment,
    act: Act,
    shared: Any,
    state: RolloutState,
    key: jax.Array,
    length: int,
    hoist_randomness: bool = True,
    most_truncations: int | None = None,
) -> tuple[RolloutState, Rollout]:
    """Act for `length` steps in every environment."""
    num_envs = state.timestep.reward.shape[0]
    key_start, key_act, key_env = jax.random.split(key, 3)
    first = state._replace(env_state=env.start_rollout(key_start, state.env_state))

    def step(carry: tuple[RolloutState, Any], keys: tuple[jax.Array, jax.Array]) -> Any:
        state, kept = carry
        after, action, extras = act_and_step(env, act, shared, state, *keys)
        # Whether a step is the first of its episode is known from the one before; stored, it would cost a copy.
        transition = make_transition(state.timestep, action, extras, after.timestep)._replace(is_first=NOTHING)
        if most_truncations is not None:
            kept = keep_truncated(kept[0], kept[1], transition.next_observation, transition.truncated)
            transition = transition._replace(next_observation=NOTHING)
        return (after, kept), pack_outputs((transition, after.timestep.episode), 1)

    slots: Any = ()
    if most_truncations is not None:
        successor = first.timestep.next_observation
        slots = no_successors(successor, most_truncations), jnp.zeros((num_envs,), jnp.int32)
    carry: Any = first, slots
    keys = (jax.random.split(key_act, length), jax.random.split(key_env, (length, num_envs)))
    inputs: Any = keys
    if hoist_randomness:
        example = jax.tree.map(lambda leaf: leaf[0], keys)
        draw, step = hoist(step, carry, example, MAX_BYTES_PER_ENV * num_envs)
        inputs = jax.vmap(draw)(keys)
    unroll = _unroll(step, carry, jax.tree.map(lambda leaf: leaf[0], inputs), length)

    # A single step copies nothing.
    pack_carry = partial(pack_state, num_envs=num_envs) if length > 1 else lambda carry: carry

    def packed_step(carry: Any, inputs: Any) -> tuple[Any, Any]:
        carry, outputs = step(unpack_state(carry), inputs)
        return pack_carry(carry), outputs

    carry, steps = jax.lax.scan(packed_step, pack_carry(carry), inputs, length, unroll=unroll)
    last, slots = unpack_state(carry)
    transitions, episodes = unpack(steps)
    ended = transitions.terminated | transitions.truncated
    is_first = jnp.concatenate([first.timestep.starts_episode[None], ended[:-1]])
    transitions = transitions._replace(is_first=is_first)
    if most_truncations is not None:
        transitions = transitions._replace(next_observation=with_last(slots[0], last.timestep.next_observation))
    return last, Rollout(Trajectory(transitions, first.carry), episodes)


def _unroll(step: Callable[[Any, Any], Any], carry: Any, inputs: Any, length: int) -> int:
    """Return how many steps one pass of the loop takes: several on accelerators, if they compile quickly."""
    if on_cpu():
        return 1
    small = count_equations(jax.make_jaxpr(step)(carry, inputs).jaxpr) <= _MAX_EQUATIONS
    return math.gcd(length, _MAX_UNROLL) if small else 1


def make_transition(before: TimeStep, action: jax.Array, extras: Any, after: TimeStep) -> Transition:
    """Join what is remembered of one step, `[N, ...]`."""
    return Transition(
        observation=before.observation,
        action=action,
        reward=after.reward,
        terminated=after.terminated,
        truncated=after.truncated,
        next_observation=after.next_observation,
        is_first=before.starts_episode,
        extras=extras,
    )
