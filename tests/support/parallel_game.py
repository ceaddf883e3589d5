"""A game with the parallel interface of PettingZoo: agents of two kinds, one of which leaves early."""

import numpy as np
from gymnasium import spaces
from pettingzoo import ParallelEnv


class Errand(ParallelEnv):
    """Each agent is paid the sum of its action; the short one leaves after two steps, the long one after `length`.

    With `cut`, the game is truncated then, and does not terminate.
    """

    metadata = {"name": "errand"}  # noqa: RUF012
    render_mode = None

    def __init__(self, length=4, cut=True):
        self.possible_agents, self.length, self.cut = ["short", "long"], length, cut

    def observation_space(self, agent):
        return spaces.Box(0.0, 9.0, (1 if agent == "short" else 2,), np.float32)

    def action_space(self, agent):
        return spaces.Discrete(2 if agent == "short" else 3)

    def reset(self, seed=None, options=None):
        self.agents, self.count = list(self.possible_agents), 0
        return self.observe(), self.infos()

    def step(self, actions):
        assert set(actions) == set(self.agents)
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.count += 1
        left = {"short": self.count >= 2, "long": self.count >= self.length}
        observed, infos = self.observe(), self.infos()
        cut = {agent: left[agent] and self.cut and agent == "long" for agent in self.agents}
        died = {agent: left[agent] and not cut[agent] for agent in self.agents}
        self.agents = [agent for agent in self.agents if not left[agent]]
        return observed, {agent: float(np.sum(action)) for agent, action in actions.items()}, died, cut, infos

    def observe(self):
        return {agent: np.full(self.observation_space(agent).shape, self.count, np.float32) for agent in self.agents}

    def infos(self):
        """Tell that the long agent cannot choose its second action in the first step."""
        mask = np.array([1, int(self.count > 0), 1], np.int8)
        return {agent: {"action_mask": mask} if agent == "long" else {} for agent in self.agents}


class Mixture(Errand):
    """The short agent observes bytes, the long one numbers in other bounds; none of its actions is legal at first."""

    def __init__(self, kinds=((np.uint8, 255), (np.float32, 1))):
        super().__init__()
        self.kinds = dict(zip(self.possible_agents, kinds, strict=True))

    def observation_space(self, agent):
        dtype, high = self.kinds[agent]
        return spaces.Box(0 if dtype == np.uint8 else -high, high, (2,), dtype)

    def observe(self):
        return {agent: np.array([high, high / 2]).astype(dtype) for agent, (dtype, high) in self.kinds.items()}

    def infos(self):
        """Tell legal actions of the long agent alone."""
        return {"short": {}, "long": {"action_mask": np.full(3, self.count > 0, np.int8)}}


class Kept(Errand):
    """Agents that are done stay in the list of those that act; the short one is truncated, and says so once."""

    def step(self, actions):
        self.count += 1
        done = self.count == self.length
        terminated = {"short": False, "long": done and not self.cut}
        truncated = {"short": self.count == 2, "long": done and self.cut}
        return self.observe(), dict.fromkeys(self.agents, 0.0), terminated, truncated, self.infos()


class Known(Errand):
    """Errands with a state of their own, in one array: the steps so far, and 7."""

    state_space = spaces.Box(0.0, 9.0, (2,), np.float64)

    def __init__(self):
        super().__init__()
        self.array = np.array([0.0, 7.0])

    def state(self):
        self.array[0] = self.count
        return self.array


class Painted(Errand):
    """Errands with pictures, whose pixels are the steps so far."""

    metadata = {"name": "painted", "render_fps": 4}  # noqa: RUF012

    def __init__(self, **kwargs):
        super().__init__()
        self.render_mode = kwargs.get("render_mode")

    def render(self):
        return np.full((4, 1280, 3), self.count, np.uint8) if self.render_mode == "rgb_array" else None


class Alone(Errand):
    """The long agent without the other one."""

    def __init__(self):
        super().__init__()
        self.possible_agents = ["long"]


class Push(Errand):
    """Agents with parts of one vector of forces, up to `highs`, or with other bounds."""

    def __init__(self, highs=((1,), (1, 2))):
        super().__init__()
        self.highs = dict(zip(self.possible_agents, highs, strict=True))

    def action_space(self, agent):
        high = np.array(self.highs[agent], np.float32)
        return spaces.Box(-high, high, high.shape, np.float32)
