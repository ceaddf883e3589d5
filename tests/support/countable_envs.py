"""Small environments whose every observation and reward is known."""

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Discrete, Vectorize
from stoix_like.envs.environment import Environment, restart, transition

KEY = jax.random.key(0)
ZERO = np.zeros(2, np.float32)


class Ramp(Environment):
    """Every pixel `[2, 2]` is the number of steps taken; the reward is the sum of the action."""

    observation_space = Box(np.array([[0.0, 1.0], [2.0, 3.0]]), 9.0, (2, 2))

    def __init__(self, ends_after=100, action_space=None):
        self.ends_after = ends_after
        self.action_space = action_space or Box(-1.0, 1.0, (2,))

    def view(self, count):
        return Observation(jnp.full((2, 2), count, jnp.float32))

    def reset(self, key):
        count = jnp.zeros((), jnp.int32)
        return count, restart(self.view(count))

    def step(self, key, state, action):
        count = state + 1
        return count, transition(self.view(count), jnp.sum(action), count >= self.ends_after, count >= 6)


def ramp(**options):
    return Vectorize(Ramp(**options))


class Counter(Environment):
    """The view holds the number of steps and the last action; the reward is the action."""

    observation_space = Box(-100.0, 100.0, (2,))
    action_space = Discrete(10)

    def __init__(self, ends_after=100, masked=False):
        self.ends_after, self.masked = ends_after, masked

    def observe(self, count, action):
        # With a mask, only actions above the number of steps are legal.
        return Observation(jnp.array([count, action], jnp.float32), jnp.arange(10) > count if self.masked else None)

    def reset(self, key):
        return jnp.zeros((), jnp.int32), restart(self.observe(0, 0))

    def step(self, key, state, action):
        return state + 1, transition(self.observe(state + 1, action), action, state + 1 >= self.ends_after, False)


def play(env, actions):
    keys = KEY[None]
    state, timestep = jax.jit(env.reset)(keys)
    timesteps, step = [timestep], jax.jit(env.step)
    for action in actions:
        state, timestep = step(keys, state, np.asarray(action)[None])
        timesteps.append(timestep)
    return jax.device_put([jax.tree.map(lambda leaf: leaf[0], timestep) for timestep in jax.device_get(timesteps)])


def taken(timesteps):
    return [int(t.observation.agent_view[1]) for t in timesteps[1:]]
