"""Targets and losses of a learned model in the latent states of an unrolled sequence.

Shape letters: W steps per sequence, B sequences, K unrolled steps.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.utils.replay import Step


class Targets(NamedTuple):
    """Targets of the latent states `0 … K` with masks: not all exist behind the end of an episode."""

    reward: jax.Array  # `[K, B]`, of the steps between them
    value: jax.Array  # `[K + 1, B]`
    has_reward: jax.Array  # `[K, B]` bool
    has_value: jax.Array  # `[K + 1, B]` bool
    has_policy: jax.Array  # `[K + 1, B]` bool


def unrolled_targets(steps: Step, successor_value: jax.Array, returns: jax.Array, num_unrolled: int) -> Targets:
    """Choose targets up to the first end of an episode, and behind it.

    Behind a terminated step, the episode continues in an absorbing state without rewards (Schrittwieser et al. 2020,
    appendix G). Behind a truncated one, nothing is known but the value of its true successor. Neither has a policy.

    `steps`: `[W, B, ...]`; steps after the end belong to other episodes.
    `successor_value`: `[W, B]`, values of true successors.
    `returns`: `[W, B]`, of the observations of the steps.
    """
    assert steps.truncated is not None
    is_over = _earlier(steps.terminated | steps.truncated)
    terminates, truncates = (flags & ~is_over[:-1] for flags in (steps.terminated, steps.truncated))
    first, last = slice(num_unrolled), slice(num_unrolled + 1)
    absorbed, cut = _earlier(terminates)[last], _earlier(truncates)[last]
    is_successor = jnp.concatenate([jnp.zeros_like(truncates[:1]), truncates[first]])
    successor = jnp.concatenate([jnp.zeros_like(successor_value[:1]), successor_value[first]])
    return Targets(
        reward=jnp.where(absorbed[:-1], 0.0, steps.reward[first]),
        value=jnp.where(is_successor, successor, jnp.where(absorbed, 0.0, returns[last])),
        has_reward=~cut[:-1],
        has_value=~cut | is_successor,
        has_policy=~is_over[last],
    )


def _earlier(flags: jax.Array) -> jax.Array:
    """Return which of `W + 1` steps come after a step `[W, B]` with a flag: `[W + 1, B]`."""
    before = jnp.zeros_like(flags[:1])
    return jnp.concatenate([before, jax.lax.cummax(flags.astype(jnp.int32)).astype(bool)])
