"""AlphaZero with feed-forward networks (Silver et al. 2018, doi 10.1126/science.aar6404), by Gumbel search.

The environment itself is the model: every action searches from the state of the rollout. The policy learns the
probabilities that the search found (Danihelka et al. 2022, openreview.net/forum?id=bERaNdoegnO, equation 11), and the
critic n-step returns of rewards and of the values that the search found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import ActorCriticOptStates, ActorCriticParams, Observation, System, SystemSpec
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement
from stoix_like.schema import above
from stoix_like.systems.actor_critic import ActorCriticNetworks, make_networks
from stoix_like.systems.gradient_descent import make_optimiser
from stoix_like.systems.launch import entry_points
from stoix_like.systems.search.planner import Found, Losses, Planner, PlannerConfig, assemble
from stoix_like.systems.search.simulation import Expansion, make_simulation
from stoix_like.utils.normalizer import make_normalizer
from stoix_like.utils.replay import SequenceBatch, SequenceConfig, make_sequence_replay
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class Config(PlannerConfig, SequenceConfig):
    """Hyperparameters of AlphaZero.

    Attributes:
        network_heads: heads that the system needs; a critic without a torso of its own shares that of the actor.
        needs_model: see `SystemConfig`.
        actor_lr: Adam learning rate of the policy.
        critic_lr: Adam learning rate of the critic.
    """

    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "critic_network.critic_head": HeadRequirement(VALUE, shares_torso_of="actor_network"),
    }
    needs_model: ClassVar[bool] = True
    actor_lr: Annotated[float, above(0.0)]
    critic_lr: Annotated[float, above(0.0)]


ConfigT = TypeVar("ConfigT", bound=Config)


class AlphaZero(Planner[ConfigT]):
    """AlphaZero: policy and critic learn what searches in the environment found."""

    def loss(
        self, params: ActorCriticParams, statistics: Any, batch: SequenceBatch, key: jax.Array
    ) -> tuple[jax.Array, Losses]:
        """Compute the losses of policy and critic on sequences `[W, B]`; also the absolute errors of values."""
        config, steps, found = self.config, batch.steps, batch.steps.extras
        pi, value = self.networks.both(params, self.normalizer.apply(statistics, steps.observation))
        error = self.value_target(batch) - value
        policy_loss = jnp.mean(batch.weight * self.policy_loss(pi, found))
        value_loss = jnp.mean(batch.weight * 0.5 * jnp.square(error))
        entropy = jnp.mean(batch.weight * pi.entropy(seed=key))
        loss = policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, "value": jnp.mean(value)}
        return loss, (metrics, jnp.abs(error))


def make_parts(config: Config, spec: SystemSpec, found: Found, expand: Any) -> dict[str, Any]:
    """Build the attributes of AlphaZero.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes, sizes and the model.
        found: what a search finds in one state, an example.
        expand: `(networks) -> Expand`, what networks say about a new node.

    Returns:
        The attributes by name.
    """
    assert spec.model is not None
    networks, normalizer = make_networks(spec.networks), make_normalizer(config.normalize_observations, spec.axes)
    discount = config.gamma if spec.num_players == 1 else -config.gamma

    def expand_normalized(params: Any, observation: Observation, key: jax.Array) -> Expansion:
        network_params, statistics = params
        expansion: Expansion = expand(networks)(network_params, normalizer.apply(statistics, observation), key)
        return expansion

    optims = (make_optimiser(config, spec, lr) for lr in (config.actor_lr, config.critic_lr))
    return {
        "config": config,
        "axes": spec.axes,
        "networks": networks,
        "optim": join_optimisers(*optims, states=ActorCriticOptStates),
        "normalizer": normalizer,
        "replay": make_sequence_replay(config, spec, (), found),
        "discount": discount,
        "num_updates": spec.num_updates,
        "simulation": make_simulation(spec.model, expand_normalized, discount, config.reward_scale),
    }


def build(config: Config, spec: SystemSpec) -> System:
    """Build AlphaZero; the floats of the hyperparameters may be traced."""

    def expand(networks: ActorCriticNetworks) -> Any:
        def of_all_actions(params: ActorCriticParams, observation: Observation, key: jax.Array) -> Expansion:
            del key
            pi, value = networks.both(params, observation)
            return Expansion(pi.logits, value)

        return of_all_actions

    space: Any = spec.action_space
    found = Found(None, jnp.zeros((space.n,)), jnp.zeros(()))
    return assemble(AlphaZero(**make_parts(config, spec, found, expand)), spec)


run_experiment, hydra_entry_point = entry_points("search/ff_az", build)

if __name__ == "__main__":
    hydra_entry_point()
