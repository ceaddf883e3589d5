"""A game with the parallel interface of PettingZoo: agents of two kinds, one of which leaves early."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Errand(ParallelEnv):
    """Each agent is paid its action; the short one leaves after two steps, the long one after `length`.

    Args:
        length: steps of a game.
        cut: whether the game is truncated then, and does not terminate.
    """

    metadata = {"name": "errand"}  # noqa: RUF012
    render_mode = None

    def __init__(self, length=4, cut=True):
        self.possible_agents, self.length, self.cut = ["short", "long"], length, cut

    def observation_space(self, agent):
        """Return the steps so far, and for the long agent the number of actions."""
        return spaces.Box(0.0, 9.0, (1 if agent == "short" else 2,), np.float32)

    def action_space(self, agent):
        """Return two or three actions."""
        return spaces.Discrete(2 if agent == "short" else 3)

    def reset(self, seed=None, options=None):
        """Start a game."""
        self.agents, self.count = list(self.possible_agents), 0
        return self.observe(), self.infos()

    def step(self, actions):
        """Take a step."""
        assert set(actions) == set(self.agents)
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.count += 1
        left = {"short": self.count >= 2, "long": self.count >= self.length}
        observed, infos = self.observe(), self.infos()
        cut = {agent: left[agent] and self.cut and agent == "long" for agent in self.agents}
        died = {agent: left[agent] and not cut[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not left[agent]]
        return observed, {agent: float(action) for agent, action in actions.items()}, died, cut, infos

    def observe(self):
        """Return the observations of the agents that are left."""
        return {agent: np.full(self.observation_space(agent).shape, self.count, np.float32) for agent in self.agents}

    def infos(self):
        """Tell that the long agent cannot choose its second action in the first step."""
        mask = np.array([1, int(self.count > 0), 1], np.int8)
        return {agent: {"action_mask": mask} if agent == "long" else {} for agent in self.agents}
