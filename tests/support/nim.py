"""Nim with one heap, a game for two: whoever takes the last stone wins."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Discrete, Environment
from stoix_like.envs.environment import restart, transition


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
        heap = Heap(jnp.full((), self.size, jnp.int32), jax.random.bernoulli(key).astype(jnp.int32))
        heap, _ = self.reply(key, heap, jnp.zeros(()))
        return heap, restart(self.observe(heap))

    def step(self, key, state, action):
        """See `Environment.step`."""
        heap, reward = self.reply(key, *take(state, action))
        return heap, transition(self.observe(heap), reward, heap.stones == 0, False)

    def against(self, opponent):
        """See `Environment.against`: a function (key, heap) -> action, or `random`, which takes one stone."""
        return Nim(self.size, (lambda key, heap: jnp.zeros((), jnp.int32)) if opponent == "random" else opponent)

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


def perfect_player(key, heap):
    """Leave a multiple of three."""
    del key
    return (heap.stones % 3 == 2).astype(jnp.int32)
