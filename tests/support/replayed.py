"""Steps with known values, and what a replay buffer returns of them."""

import functools
from types import SimpleNamespace
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, Observation, SystemSpec, Trajectory, Transition
from stoix_like.envs.environment import restart
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.utils.replay import ReplayConfig, make_replay

NUM_ENVS = 2


class Prioritised(ReplayConfig):
    prioritised: ClassVar[bool] = True


# Six steps of each environment, with rewards 1, 2, 4, 8, 16, 32; step 2 terminates, step 4 is truncated. gamma = 1/2.
SIX = ([0, 1, 2, 3, 4, 5], [1, 2, 4, 8, 16, 32], [0, 0, 1, 0, 0, 0], [0, 0, 0, 0, 1, 0])


SIZES = {
    **{"total_buffer_size": 120, "total_batch_size": 64, "epochs": 1},
    **{"n_step": 1, "store_next_observation": True},
}


def spec(space=Box(0, 1, (1,)), num_actions=3, num_envs=NUM_ENVS, num_updates=1, num_shards=1, **fields):  # noqa: B008
    networks = SimpleNamespace()
    return SystemSpec(space, Discrete(num_actions), networks, Axes(), num_updates, num_envs, num_shards, True, **fields)


def make(schema=ReplayConfig, reward_scale=1.0, **values):
    return make_replay(schema(**{**SIZES, **values}), spec(), 0.5, reward_scale)


def view(numbers, dtype=np.float32):
    return Observation(np.asarray(numbers, dtype)[..., None])


def steps(numbers, rewards, terminated, truncated, dtype=np.float32):
    """Build a trajectory `[T, N]` of numbers as observations, offset by 100 per environment; successors end in .5."""
    column = [np.asarray(values)[:, None] for values in (numbers, rewards, terminated, truncated)]
    number, reward, terminated, truncated = (np.broadcast_to(values, (len(numbers), NUM_ENVS)) for values in column)
    number = number + 100 * np.arange(NUM_ENVS)[None]
    transitions = Transition(
        observation=view(number, dtype),
        action=number % 3,
        reward=reward.astype(np.float32),
        terminated=terminated,
        truncated=truncated,
        next_observation=view(number + 0.5, dtype),
        is_first=np.zeros(reward.shape, bool),
        extras=(),
    )
    return jax.device_put(Trajectory(transitions, ()))


@functools.partial(jax.jit, static_argnums=1)
def first(observation, num_envs=NUM_ENVS):
    """Return the time steps of environments that start with the same observation."""
    return jax.tree.map(lambda x: jnp.stack([x] * num_envs), restart(observation))


def empty(replay, dtype=np.float32):
    return replay.init(first(view(0.0, dtype)))


def windows(replay, state, seed=0):
    """Sample windows; return reward, discount, successor and weight of each by its first observation."""
    batch = jax.jit(replay.sample)(state, jax.random.key(seed))
    views, successors = batch.observation.agent_view, batch.next_observation.agent_view
    columns = (views, batch.action, batch.reward, batch.discount, successors, batch.weight)
    found = {}
    for number, action, *rest in zip(*(np.ravel(column).tolist() for column in columns), strict=True):
        assert action == number % 3
        assert found.setdefault(number, rest) == rest
    return found
