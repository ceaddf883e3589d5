"""A suite of environments whose legal actions depend on the state."""

import jax.numpy as jnp

from stoix_like.base_types import Observation
from stoix_like.envs.environment import Environment, Vectorize, restart, transition
from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete


class Masked(Environment):
    """Episodes of three steps; in step t, only action t is illegal: it costs 1 and ends the episode."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Discrete(3)

    def reset(self, key):
        steps = jnp.zeros((), jnp.int32)
        return steps, restart(self._observation(steps))

    def step(self, key, state, action):
        illegal = action == state
        return state + 1, transition(self._observation(state + 1), -1.0 * illegal, illegal | (state >= 2), False)

    def _observation(self, steps):
        return Observation(jnp.full((2,), steps / 3), jnp.arange(3) != steps)


class MaskedPair(Masked):
    """The same with two choices, one of two and one of three; in step t, t mod 2 and t are illegal."""

    action_space = MultiDiscrete((2, 3))

    def step(self, key, state, action):
        wrong = (action[0] == state % 2) | (action[1] == state)
        # To the step of `Masked`, a wrong choice is its illegal action.
        return super().step(key, state, jnp.where(wrong, state, -1))

    def _observation(self, steps):
        mask = jnp.concatenate([jnp.arange(2) != steps % 2, jnp.arange(3) != steps])
        return super()._observation(steps)._replace(action_mask=mask)


class MaskedParts(MaskedPair):
    """The same with the choices in a dictionary, and a continuous part without effect between them."""

    action_space = Dict({"first": Discrete(2), "force": Box(-1.0, 1.0, (2,)), "second": Discrete(3)})

    def step(self, key, state, action):
        return super().step(key, state, jnp.stack([action["first"], action["second"]]))


SCENARIOS = {"masked": Masked, "masked_pair": MaskedPair, "masked_parts": MaskedParts}


def scenarios():
    return list(SCENARIOS)


def make(name, kwargs, params):
    return Vectorize(SCENARIOS[name]())
