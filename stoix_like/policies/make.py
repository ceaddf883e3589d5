"""The policy of a trained state."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.assembly import SystemParts
from stoix_like.base_types import System
from stoix_like.policies.feed_forward import FeedForwardPolicy
from stoix_like.policies.policy import Policy
from stoix_like.policies.recurrent import RecurrentPolicy


def make_policy(
    setup: SystemParts, shared: Any, hyperparams: dict[str, float], *, greedy: bool | None = None, env_steps: int = 0
) -> Policy:
    """Build the policy of a trained state, a `RecurrentPolicy` if its system is recurrent."""
    alone = setup.build_system(dict(setup.config.system.policy_hyperparams))  # without plans
    kind = RecurrentPolicy if is_recurrent(alone) else FeedForwardPolicy
    return kind(setup, shared, hyperparams, greedy=greedy, env_steps=env_steps)


def is_recurrent(system: System) -> bool:
    """Return whether a system has a recurrent state; a carry with keys is for noise, drawn in every call."""
    carry = jax.tree.leaves(jax.eval_shape(lambda: system.init_carry(1)))
    return bool(carry) and not any(jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) for leaf in carry)
