"""Evaluation: whole episodes in fresh environments, apart from training."""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from stoix_like.base_types import Actor, EpisodeMetrics, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.runner.devices import DEVICE_AXIS


class Episodes(NamedTuple):
    """Whole episodes: returns `[E]` and lengths `[E]` in steps."""

    returns: jax.Array
    lengths: jax.Array


def make_evaluator(system: System, env: VectorEnvironment, mesh: Mesh, num_episodes: int) -> Any:
    """A function that plays whole episodes by `eval_act`.

    Args:
        system: the algorithm.
        env: environments without automatic reset.
        mesh: the devices, each of which plays its share.
        num_episodes: episodes that are asked for.

    Returns:
        `(shared, key) -> Episodes`, not yet compiled, of at least `num_episodes` episodes: as many on each device.
    """
    per_device = -(-num_episodes // mesh.size)

    def evaluate(shared: Any, key: jax.Array) -> Episodes:
        keys = jax.random.split(key, mesh.size)
        play = partial(_play, system, env, per_device)
        replicated, split = PartitionSpec(), PartitionSpec(DEVICE_AXIS)
        play_on_devices = jax.shard_map(play, mesh=mesh, in_specs=(replicated, split), out_specs=split, check_vma=False)
        return play_on_devices(shared, keys)

    return jax.jit(evaluate)


def _play(system: System, env: VectorEnvironment, num_envs: int, shared: Any, keys: jax.Array) -> Episodes:
    """One episode in each of `num_envs` environments; those that ended first wait for the last."""
    reset_key, key = jax.random.split(keys[0])
    env_state, timestep = env.reset(jax.random.split(reset_key, num_envs))
    actor = Actor(env_state, timestep, system.init_carry(num_envs))
    State = tuple[Actor, EpisodeMetrics, jax.Array]  # noqa: N806

    def unfinished(state: State) -> jax.Array:
        return ~jnp.all(state[1].finished)

    def step(state: State) -> State:
        actor, episode, key = state
        key, act_key, env_key = jax.random.split(key, 3)
        carry, action, _ = system.eval_act(shared, actor, act_key)
        env_state, timestep = env.step(jax.random.split(env_key, num_envs), actor.env_state, action)
        episode = jax.tree.map(partial(jnp.where, episode.finished), episode, timestep.episode)
        return Actor(env_state, timestep, carry), episode, key

    _, episode, _ = jax.lax.while_loop(unfinished, step, (actor, timestep.episode, key))
    return Episodes(episode.episode_return, episode.episode_length)
