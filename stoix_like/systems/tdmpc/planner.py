"""Planning by sampled action sequences: model-predictive path integral control (MPPI).

Actions are vectors in units of half their range, in [-1, 1].

Shape letters: H horizon, N environments, S action sequences, P of the policy, E elites, A entries of an action.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import SearchOutput, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, above, at_least, between


@dataclass(frozen=True, kw_only=True)
class PlannerConfig(Part):
    """Hyperparameters of the planner."""

    iterations: Annotated[
        int, between(0, 2**10)
    ]  # of sampling and refitting per step; 0: the policy acts, without plans
    num_samples: Annotated[int, between(2, 2**20)]  # action sequences per iteration, S
    num_policy_samples: Annotated[int, between(1, 2**20)]  # sequences that follow the policy, P
    num_elites: Annotated[int, between(1, 2**20)]  # the best sequences, which the next iteration samples around
    min_std: Annotated[float, above(0.0)]  # least standard deviation of samples, in units of half the action range
    max_std: Annotated[float, above(0.0)]  # the largest, and the initial one
    planning_temperature: Annotated[float, at_least(0.0)]  # weights of elites are exp(planning_temperature * value)

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that the parts are not larger than the whole."""
        for name in ("num_policy_samples", "num_elites"):
            if (number := getattr(self, name)) > self.num_samples:
                raise ConfigError(
                    f"system.{name}={number} must not exceed system.num_samples={self.num_samples}: use at most"
                    f" {self.num_samples}"
                )
        if self.min_std > self.max_std:
            raise ConfigError(
                f"system.min_std={self.min_std} must not exceed system.max_std={self.max_std}: use at most"
                f" {self.max_std}"
            )


class Plan(NamedTuple):
    """The distribution of action sequences after an iteration."""

    mean: jax.Array  # `[H, N, A]`
    std: jax.Array  # `[H, N, A]`
    first: jax.Array  # `[N, E, A]`, the first actions of the elites
    value: jax.Array  # `[N, E]`, the values of the elites
    weight: jax.Array  # `[N, E]`, their weights, of sum one


def make_plan(
    config: PlannerConfig,
    evaluate: Callable[[jax.Array, jax.Array], jax.Array],
    policy_actions: jax.Array,
    mean: jax.Array,
    key: jax.Array,
) -> Plan:
    """Refine a plan by iterations of sampling around it, and of refitting it to the best samples.

        w_e = exp(temperature v_e) / sum_e' exp(temperature v_e')
        mean = sum_e w_e a_e,  std^2 = sum_e w_e (a_e - mean)^2, within bounds

    Source: Williams et al. 2015, arXiv:1509.01149; Hansen et al. 2024 (TD-MPC2), arXiv:2310.16828, section 3.2.

    `evaluate`: `(actions [H, N, S, A], key) -> values [N, S]`.
    `policy_actions`: `[H, N, P, A]`, sequences of every iteration.
    `mean`: `[H, N, A]`, of the first iteration.
    """
    (length, num_envs, num_fixed, width), num_elites = policy_actions.shape, config.num_elites

    def refine(plan: Plan, key: jax.Array) -> tuple[Plan, None]:
        noise_key, value_key = jax.random.split(key)
        noise = jax.random.normal(noise_key, (length, num_envs, config.num_samples - num_fixed, width), plan.mean.dtype)
        drawn = jnp.clip(plan.mean[:, :, None] + plan.std[:, :, None] * noise, -1.0, 1.0)
        actions = jnp.concatenate([policy_actions, drawn], axis=2)
        value, best = jax.lax.top_k(evaluate(actions, value_key), num_elites)
        elites = jnp.take_along_axis(actions, best[None, :, :, None], axis=2)
        weight = jax.nn.softmax(config.planning_temperature * value)
        mean = jnp.sum(weight[None, :, :, None] * elites, axis=2)
        variance = jnp.sum(weight[None, :, :, None] * jnp.square(elites - mean[:, :, None]), axis=2)
        std = jnp.clip(jnp.sqrt(variance), config.min_std, config.max_std)
        refined = Plan(mean, std, elites[0], value, weight)
        return jax.tree.map(lambda new, old: new.astype(old.dtype), refined, plan), None

    std, elites = jnp.full_like(mean, config.max_std), jnp.zeros((num_envs, num_elites, width))
    values = jnp.zeros((num_envs, num_elites))
    start = Plan(mean, std, elites, values, values + 1.0 / num_elites)
    return jax.lax.scan(refine, start, jax.random.split(key, config.iterations))[0]


def choose(plan: Plan, key: jax.Array, greedy: bool) -> jax.Array:
    """Choose first actions `[N, A]`: one of an elite, with noise; greedy, the mean, where the authors draw an elite."""
    if greedy:
        return plan.mean[0]
    elite_key, noise_key = jax.random.split(key)
    chosen = jax.random.categorical(elite_key, jnp.log(plan.weight))
    action = jnp.take_along_axis(plan.first, chosen[:, None, None], axis=1)[:, 0]
    return jnp.clip(action + plan.std[0] * jax.random.normal(noise_key, action.shape), -1.0, 1.0)


def describe(plan: Plan, action: jax.Array, first: jax.Array, prior_value: jax.Array) -> SearchOutput:
    """Describe the elites of a plan, equally likely before they were weighted.

    `action`: `[N, ...]`, the actions taken.
    `first`: `[N, E, ...]`, the first actions of the elites.
    `prior_value`: `[N]`, the values of the states for the policy.
    """
    ones = jnp.ones_like(plan.weight)
    return SearchOutput(
        action=action,
        candidates=first,
        prior=ones / ones.shape[-1],
        weights=plan.weight,
        visits=ones,
        action_values=plan.value,
        prior_value=prior_value,
        value=jnp.sum(plan.weight * plan.value, axis=-1),
    )


def shift(mean: jax.Array, starts: jax.Array) -> jax.Array:
    """Return the mean to plan from in the next step: the last one, a step later, or zeros where an episode starts.

    `mean`: `[N, H, A]`, of the last plan.
    `starts`: `[N]` bool.
    Returns `[H, N, A]`.
    """
    later = jnp.concatenate([mean[:, 1:], jnp.zeros_like(mean[:, :1])], axis=1)
    return jnp.moveaxis(jnp.where(starts[:, None, None], 0.0, later), 0, 1)
