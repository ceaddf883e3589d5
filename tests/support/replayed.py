"""Steps with known values, and what a replay buffer returns of them."""

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


def make(schema=ReplayConfig, reward_scale=1.0, **values):
    defaults = {
        "total_buffer_size": 120,
        "total_batch_size": 64,
        "epochs": 1,
        "n_step": 1,
        "store_next_observation": True,
    }
    config = schema(**{**defaults, **values})
    spec = SystemSpec(Box(0, 1, (1,)), Discrete(3), SimpleNamespace(), Axes(), 1, NUM_ENVS, 1, True)
    return make_replay(config, spec, 0.5, reward_scale)


def view(numbers, dtype=jnp.float32):
    return Observation(jnp.asarray(numbers, dtype)[..., None])


def steps(numbers, rewards, terminated, truncated, dtype=jnp.float32):
    """Build a trajectory `[T, N]` of numbers as observations, offset by 100 per environment; successors end in .5."""
    column = [jnp.asarray(values)[:, None] for values in (numbers, rewards, terminated, truncated)]
    number, reward, terminated, truncated = (jnp.broadcast_to(values, (len(numbers), NUM_ENVS)) for values in column)
    number = number + 100 * jnp.arange(NUM_ENVS)[None]
    transitions = Transition(
        observation=view(number, dtype),
        action=(number % 3).astype(jnp.int32),
        reward=reward.astype(jnp.float32),
        terminated=terminated,
        truncated=truncated,
        next_observation=view(number + 0.5, dtype),
        is_first=jnp.zeros(reward.shape, bool),
        extras=(),
    )
    return Trajectory(transitions, ())


def empty(replay, dtype=jnp.float32):
    timestep = restart(view(0.0, dtype))
    return replay.init(jax.tree.map(lambda x: jnp.stack([x] * NUM_ENVS), timestep))


def windows(replay, state, seed=0):
    """Sample windows; return reward, discount, successor and weight of each by its first observation."""
    batch = jax.jit(replay.sample)(state, jax.random.key(seed))
    rows = zip(
        np.ravel(batch.observation.agent_view).tolist(),
        np.ravel(batch.action).tolist(),
        np.ravel(batch.reward).tolist(),
        np.ravel(batch.discount).tolist(),
        np.ravel(batch.next_observation.agent_view).tolist(),
        np.ravel(batch.weight).tolist(),
        strict=True,
    )
    found = {}
    for number, action, *rest in rows:
        assert action == number % 3
        assert found.setdefault(number, rest) == rest
    return found
