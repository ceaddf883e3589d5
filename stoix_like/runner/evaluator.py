"""Evaluation: whole episodes in fresh environments, apart from training."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from stoix_like.base_types import Actor, EpisodeMetrics, System
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.runner.anakin import partition_specs
from stoix_like.runner.devices import DEVICE_AXIS


class Episodes(NamedTuple):
    """Whole episodes.

    Attributes:
        returns: `[E]`.
        lengths: `[E]`, in steps.
        finished: `[E]` bool; False where an episode was cut before its end.
    """

    returns: jax.Array
    lengths: jax.Array
    finished: jax.Array


def make_evaluator(
    build: Callable[[dict[str, Any]], System],
    env: VectorEnvironment,
    mesh: Mesh,
    num_episodes: int,
    max_steps: int,
    population: int = 1,
) -> Any:
    """A function that plays whole episodes by `eval_act`.

    Args:
        build: makes the system from the hyperparameters that vary between members.
        env: environments without automatic reset.
        mesh: the devices, each of which plays its share.
        num_episodes: episodes that are asked for, of each member.
        max_steps: an episode that has not ended by then counts as far as it went.
        population: members; with more than one, every argument and result begins with this axis.

    Returns:
        `(shared, hyperparams, key) -> Episodes`, not yet compiled, of at least `num_episodes` episodes: as many on
        each device.
    """
    num_devices = mesh.shape[DEVICE_AXIS]
    per_device = -(-num_episodes // num_devices)

    def play(shared: Any, hyperparams: dict[str, Any], keys: jax.Array) -> Episodes:
        return _play(build(hyperparams), env, per_device, max_steps, shared, keys)

    def split(key: jax.Array) -> jax.Array:
        return jax.random.split(key, num_devices)

    if population > 1:
        play, split = jax.vmap(play), jax.vmap(split)
    one, each = partition_specs(population)
    play_on_devices = jax.shard_map(play, mesh=mesh, in_specs=(one, one, each), out_specs=each, check_vma=False)
    return jax.jit(lambda shared, hyperparams, key: play_on_devices(shared, hyperparams, split(key)))


def _play(
    system: System, env: VectorEnvironment, num_envs: int, max_steps: int, shared: Any, keys: jax.Array
) -> Episodes:
    """One episode in each of `num_envs` environments; those that ended first wait for the last."""
    reset_key, key = jax.random.split(keys[0])
    env_state, timestep = env.reset(jax.random.split(reset_key, num_envs))
    actor = Actor(env_state, timestep, system.init_carry(num_envs))
    State = tuple[Actor, EpisodeMetrics, jax.Array, jax.Array]  # noqa: N806

    def unfinished(state: State) -> jax.Array:
        _, episode, _, steps = state
        return ~jnp.all(episode.finished) & (steps < max_steps)

    def step(state: State) -> State:
        actor, episode, key, steps = state
        key, act_key, env_key = jax.random.split(key, 3)
        carry, action, _ = system.eval_act(shared, actor, act_key)
        env_state, timestep = env.step(jax.random.split(env_key, num_envs), actor.env_state, action)
        episode = jax.tree.map(partial(jnp.where, episode.finished), episode, timestep.episode)
        return Actor(env_state, timestep, carry), episode, key, steps + 1

    start = (actor, timestep.episode, key, jnp.zeros((), jnp.int32))
    _, episode, _, _ = jax.lax.while_loop(unfinished, step, start)
    return Episodes(episode.episode_return, episode.episode_length, episode.finished)
