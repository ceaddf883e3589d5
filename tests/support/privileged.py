"""An environment with the observations of MuJoCo Playground's robots: of the agent, and of the simulator."""

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation
from stoix_like.envs.environment import Environment, restart, transition
from stoix_like.envs.spaces import Box, Dict, Discrete

STATE, PRIVILEGED = 3, 5


class Privileged(Environment):
    """Episodes of eight steps; the reward is 1 for an action on the side of the last hidden number.

    The agent observes the hidden numbers with noise, a critic without it. Continuous actions are numbers in [-1, 1], on
    the side of their sign, instead of 0 and 1.
    """

    observation_space = Dict({"state": Box(-9.0, 9.0, (STATE,)), "privileged_state": Box(-9.0, 9.0, (PRIVILEGED,))})

    def __init__(self, continuous=True):
        self.action_space = Box(-1.0, 1.0, (1,)) if continuous else Discrete(2)

    def reset(self, key):
        state, view = self._next(key, jnp.zeros((), jnp.int32))
        return state, restart(view)

    def step(self, key, state, action):
        steps, hidden = state
        reward = (action.sum() > 0) == (hidden[-1] > 0)
        state, view = self._next(key, steps + 1)
        return state, transition(view, reward, False, steps >= 7)

    def _next(self, key, steps):
        hidden_key, noise_key = jax.random.split(key)
        hidden = jax.random.uniform(hidden_key, (PRIVILEGED,), minval=-1.0)
        noisy = hidden[-STATE:] + 0.1 * jax.random.normal(noise_key, (STATE,))
        return (steps, hidden), Observation({"state": jnp.clip(noisy, -9.0, 9.0), "privileged_state": hidden})
