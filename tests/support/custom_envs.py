"""Environments and wrappers of a user's own."""

import jax
import jax.numpy as jnp
from flax import struct
from gymnax.environments import environment, spaces

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Discrete, Environment
from stoix_like.envs.environment import restart, transition
from stoix_like.envs.wrappers import CountSteps, RewardWrapper, Wrapper


class Corridor(Environment):
    """A walk from 0 to `size`, one step right or left; reaching the end pays 1, and 0 has no step left."""

    action_space = Discrete(2)

    def __init__(self, size=4, limit=20):
        if size < 1:
            raise ValueError(f"size={size} must be at least 1")
        self.size, self.limit = size, limit
        self.observation_space = Box(0.0, 1.0, (1,))

    def reset(self, key):
        del key
        zero = jnp.zeros((), jnp.int32)
        return (zero, zero), restart(self.observe(zero))

    def step(self, key, state, action):
        del key
        place = jnp.maximum(state[0] + 2 * action - 1, 0)
        state, at_end = (place, state[1] + 1), place >= self.size
        return state, transition(self.observe(place), at_end, at_end, state[1] >= self.limit)

    def observe(self, place):
        return Observation((place / self.size)[None], jnp.stack([place > 0, True]))


def make_corridor(**kwargs):
    return Corridor(**kwargs)


@struct.dataclass
class WalkState(environment.EnvState):
    place: jax.Array


@struct.dataclass
class WalkParams(environment.EnvParams):
    max_steps_in_episode: int = 7
    goal: float = 1.0


class GymnaxWalk(environment.Environment):
    """The corridor without a mask, in the interface of gymnax."""

    def __init__(self, size=4):
        self.size = size

    @property
    def default_params(self):
        return WalkParams()

    def reset_env(self, key, params):
        return jnp.zeros((1,)), WalkState(time=0, place=jnp.zeros((), jnp.int32))

    def step_env(self, key, state, action, params):
        place = jnp.maximum(state.place + 2 * action - 1, 0)
        at_end = place >= self.size
        view = (place / self.size)[None]
        return view, WalkState(time=state.time + 1, place=place), params.goal * at_end, at_end, {}

    def action_space(self, params):
        return spaces.Discrete(2)

    def observation_space(self, params):
        return spaces.Box(0.0, 1.0, (1,))


class GymnaxNarrow(GymnaxWalk):
    """A walk whose observations are shorter than its space says."""

    def observation_space(self, params):
        return spaces.Box(jnp.zeros(2), jnp.ones(2), (2,))


class Spot(Environment):
    """One step: an image of 6 x 6 pixels shows a spot, and the reward is minus the squared distance to its column."""

    observation_space = Box(0, 255, (6, 6, 1), jnp.uint8)
    action_space = Box(-1.0, 1.0, (1,))

    def reset(self, key):
        row, column = jax.random.randint(key, (2,), 0, 6)
        image = jnp.zeros((6, 6, 1), jnp.uint8).at[row, column].set(255)
        return (image, column), restart(Observation(image))

    def step(self, key, state, action):
        del key
        image, column = state
        distance = action[0] - (column / 2.5 - 1.0)
        return state, transition(Observation(image), -(distance**2), True, False)


class OwnReset(Wrapper):
    """Overrides `reset`, which environments on the host call once."""

    def reset(self, keys):
        return self.env.reset(keys)


class AddReward(Wrapper):
    def __init__(self, env, amount=1.0):
        super().__init__(env)
        self.amount = amount

    def step(self, keys, state, action):
        state, timestep = self.env.step(keys, state, action)
        return state, timestep._replace(reward=timestep.reward + self.amount)


class AddRewardAlone(RewardWrapper):
    """The same, as one that says that it changes nothing else."""

    def reward(self, reward):
        return reward + 1.0


def AddRewardAndMore(env):
    return AddRewardAlone(AddReward(env))


def AddRewardAloneAndMore(env):
    return CountSteps(AddRewardAlone(env))


class WholeRewards(Wrapper):
    """A wrapper whose rewards are integers, which no compiled rollout accepts."""

    def step(self, keys, state, action):
        state, timestep = self.env.step(keys, state, action)
        return state, timestep._replace(reward=timestep.reward.astype(jnp.int32))


def not_a_wrapper(env):
    return None
