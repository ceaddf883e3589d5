"""The state of Q-learning agents."""

from __future__ import annotations

from typing import NamedTuple

import jax

from stoix_like.base_types import Observation, OnlineAndTarget, PyTree


class QShared(NamedTuple):
    """The shared state of the agent: parameters, optimiser state, updates so far, and what options need, by name."""

    params: OnlineAndTarget
    opt_state: PyTree
    updates: jax.Array
    parts: PyTree = ()


class ContinuousPQNShared(NamedTuple):
    """The shared state of the agent: parameters and optimiser states, updates so far, and statistics."""

    actor_params: PyTree
    q_params: PyTree
    actor_opt_state: PyTree
    q_opt_state: PyTree
    updates: PyTree = ()
    statistics: PyTree = ()
    return_statistics: PyTree = ()


class ContinuousPQNTransition(NamedTuple):
    """Steps `[B, ...]` with the action of the behaviour policy without its noise, and lambda-returns as targets."""

    observation: Observation
    action: jax.Array
    policy_action: jax.Array
    target: jax.Array
