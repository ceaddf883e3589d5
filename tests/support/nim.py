"""Nim with one heap, a game for two: whoever takes the last stone wins; and a system that learns it."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, Observation, System, SystemConfig, SystemSpec
from stoix_like.envs import Box, Discrete, Environment, find_opponent
from stoix_like.envs.environment import restart, transition
from support import toys


class Heap(NamedTuple):
    """The stones that are left, and the player to move, 0 or 1; the agent is player 0."""

    stones: jax.Array
    player: jax.Array


class Nim(Environment):
    """Players take one or two stones in turn; a heap of a multiple of three is lost for the player to move."""

    action_space = Discrete(2)

    def __init__(self, size=4, opponent=None):
        self.size, self.opponent = size, opponent
        self.num_players = 2 if opponent is None else 1
        self.observation_space = Box(0.0, 1.0, (size + 1,))

    def reset(self, key):
        """See `Environment.reset`: a coin decides who starts."""
        heap, _ = self.reply(key, self.start(key), jnp.zeros(()))
        return heap, restart(self.observe(heap))

    def start(self, key):
        return Heap(jnp.full((), self.size, jnp.int32), jax.random.bernoulli(key).astype(jnp.int32))

    def step(self, key, state, action):
        heap, reward = self.reply(key, *take(state, action))
        return heap, transition(self.observe(heap), reward, heap.stones == 0, False)

    def against(self, opponent):
        """See `Environment.against`: the import path of a function (key, heap) -> action; `random` takes one stone."""
        return Nim(self.size, find_opponent(opponent, self.start, take_one))

    def reply(self, key, heap, reward):
        """Let the opponent move if there is one and it is its turn."""
        if self.opponent is None:
            return heap, reward
        after, lost = take(heap, self.opponent(key, heap))
        turn = (heap.player == 1) & (heap.stones > 0)
        return jax.tree.map(lambda new, old: jnp.where(turn, new, old), (after, reward - lost), (heap, reward))

    def observe(self, heap):
        """Return the number of stones, one-hot, and the legal moves; all are legal once none is left."""
        legal = (jnp.arange(1, 3) <= heap.stones) | (heap.stones == 0)
        return Observation(jax.nn.one_hot(heap.stones, self.size + 1), legal)


def take(heap, action):
    """Return the heap after a move, and the reward of its player."""
    stones = jnp.maximum(heap.stones - action - 1, 0)
    return Heap(stones, 1 - heap.player), (stones == 0).astype(jnp.float32)


def take_one(key, heap):
    return jnp.zeros((), jnp.int32)


def perfect_player(key, heap):
    """Leave a multiple of three."""
    return (heap.stones % 3 == 2).astype(jnp.int32)


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """It plays perfectly after some updates; before, it takes single stones."""

    plays_both_seats: ClassVar[bool] = True
    perfect_after: float = 3.0


def build(config: Config, spec: SystemSpec) -> System:
    def init(key, timestep):
        return Agent(jnp.zeros((), jnp.int32), ())

    def act(shared, state, key):
        stones = jnp.argmax(state.timestep.observation.agent_view, axis=-1)
        perfect = (stones % 3 == 2).astype(jnp.int32)
        return state.carry, jnp.where(shared >= config.perfect_after, perfect, 0), ()

    def update(agent, trajectory, key):
        return agent._replace(shared=agent.shared + 1), {"reward": jnp.mean(trajectory.transitions.reward)}

    return System(init, act, lambda agent, trajectory: agent, update, act, lambda num_envs: ())


def overrides(**values):
    """Return overrides of a run of the system on four stones: 4 updates of 16 steps, each of them kept."""
    return [
        *toys.overrides(**{"name": "nim", "module": "support.nim", **values}),
        *("env=own", "env._target_=support.nim.Nim", "arch.total_num_envs=4"),
        *("arch.total_timesteps=64", "arch.num_evaluation=4", "arch.num_eval_episodes=8", "arch.absolute_metric=false"),
        *("checkpoint.keep=10", "arch.compile_cache=false", "logger=silent"),
    ]
