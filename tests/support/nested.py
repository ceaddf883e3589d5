"""A suite of environments whose observations are dictionaries."""

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation
from stoix_like.envs.environment import Environment, Vectorize, restart, transition
from stoix_like.envs.spaces import Box, Dict, Discrete


class Nested(Environment):
    """Episodes of four steps; the reward is 1 for an action on the side that image and features agree on.

    The image is bright or dark, and the first feature positive or negative, at random. The side is 1 if both are high
    or both low, else 0; continuous actions are on side 1 if positive.
    """

    observation_space = Dict(
        {"pixels": Box(0, 255, (6, 6, 1), jnp.uint8), "inner": Dict({"features": Box(-1.0, 1.0, (3,))})}
    )

    def __init__(self, action_space):
        self.action_space = action_space

    def reset(self, key):
        sides = jax.random.bernoulli(key, shape=(2,))
        return (jnp.zeros((), jnp.int32), sides), restart(_observe(sides))

    def step(self, key, state, action):
        steps, sides = state
        reward = (action.sum() > 0) == (sides[0] == sides[1])
        sides = jax.random.bernoulli(key, shape=(2,))
        return (steps + 1, sides), transition(_observe(sides), reward, steps >= 3, False)


def _observe(sides):
    pixels = jnp.full((6, 6, 1), 255 * sides[0], jnp.uint8)
    features = jnp.full((3,), 2.0 * sides[1] - 1.0)
    return Observation({"pixels": pixels, "inner": {"features": features}})


SCENARIOS = {"discrete": Discrete(2), "continuous": Box(-1.0, 1.0, (1,))}


def scenarios():
    return list(SCENARIOS)


def make(name, kwargs, params):
    return Vectorize(Nested(SCENARIOS[name]))
