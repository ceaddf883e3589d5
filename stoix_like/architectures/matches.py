"""Matches between two policies of a system, in games that it plays from both seats."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from stoix_like.architectures.acting import random_act, start_episodes
from stoix_like.architectures.evaluator import Episodes
from stoix_like.architectures.types import Hyperparams
from stoix_like.base_types import RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.jax_utils import largest_of_batch


def make_matches(
    build: Callable[[Hyperparams], System],
    env: VectorEnvironment,
    mesh: Mesh,
    num_pairs: int,
    max_steps: int,
    openings: int = 0,
) -> Any:
    """Build a function that plays games between two policies with `eval_act`, each opening once from either seat.

    Without random openings, two policies that draw no numbers play the same two games over and over.

    Returns `(shared, hyperparams, key) -> Episodes`, jitted but not yet compiled.
    """

    def play(shared: Any, hyperparams: Hyperparams, key: jax.Array) -> Episodes:
        with jax.named_scope("match"):
            return _play(build, env, num_pairs, max_steps, openings, (shared, hyperparams), key)

    spec = PartitionSpec()
    return jax.jit(jax.shard_map(play, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False))


def _play(
    build: Callable[[Hyperparams], System],
    env: VectorEnvironment,
    num_pairs: int,
    max_steps: int,
    openings: int,
    policies: tuple[Any, Hyperparams],
    key: jax.Array,
) -> Episodes:
    reset_key, key = jax.random.split(key)
    keys = jax.random.split(reset_key, num_pairs)
    first = jax.vmap(lambda policy: start_episodes(env, build(policy[1]), keys))(policies)

    def unfinished(loop_state: Any) -> jax.Array:
        _, _, episode, _, steps = loop_state
        return largest_of_batch(~episode.finished) & (steps < max_steps)

    def step(loop_state: Any) -> Any:
        state, waiting, episode, key, steps = loop_state
        key, open_key, act_key, env_key = jax.random.split(key, 4)
        env_keys = jax.random.split(env_key, num_pairs)

        def move(policy: tuple[Any, Hyperparams], state: RolloutState, act_key: jax.Array) -> RolloutState:
            shared, hyperparams = policy
            act = build(hyperparams).eval_act
            carry, action, _ = act(shared, state, act_key)
            _, opening, _ = random_act(lambda *_: (state.carry, action, ()), env)(shared, state, open_key)
            action = jnp.where(steps < openings, opening, action)
            env_state, timestep = env.step(env_keys, state.env_state, action)
            return RolloutState(env_state, timestep, carry)

        # In the games that A started, A moves at even steps; in the others, B does.
        movers = jax.tree.map(lambda leaf: leaf[(jnp.arange(2) + steps) % 2], policies)
        state = jax.vmap(move)(movers, state, jax.random.split(act_key, 2))
        episode = jax.tree.map(partial(jnp.where, episode.finished), episode, state.timestep.episode)
        return state._replace(carry=waiting), state.carry, episode, key, steps + 1

    # The carry of the player that waits for its turn; before the first move, both have the same one.
    start = (first, jax.tree.map(lambda leaf: leaf[::-1], first.carry), first.timestep.episode, key, jnp.zeros((), int))
    _, _, episode, _, _ = jax.lax.while_loop(unfinished, step, start)
    # Recorded returns belong to the player who moved first.
    sign = jnp.array([[1.0], [-1.0]], episode.episode_return.dtype)
    return Episodes(sign * episode.episode_return, episode.episode_length, episode.finished)
