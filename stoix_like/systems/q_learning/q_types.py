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


class ContinuousPQNTransition(NamedTuple):
    """Steps `[B, ...]` with the action of the behaviour policy without its noise, and lambda-returns as targets."""

    observation: Observation
    action: jax.Array
    policy_action: jax.Array
    target: jax.Array
