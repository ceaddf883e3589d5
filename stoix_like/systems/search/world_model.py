"""The learned model of MuZero: representation, dynamics and the heads on its latent states.

Shape letters: D width of a latent state.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Distribution, Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Space
from stoix_like.networks.base import CompositeNetwork, FeedForwardActor, FeedForwardCritic
from stoix_like.networks.heads import mask_argument
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE_DISTRIBUTION, HeadRequirement, check_latent_width
from stoix_like.schema import one_of
from stoix_like.systems.parts.action_vectors import action_vector
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.utils.loss import hl_gauss_loss_per_example, is_outside, two_hot_loss_per_example
from stoix_like.utils.scales import signed_hyperbolic, signed_parabolic

_ATOMS = HeadRequirement(VALUE_DISTRIBUTION, ("num_atoms", "vmin", "vmax"), latent=True)
NETWORK_HEADS = {
    "representation_network.pre_torso": HeadRequirement("a latent state"),
    "dynamics_network.pre_torso": HeadRequirement("a latent state", latent=True),
    "reward_network.critic_head": _ATOMS,
    "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, latent=True),
    "critic_network.critic_head": _ATOMS,
}
"""The heads, and the torsos without one, that a `LatentModel` is built from."""


@dataclass(frozen=True, kw_only=True)
class LatentModelConfig(AtomsConfig):
    """Hyperparameters of the distributions of rewards and values."""

    scale: ClassVar[str] = ", h(value) of MuZero"
    target_distribution: Annotated[str, one_of("two_hot", "hl_gauss")]  # of the probability of targets


@dataclass(frozen=True)
class LatentModel:
    """Networks of latent states with units scaled to [0, 1]; `params` is a dictionary of their parameters."""

    representation: CompositeNetwork  # maps an observation to a latent state
    dynamics: CompositeNetwork  # maps a latent state and an action, side by side, to the next latent state
    reward_head: FeedForwardCritic  # of the latent state that a reward leads to
    actor: FeedForwardActor  # the policy in a latent state
    critic: FeedForwardCritic  # the value of a latent state
    action_space: Space
    target_distribution: str

    def init(self, key: jax.Array, observation: Observation) -> dict[str, PyTree]:
        """Initialise the parameters."""
        keys = jax.random.split(key, 5)
        params = {"representation": self.representation.init(keys[0], observation)}
        latent = self.represent(params, observation)
        action = jax.vmap(self.action_space.sample)(jax.random.split(key, len(latent)))
        params["dynamics"] = self.dynamics.init(keys[1], self._with_action(latent, action))
        check_latent_width(latent, self.step(params, latent, action))
        heads = {"reward": self.reward_head, "actor": self.actor, "critic": self.critic}
        return params | {
            name: head.init(key, latent) for (name, head), key in zip(heads.items(), keys[2:], strict=True)
        }

    def represent(self, params: PyTree, observation: Observation) -> jax.Array:
        """Return the latent states `[..., D]` of observations."""
        return scale_to_unit(self.representation.apply(params["representation"], observation))

    def step(self, params: PyTree, latent: jax.Array, action: jax.Array) -> jax.Array:
        """Return the latent states `[..., D]` after actions."""
        return scale_to_unit(self.dynamics.apply(params["dynamics"], self._with_action(latent, action)))

    def policy(self, params: PyTree, observation: Observation) -> Distribution:
        """Compute the policy at observations `[B, ...]`."""
        return self.policy_at(params, self.represent(params, observation), observation.action_mask)

    def first(self, params: PyTree, observation: Observation) -> tuple[Distribution, jax.Array]:
        """Return the policy and the values `[...]` of observations."""
        latent = self.represent(params, observation)
        return self.policy_at(params, latent, observation.action_mask), self.value_at(params, latent)

    def values(self, params: PyTree, observation: Observation) -> jax.Array:
        """Compute the values `[...]` of observations."""
        return self.value_at(params, self.represent(params, observation))

    def policy_at(self, params: PyTree, latent: jax.Array, action_mask: jax.Array | None = None) -> Distribution:
        """Return the policy in latent states; only observations tell which actions are legal."""
        masked = mask_argument(self.actor.action_head, action_mask)
        return self.actor.apply(params["actor"], latent, head_kwargs=masked)

    def value_at(self, params: PyTree, latent: jax.Array) -> jax.Array:
        """Compute the values `[...]` of latent states."""
        return mean(self.critic.apply(params["critic"], latent))

    def reward_at(self, params: PyTree, latent: jax.Array) -> jax.Array:
        """Compute the rewards `[...]` of the steps that led to latent states."""
        return mean(self.reward_head.apply(params["reward"], latent))

    def value_loss(self, params: PyTree, latent: jax.Array, target: jax.Array) -> jax.Array:
        """Compute the cross-entropies `[T, B]` of the values of latent states and their targets."""
        return self._loss(self.critic.apply(params["critic"], latent), target)

    def clipped(self, params: PyTree, latent: jax.Array, target: jax.Array) -> jax.Array:
        """Compute which targets `[T, B]` of values lie outside of the atoms."""
        return is_outside(signed_hyperbolic(target), self.critic.apply(params["critic"], latent).values)

    def reward_loss(self, params: PyTree, latent: jax.Array, target: jax.Array) -> jax.Array:
        """Compute the cross-entropies `[T, B]` of the rewards that led to latent states and their targets."""
        return self._loss(self.reward_head.apply(params["reward"], latent), target)

    def _loss(self, distribution: Any, target: jax.Array) -> jax.Array:
        loss = two_hot_loss_per_example if self.target_distribution == "two_hot" else hl_gauss_loss_per_example
        return jax.vmap(loss)(distribution.logits, distribution.values, signed_hyperbolic(target))

    def _with_action(self, latent: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.concatenate([latent, action_vector(self.action_space, action)], axis=-1)


def mean(distribution: Any) -> jax.Array:
    """Return the values that distributions on the scale of `signed_hyperbolic` stand for (MuZero, appendix F)."""
    return signed_parabolic(distribution.mean())


def scale_to_unit(latent: jax.Array) -> jax.Array:
    """Scale each latent state to [0, 1].

        s <- (s - min(s)) / (max(s) - min(s))

    Source: Schrittwieser et al. 2020 (MuZero), appendix G.

    `latent`: `[..., D]`.
    Returns `[..., D]`.
    """
    low, high = jnp.min(latent, axis=-1, keepdims=True), jnp.max(latent, axis=-1, keepdims=True)
    return (latent - low) / jnp.maximum(high - low, 1e-5)


def make_latent_model(config: LatentModelConfig, spec: SystemSpec) -> LatentModel:
    """Build the model from the networks of a configuration."""
    networks = spec.networks
    representation, reward, actor, critic = (
        getattr(networks, f"{name}_network") for name in ("representation", "reward", "actor", "critic")
    )
    reward_head, critic_head = (configure_head(group.critic_head, config.support) for group in (reward, critic))
    return LatentModel(
        representation=CompositeNetwork((representation.input_layer, representation.pre_torso)),
        dynamics=CompositeNetwork((networks.dynamics_network.pre_torso,)),
        reward_head=FeedForwardCritic(reward_head, reward.pre_torso),
        actor=FeedForwardActor(actor.action_head, actor.pre_torso),
        critic=FeedForwardCritic(critic_head, critic.pre_torso),
        action_space=spec.action_space,
        target_distribution=config.target_distribution,
    )
