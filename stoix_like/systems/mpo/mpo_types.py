"""State of an MPO agent."""

from __future__ import annotations

from typing import NamedTuple

from stoix_like.base_types import OnlineAndTarget, PyTree
from stoix_like.systems.mpo.duals import Duals


class MPOParams(NamedTuple):
    """Parameters of the policy and the critic, with their targets, and the duals."""

    actor_params: OnlineAndTarget
    q_params: OnlineAndTarget
    duals: Duals


class MPOOptStates(NamedTuple):
    """Optimiser states of policy, critic and duals."""

    actor_opt_state: PyTree
    q_opt_state: PyTree
    dual_opt_state: PyTree
