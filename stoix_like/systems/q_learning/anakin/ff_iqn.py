"""Implicit quantile networks (Dabney et al. 2018, arXiv:1806.06923)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import OnlineAndTarget, SystemSpec
from stoix_like.networks.requirements import ACTION_VALUE_ANY_QUANTILES, HeadRequirement
from stoix_like.schema import at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.parts.distributional import configure_head
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.utils.loss import implicit_quantile_q_learning_per_example
from stoix_like.utils.loss.common import values_of_actions
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig):
    """Hyperparameters of IQN."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(ACTION_VALUE_ANY_QUANTILES, ("num_quantiles", "num_cosines"))
    }
    num_quantiles: Annotated[int, between(1, 100_000)]  # evenly spaced levels of quantiles that average to values
    num_online_quantiles: Annotated[int, between(1, 100_000)]  # stratified random levels per example, to learn at
    num_target_quantiles: Annotated[int, between(1, 100_000)]  # stratified random levels per example, of targets
    num_cosines: Annotated[int, between(1, 100_000)]  # number of cosine features of a level
    huber_loss_parameter: Annotated[float, at_least(0.0)]  # error above which the loss is linear, in units of value


class IQN(ff_dqn.BaseDQN[Config]):
    """DQN that learns the quantiles of returns at random levels."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> ff_dqn.Losses:
        """Compute the losses and the values of the actions `[B]`.

        The losses are quantile regressions towards the return of the greedy action (equation 3).
        """
        online_key, target_key, *noise_keys = jax.random.split(key, 5)
        size = batch.action.shape[0]
        levels = stratified_levels(online_key, size, self.config.num_online_quantiles)
        levels_t = stratified_levels(target_key, size, self.config.num_target_quantiles)
        q_tm1, dist_tm1, _ = self.q(params.online, batch.observation, noise_keys[0], tau=levels)
        _, dist_t, _ = self.q(params.target, batch.next_observation, noise_keys[1], tau=levels_t)
        # Separate levels: the largest mean over the target's levels would be biased upwards.
        selector = self.q(params.target, batch.next_observation, noise_keys[2])[0][:, None]
        huber = self.config.huber_loss_parameter
        losses = implicit_quantile_q_learning_per_example(
            dist_tm1, levels, batch.action, batch.reward, batch.discount, selector, dist_t, huber
        )
        return losses, {"q_value": values_of_actions(q_tm1, batch.action)}


def stratified_levels(key: jax.Array, size: int, num_quantiles: int) -> jax.Array:
    """Draw a level from each of `num_quantiles` equal parts of [0, 1].

        tau_i = (i + u_i) / num_quantiles,   u_i ~ U(0, 1)

    Sums over them have the expectation of those over independent levels, and less variance (Owen 2013, Monte Carlo
    theory, methods and examples, section 8.4).

    Returns `[B, num_quantiles]` levels.
    """
    strata = jnp.arange(num_quantiles, dtype=jnp.float32)[None]
    return (strata + jax.random.uniform(key, (size, num_quantiles))) / num_quantiles


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IQN."""
    hyperparams = {"num_quantiles": config.num_quantiles, "num_cosines": config.num_cosines}
    head = configure_head(spec.networks.actor_network.action_head, hyperparams)
    return ff_dqn.make_variant(config, spec, IQN, head)


build, run_experiment, hydra_entry_point = entry_points("q_learning/ff_iqn", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
