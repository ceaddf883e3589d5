"""Conservative values: actions that the data do not hold are pushed down (CQL)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Metrics, PyTree
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, above, between
from stoix_like.systems.parts.action_vectors import unit
from stoix_like.utils.loss import cql_penalty_per_example, sampled_cql_penalty
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Conservatism(Part):
    """Hyperparameters of conservative values of discrete actions."""

    cql_coef: Annotated[float | None, above(0.0)] = None  # weight of the penalty of each critic; None: off


@dataclass(frozen=True, kw_only=True)
class SampledConservatism(Conservatism):
    """Hyperparameters of conservative values of continuous actions."""

    cql_actions: Annotated[int, between(1, INT32_MAX)] = 10  # actions drawn from each of three distributions


SampledPenalty = Callable[..., jax.Array]
"""`(sac, loss, q_params, params, batch, q_tm1 [B, C], key) -> loss`."""


def no_penalty(sac: Any, loss: jax.Array, *_: Any) -> jax.Array:
    """Return the loss as it is."""
    return loss


def conservative(
    config: Conservatism, losses: jax.Array, q_tm1: jax.Array, action: jax.Array
) -> tuple[jax.Array, Metrics]:
    """Add the penalty of conservative Q-learning with discrete actions to losses `[B]`; also return their metrics.

        P = cql_coef (log sum_a exp Q(s, a) - Q(s, a_data)), of each sample

    Source: Kumar et al. 2020 (CQL), arXiv:2006.04779, equation 4. Its mean over the data weighs all samples alike:
    so weights of a prioritised replay buffer apply to the penalty as to the loss.
    """
    metrics = {"q_value": values_of_actions(q_tm1, action)}
    if config.cql_coef is None:
        return losses, metrics
    penalised = losses + config.cql_coef * cql_penalty_per_example(q_tm1, action)
    return penalised, metrics | {"penalty": penalised - losses}


def make_sampled_penalty(config: SampledConservatism, space: Any) -> SampledPenalty:
    """Build the penalty of conservative Q-learning with continuous actions.

        P = cql_coef sum_c mean(log sum_a exp Q_c(s, a) - Q_c(s, a_data))

    Source: Kumar et al. 2020 (CQL), arXiv:2006.04779, appendix F. Targets keep their bonus for entropy, which the
    authors' code leaves out by default, and the squared errors of that have no factor of 1/2: `cql_coef` is half of its
    weight.

    The penalty draws actions of the policy, here and at the successor, and uniform ones.

    `config`: hyperparameters; the floats may be traced.
    """
    if config.cql_coef is None:
        return no_penalty
    if not (isinstance(space, Box) and space.bounded):
        raise ConfigError("system.cql_coef draws uniform actions, which needs an action space with bounds: use null")
    coef, number = config.cql_coef, config.cql_actions

    def penalty(
        sac: Any, loss: jax.Array, q_params: PyTree, params: PyTree, batch: Batch, q_tm1: jax.Array, key: jax.Array
    ) -> jax.Array:
        def values(action: PyTree) -> jax.Array:
            return cast(jax.Array, sac.q_values(q_params, batch.observation, action, None))

        uniform_key, key = jax.random.split(jax.random.fold_in(key, 3))
        width = 2.0 * space.half_width
        uniform = jax.random.uniform(uniform_key, (number, len(q_tm1), *space.shape))
        q = [jax.vmap(values)(np.broadcast_to(space.low, space.shape)[None, None] + width[None, None] * uniform)]
        log_probs = [jnp.full((number, len(q_tm1)), -np.sum(np.log(2.0 * unit(space))))]
        for index, observation in enumerate((batch.observation, batch.next_observation)):
            pi = sac.pi(params, observation)
            action, log_prob = pi.sample_and_log_prob(seed=jax.random.fold_in(key, index), sample_shape=(number,))
            drawn = jax.vmap(values)(jax.lax.stop_gradient(action))
            q.append(drawn)
            log_probs.append(log_prob)
        penalties = jax.vmap(sampled_cql_penalty, in_axes=(-1, None, -1))(
            jnp.concatenate(q), jnp.concatenate(log_probs), q_tm1
        )
        return loss + coef * jnp.sum(penalties)

    return penalty
