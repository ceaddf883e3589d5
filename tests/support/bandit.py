"""A gymnasium environment with one state: the reward is the action, 0 or 1, and every episode has one step."""

import gymnasium
import numpy as np


class Bandit(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action), True, False, {}


gymnasium.register("Bandit-v0", "support.bandit:Bandit")
