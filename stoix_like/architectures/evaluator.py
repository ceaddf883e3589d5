"""Evaluation on whole episodes, separate from training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from stoix_like.architectures.acting import act_and_step, start_episodes
from stoix_like.architectures.axes import DEVICE_AXIS, partition_specs
from stoix_like.architectures.episodes import of_games
from stoix_like.architectures.types import Hyperparams
from stoix_like.base_types import EpisodeMetrics, RolloutState, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.jax_utils import largest_of_batch


class Episodes(NamedTuple):
    """Results of E episodes."""

    returns: jax.Array  # `[E]`, undiscounted
    lengths: jax.Array  # `[E]`, in steps
    finished: jax.Array  # `[E]` bool, False if the episode did not end within the step limit
    measures: dict[str, jax.Array] = {}  # noqa: RUF012 (never changed)


def make_evaluator(
    build: Callable[[Hyperparams], System],
    env: VectorEnvironment,
    mesh: Mesh,
    num_episodes: int,
    max_steps: int,
    num_members: int = 1,
) -> Any:
    """Build a function that plays whole episodes with `eval_act`."""
    num_devices = mesh.shape[DEVICE_AXIS]
    per_device = -(-num_episodes // num_devices)

    def play(shared: Any, hyperparams: Hyperparams, keys: jax.Array) -> Episodes:
        with jax.named_scope("evaluate"):
            return _play(build(hyperparams), env, per_device, max_steps, shared, keys)

    def split(key: jax.Array) -> jax.Array:
        return jax.random.split(key, num_devices)

    if num_members > 1:
        play, split = jax.vmap(play), jax.vmap(split)
    one, each = partition_specs(num_members)
    play_on_devices = jax.shard_map(play, mesh=mesh, in_specs=(one, one, each), out_specs=each, check_vma=False)
    return jax.jit(lambda shared, hyperparams, key: play_on_devices(shared, hyperparams, split(key)))


def _play(
    system: System, env: VectorEnvironment, num_envs: int, max_steps: int, shared: Any, keys: jax.Array
) -> Episodes:
    """Play one episode in each of `num_envs` environments, until the last one ends."""
    reset_key, key = jax.random.split(keys[0])
    num_rows = num_envs * env.num_agents
    first = start_episodes(env, system, jax.random.split(reset_key, num_rows))
    LoopState = tuple[RolloutState, EpisodeMetrics, jax.Array, jax.Array]  # noqa: N806

    def unfinished(loop_state: LoopState) -> jax.Array:
        _, episode, _, steps = loop_state
        # Members of a population play until the last of them is done.
        return largest_of_batch(~episode.finished) & (steps < max_steps)

    def step(loop_state: LoopState) -> LoopState:
        state, episode, key, steps = loop_state
        key, act_key, env_key = jax.random.split(key, 3)
        state, _, _ = act_and_step(env, system.eval_act, shared, state, act_key, jax.random.split(env_key, num_rows))
        episode = jax.tree.map(partial(jnp.where, episode.finished), episode, state.timestep.episode)
        return state, episode, key, steps + 1

    start = (first, first.timestep.episode, key, jnp.zeros((), jnp.int32))
    last, episode, _, _ = jax.lax.while_loop(unfinished, step, start)
    env.release(last.env_state)
    return Episodes(*of_games(episode, env.num_agents))
