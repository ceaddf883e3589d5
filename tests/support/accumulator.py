"""A recurrent network whose state is the sum of its views, and steps with known successors."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.utils.replay import SequenceBatch, Step
from support.algorithms import make_algorithm
from support.set_ups import setup_of


class Accumulator:
    """A network for views `[..., 1]`; the parameters are the weight."""

    has_large_states = False

    def apply(self, weight, state, observation_and_starts, method, head_kwargs=None, every=1):
        observation, is_first = observation_and_starts
        increment = weight * observation.agent_view[..., 0]

        def step(state, x):
            increment, is_first = x
            state = jnp.where(is_first, 0.0, state) + increment
            return state, state

        if method == "step":
            states, _ = step(state, (increment, is_first))
        else:
            _, states = jax.lax.scan(step, state, (increment, is_first))
        kept = states if method == "step" else states[every - 1 :: every]
        return kept, SimpleNamespace(preferences=jnp.stack([states, -states], -1))


def algorithm(system, *overrides):
    """Return the algorithm object of a system, with the accumulator as its network."""
    found = make_algorithm(setup_of(f"system={system}", "env=gymnax/cartpole", *overrides))
    return dataclasses.replace(found, axes=Axes(), network=Accumulator())


def column(values, dtype=jnp.float32):
    """Return `[T, 1]`, one environment or sequence."""
    return jax.device_put(np.asarray(values, dtype)[:, None])


def observed(values):
    return Observation(jax.device_put(np.asarray(values, np.float32)[:, None, None]))


# Five steps; the second one after the burn-in is truncated, and its true successor is 7. The last one's is 4.
VIEWS, NEXT_VIEWS = [1, 2, 3, 5, 1], [2, 3, 7, 1, 4]
REWARDS, TRUNCATED, IS_FIRST = [0, 1, 2, 3, 4], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]


def rollout():
    """Return the steps after the burn-in as a rollout, from state 10."""
    action, never = (column([0] * 4, dtype) for dtype in (jnp.int32, bool))
    truncated, is_first = (column(flags[1:], bool) for flags in (TRUNCATED, IS_FIRST))
    views, successors = observed(VIEWS[1:]), observed(NEXT_VIEWS[1:])
    steps = Transition(views, action, column(REWARDS[1:]), never, truncated, successors, is_first, ())
    return Trajectory(steps, jnp.asarray([10.0]))


def replayed(stored, action=None, terminated=(0, 0, 0, 0, 0), indices=None):
    """Return a batch of one sequence whose stored state is 10; without stored successors, it has one more step."""
    more = [] if stored else [4]
    action = column([0] * (5 + len(more)), jnp.int32) if action is None else column([*action, *more])[..., None]
    *ends, is_first = (column([*flags, *(0 for _ in more)], bool) for flags in (terminated, TRUNCATED, IS_FIRST))
    successors = observed(NEXT_VIEWS) if stored else None
    steps = Step(observed([*VIEWS, *more]), action, column([*REWARDS, *more]), *ends, successors)
    return SequenceBatch(steps, is_first, jnp.asarray([10.0]), jnp.ones((1, 1)), indices)
