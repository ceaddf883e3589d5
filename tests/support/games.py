"""Games of several agents whose returns and values are known."""

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Dict, Discrete
from stoix_like.envs.environment import Environment, restart, transition


class Match(Environment):
    """A matrix game for a team of two, played three times: 8 for the actions (0, 1), 4 for (1, 0), otherwise 0.

    The agents observe who they are. The largest return is 24.
    """

    observation_space = Box(0.0, 1.0, (2,))
    action_space = Discrete(2)
    num_agents = 2
    team_reward = True

    def reset(self, key):
        return jnp.zeros((), jnp.int32), restart(Observation(jnp.eye(2)))

    def step(self, key, state, action):
        reward = jnp.asarray([[0.0, 8.0], [4.0, 0.0]])[action[0], action[1]]
        return state + 1, transition(Observation(jnp.eye(2)), reward, state >= 2, False)


class Wages(Environment):
    """Agents that are paid 1, 2, … per step whatever they do, and a time limit of three steps.

    As truncated episodes have a bootstrap value, that of agent i is `(i + 1) / (1 - gamma)`. The last agent is dead: it
    has one legal action, and is paid all the same. `order` are the agents by row; with `terminates`, the third step
    terminates the game; with `world`, agents also observe what all of them do.
    """

    action_space = Discrete(2)
    truncates_after = 3

    def __init__(self, order=(0, 1, 2), terminates=False, world=False):
        self.order, self.terminates, self.num_agents = tuple(order), terminates, len(order)
        own = Box(0.0, 1.0, (self.num_agents,))
        both = {"own": own, "world": Box(0.0, 1.0, (self.num_agents**2,))}
        self.observation_space = Dict(both) if world else own

    def observe(self):
        """Return who each agent is, and what it may do."""
        own = jnp.eye(self.num_agents)[jnp.asarray(self.order)]
        dead = jnp.asarray(self.order) == self.num_agents - 1
        world = jnp.broadcast_to(own.ravel(), (self.num_agents, self.num_agents**2))
        view = {"own": own, "world": world} if isinstance(self.observation_space, Dict) else own
        return Observation(view, jnp.stack([jnp.ones_like(dead), ~dead], axis=-1))

    def reset(self, key):
        return jnp.zeros((), jnp.int32), restart(self.observe())

    def step(self, key, state, action):
        ends = state >= 2
        reward = jnp.asarray(self.order, jnp.float32) + 1.0
        return state + 1, transition(self.observe(), reward, ends & self.terminates, ends & (not self.terminates))


class Steps(Environment):
    """Two agents whose reward is their own action; the view is the steps so far, then `key`, a random number."""

    observation_space = Box(0.0, 9.0, (2,))
    action_space = Discrete(3)
    num_agents = 2

    def __init__(self, ends_after=2):
        self.ends_after = ends_after

    def reset(self, key):
        drawn = jax.random.uniform(key)
        return (jnp.zeros((), jnp.int32), drawn), restart(self.observe(0, drawn), {"odd": 0})

    def step(self, key, state, action):
        count, drawn = state[0] + 1, jax.random.uniform(key)
        measures = {"odd": count % 2}
        return (count, drawn), transition(self.observe(count, drawn), action, count >= self.ends_after, False, measures)

    def observe(self, count, drawn):
        """Return the steps so far, plus one for the second agent, and the drawn number."""
        return Observation(jnp.stack([jnp.stack([count + 0.0, drawn]), jnp.stack([count + 1.0, drawn])]))


class Push(Wages):
    """Wages for three agents with continuous actions."""

    action_space = Box(-1.0, 1.0, (2,))

    def observe(self):
        return super().observe()._replace(action_mask=None)
