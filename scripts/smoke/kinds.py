"""Kinds of environments that every system is tried on, and the networks for each."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, TimeStep
from stoix_like.composition import group_choices
from stoix_like.envs import Box, Dict, Discrete, Environment
from stoix_like.envs.environment import restart, transition

LENGTH = 5
NUM_ACTIONS = 3
_IMAGE = Box(0, 255, (6, 6, 1), jnp.uint8)
_VECTOR = Box(-1.0, 1.0, (NUM_ACTIONS,))


class Guess(Environment):
    """Episodes of `LENGTH` steps that pay 1 for the action that the observation shows.

    Args:
        continuous: actions are two numbers, of which the first rounds to the action less 1.
    """

    observation_space = _VECTOR
    truncates_after = 2**31 - 1

    def __init__(self, continuous: bool = False) -> None:
        self.action_space = Box(-1.0, 1.0, (2,)) if continuous else Discrete(NUM_ACTIONS)
        self._continuous = continuous

    def reset(self, key: jax.Array) -> tuple[Any, TimeStep]:
        """See `Environment.reset`."""
        state = jnp.zeros((), jnp.int32), jax.random.randint(key, (), 0, NUM_ACTIONS)
        return state, restart(self.observe(state))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """See `Environment.step`."""
        del key
        steps, goal = state[0] + 1, state[1]
        chosen = jnp.round(action[0]) + 1 if self._continuous else action
        return (steps, goal), transition(self.observe((steps, goal)), chosen == goal, steps >= LENGTH, False)

    def observe(self, state: Any) -> Observation:
        """Return what an agent sees."""
        return Observation(jax.nn.one_hot(state[1], NUM_ACTIONS))


class Masked(Guess):
    """The same, with one illegal action in each step."""

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        return super().observe(state)._replace(action_mask=jnp.arange(NUM_ACTIONS) != state[0] % NUM_ACTIONS)


class Image(Guess):
    """The same, as an image with a bright column."""

    observation_space = _IMAGE

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        row = 255 * (jnp.arange(6) == state[1])
        return Observation(jnp.broadcast_to(row[:, None], (6, 6, 1)).astype(jnp.uint8))


class Dictionary(Guess):
    """The same, as an image and a vector."""

    observation_space = Dict({"image": _IMAGE, "vector": _VECTOR})

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        image = jnp.full((6, 6, 1), 50 * state[1]).astype(jnp.uint8)
        return Observation({"image": image, "vector": jax.nn.one_hot(state[1], NUM_ACTIONS)})


class Memory(Guess):
    """The same, shown in the first observation only."""

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        return Observation(jnp.where(state[0] == 0, jax.nn.one_hot(state[1], NUM_ACTIONS), 0.0))


class Agents(Guess):
    """The same for two agents, who take the same action; each is paid for its own."""

    num_agents = 2

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """See `Guess.step`."""
        del key
        steps, goal = state[0] + 1, state[1]
        chosen = jnp.round(action[:, 0]) + 1 if self._continuous else action
        return (steps, goal), transition(self.observe((steps, goal)), chosen == goal, steps >= LENGTH, False)

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        return jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), super().observe(state))


class Goals(Guess):
    """The same, with the action as a goal: what was achieved is the last action."""

    observation_space = Dict(dict.fromkeys(("observation", "achieved_goal", "desired_goal"), _VECTOR))

    def step(self, key: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """See `Guess.step`."""
        state, timestep = super().step(key, state, action)
        achieved = jnp.zeros(NUM_ACTIONS).at[:2].set(action)
        view = timestep.observation.agent_view | {"achieved_goal": achieved}
        timestep = timestep._replace(observation=Observation(view), next_observation=Observation(view))
        return state, timestep

    def observe(self, state: Any) -> Observation:
        """See `Guess.observe`."""
        desired = super().observe(state).agent_view
        return Observation({"observation": desired, "achieved_goal": jnp.zeros(NUM_ACTIONS), "desired_goal": desired})


class Kind(NamedTuple):
    """A kind of environment.

    Attributes:
        environment: its class.
        continuous: whether its actions are; None: discrete, unless the system takes only continuous ones.
        networks: what replaces the first word of the name of a system's network.
        recurrent: whether it is for systems with memory only.
    """

    environment: type[Environment]
    continuous: bool | None = None
    networks: tuple[tuple[str, str], ...] = ()
    recurrent: bool = False


RECURRENT = ("rnn", "dreamer")
"""First words of the names of networks with memory."""
_CONVOLUTIONAL = (("mlp", "cnn"), ("rnn", "cnn_rnn"))
KINDS = {
    "vector": Kind(Guess),
    "masked": Kind(Masked, continuous=False),
    "image": Kind(Image, networks=_CONVOLUTIONAL),
    "dictionary": Kind(Dictionary, networks=_CONVOLUTIONAL),
    "continuous": Kind(Guess, continuous=True),
    "memory": Kind(Memory, recurrent=True),
    "agents": Kind(Agents),
}
# For systems that need goals, which observations have as entries.
WITH_GOALS = {"dictionary": Kind(Goals, continuous=True)}


def networks_for(default: str, kind: Kind) -> list[str]:
    """Return the names of the networks to try: those for the kind, then the system's own."""
    first, _, rest = default.partition("_")
    names = ("_".join(filter(None, (new, rest))) for old, new in kind.networks if first == old)
    return [*(name for name in names if name in group_choices("network")), default]
