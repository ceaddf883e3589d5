"""Values and advantages, by Retrace, which the meta-network of a discovered rule reads.

Shape letters: T time, B trajectories, A actions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Axes
from stoix_like.schema import Part, Range, between
from stoix_like.systems.disco_rl.meta_network import Pair, RuleInputs
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.multistep import batch_retrace_continuous
from stoix_like.utils.replay import Step


@dataclass(frozen=True, kw_only=True)
class EstimatesConfig(Part):
    """Hyperparameters of the estimates."""

    retrace_lambda: Annotated[float, between(0.0, 1.0)]  # decay of the traces of the action values, in [0, 1]
    moments_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]  # decay of the moments per gradient step


class Moments(NamedTuple):
    """Running moments of advantages: of order one and two, and the weight that their initial zeros still have."""

    first: jax.Array
    second: jax.Array
    initial: jax.Array


def initial_moments() -> Moments:
    """Return the moments before the first batch."""
    return Moments(*(jnp.full((), value, jnp.float32) for value in (0.0, 0.0, 1.0)))


def estimate(
    config: EstimatesConfig,
    gamma: Scalar,
    axes: Axes,
    steps: Step,
    predictions: tuple[Pair, Pair],
    q_values: tuple[Pair, Pair],
    moments: Moments,
) -> tuple[RuleInputs, jax.Array, Moments]:
    """Return what the meta-network reads, and the returns that action values learn.

        v(s) = sum_a pi(a | s) q(s, a),  G_t = r_t + gamma (v(s'_t) + c_{t+1} (G_{t+1} - q(s_{t+1}, a_{t+1})))

    with the values of the target parameters and `c = lambda min(1, pi / mu)`, zero after the end of an episode.

    `steps`: `[T, B, ...]`; their extras are the logits of the behaviour policy.
    `q_values`: `[T, B, A]`, likewise, of the observations and of their successors.
    Returns the inputs, the returns `[T, B]`, and the moments after this batch.
    """
    assert steps.truncated is not None
    policies = Pair(*(each.policy.logits for each in predictions[0]))
    value, target_value = (
        Pair(*(jnp.sum(jax.nn.softmax(pi) * q, -1) for pi, q in zip(policies, each, strict=True))) for each in q_values
    )
    q = q_values[1].now
    q_tm1 = values_of_actions(q, steps.action)
    log_rho = _log_prob(policies.now, steps.action) - _log_prob(steps.extras, steps.action)
    trace = steps.reward, gamma * (1.0 - steps.terminated), log_rho[1:], config.retrace_lambda
    inputs = q_tm1, q_tm1[1:], target_value.after, *trace
    returns = batch_retrace_continuous(*inputs, truncation_t=steps.truncated, time_major=True) + q_tm1
    advantage, action_advantage = returns - target_value.now, q - target_value.now[..., None]
    moments = _update(config, axes, moments, advantage)
    rule_inputs = RuleInputs(
        *(*predictions, jax.nn.softmax(steps.extras), steps.action, steps.reward, steps.terminated),
        *(steps.terminated | steps.truncated, value, advantage, _normalize(moments, advantage)),
        *(q, action_advantage, _normalize(moments, action_advantage)),
    )
    return rule_inputs, returns, moments


def _log_prob(logits: jax.Array, action: jax.Array) -> jax.Array:
    return values_of_actions(jax.nn.log_softmax(logits), action)


def _update(config: EstimatesConfig, axes: Axes, moments: Moments, x: jax.Array) -> Moments:
    decay = config.moments_decay
    batch = axes.mean((jnp.mean(x), jnp.mean(jnp.square(x))))
    first, second = optax.incremental_update(batch, moments[:2], 1.0 - decay)
    return Moments(first, second, decay * moments.initial)


def _normalize(moments: Moments, x: jax.Array) -> jax.Array:
    mean, square = (moment / (1.0 - moments.initial) for moment in moments[:2])
    return (x - mean) / (jnp.sqrt(jnp.maximum(square - jnp.square(mean), 0.0) + 1e-12) + 1e-6)
