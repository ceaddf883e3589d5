"""Tests of recurrent PQN."""

import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.run.setup import set_up


class Accumulator:
    """A network for views `[..., 1]`; the parameters are the weight."""

    def apply(self, weight, state, observation_and_starts, method, head_kwargs=None):
        del head_kwargs
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
        return states, SimpleNamespace(preferences=jnp.stack([states, -states], -1))


def algorithm(system, *overrides):
    """Return the algorithm object of a system, with the accumulator as its network."""
    setup = set_up(parse_config(compose_config([f"system={system}", "env=gymnax/cartpole", *overrides])))
    found = setup.build_system().init.__self__
    return dataclasses.replace(found, axes=Axes(), network=Accumulator())


def column(values, dtype=jnp.float32):
    """Return `[T, 1]`, one environment or sequence."""
    return jnp.asarray(values, dtype)[:, None]


def observed(values):
    return Observation(column(values)[..., None])


# Five steps; the second one after the burn-in is truncated, and its true successor is 7. The last one's is 4.
VIEWS, NEXT_VIEWS = [1, 2, 3, 5, 1], [2, 3, 7, 1, 4]


REWARDS, TRUNCATED, IS_FIRST = [0, 1, 2, 3, 4], [0, 0, 1, 0, 0], [0, 0, 0, 1, 0]


def rollout():
    """Return the steps after the burn-in as a rollout, from state 10."""
    steps = Transition(
        observed(VIEWS[1:]),
        column([0] * 4, jnp.int32),
        column(REWARDS[1:]),
        column([0] * 4, bool),
        column(TRUNCATED[1:], bool),
        observed(NEXT_VIEWS[1:]),
        column(IS_FIRST[1:], bool),
        (),
    )
    return Trajectory(steps, jnp.asarray([10.0]))


def test_pqn_bootstraps_from_true_successors_with_their_states():
    """From state 10, the states are 12, 15 | 5, 6, and those of the successors 15, 22 | 6, 10. gamma = lambda = 1/2:

    G_4 = 4 + 10/2 = 9                  G_3 = 3 + (6 + 9)/4 = 6.75
    G_2 = 2 + 22/2 = 13, truncated      G_1 = 1 + (15 + 13)/4 = 8
    """
    pqn = algorithm("q_learning/rec_pqn", "system.gamma=0.5", "system.q_lambda=0.5")
    batch = pqn.evaluate(1.0, rollout())
    np.testing.assert_allclose(batch.target[0], [8.0, 13.0, 6.75, 9.0])
    loss, _ = pqn.loss(1.0, batch)
    assert float(loss) == pytest.approx(np.mean(np.square([-4.0, -2.0, 1.75, 3.0])) / 2)
