"""The model of TD-MPC2: latents, their dynamics, rewards, values and a policy, without a decoder.

Shape letters: D width of a latent, A entries of an action, in units of half its range, K atoms, C critics, H horizon,
N environments, S action sequences, P of them from the policy.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.networks.base import CompositeNetwork, FeedForwardActor, FeedForwardCritic, MultiNetwork
from stoix_like.networks.inputs import ArrayInput
from stoix_like.networks.layers import DROPOUT
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, VALUE_ATOMS, HeadRequirement, check_latent_width
from stoix_like.systems.off_policy.actor_critic import make_critics
from stoix_like.systems.parts.action_vectors import action_vector, from_unit_vector
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss import two_hot_loss_per_example
from stoix_like.utils.scales import symexp, symlog

_ATOMS = HeadRequirement(VALUE_ATOMS, ("num_atoms", "vmin", "vmax"), latent=True)
NETWORK_HEADS = {
    "representation_network.pre_torso": HeadRequirement("a latent state"),
    "dynamics_network.pre_torso": HeadRequirement("a latent state", latent=True),
    "reward_network.critic_head": _ATOMS,
    "continue_network.critic_head": HeadRequirement(VALUE, latent=True),
    "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY, latent=True),
    "q_network.critic_head": _ATOMS._replace(dropout=True),
}
"""The heads, and the torsos without one, that an `ImplicitModel` is built from."""


@dataclass(frozen=True, kw_only=True)
class SymlogAtoms(AtomsConfig):
    """Hyperparameters of the distributions of rewards and values."""

    scale: ClassVar[str] = ", symlog(value)"


class ModelParams(NamedTuple):
    """Parameters of the networks that learn from the losses of the model."""

    representation: PyTree
    dynamics: PyTree
    reward: PyTree
    continues: PyTree  # `()` without a prediction of ends
    q: PyTree


class Predicted(NamedTuple):
    """The prediction after some actions of sequences `[N, S]`."""

    latent: jax.Array  # `[N, S, D]`
    discount: jax.Array  # `[N, S]`, of what follows; zero after an end
    value: jax.Array  # `[N, S]`, the discounted rewards so far


@dataclass(frozen=True)
class ImplicitModel:
    """Networks of latents; actions are vectors in units of half their range."""

    representation: CompositeNetwork  # maps an observation to a latent
    dynamics: CompositeNetwork  # maps a latent and an action, side by side, to the next latent
    reward: FeedForwardCritic  # the distribution of the reward of an action in a latent
    continues: FeedForwardCritic | None  # the logit of the probability that an episode has not terminated in a latent
    critics: MultiNetwork  # the distributions of the values of an action in a latent
    actor: FeedForwardActor  # the policy in a latent
    action_space: Box

    def init(self, key: jax.Array, observation: Observation) -> tuple[ModelParams, PyTree]:
        """Initialise the parameters of the model and of the policy."""
        keys = jax.random.split(key, 6)
        representation = self.representation.init(keys[0], observation)
        latent = self.representation.apply(representation, observation)
        action = jax.vmap(self.action_space.sample)(jax.random.split(key, len(latent)))
        both = _joined(latent, self.to_vector(action))
        dynamics = self.dynamics.init(keys[1], both)
        check_latent_width(latent, self.dynamics.apply(dynamics, both))
        params = ModelParams(
            representation,
            dynamics,
            self.reward.init(keys[2], both),
            () if self.continues is None else self.continues.init(keys[3], latent),
            self.critics.init(keys[4], both),
        )
        return params, self.actor.init(keys[5], latent)

    def to_vector(self, action: jax.Array) -> jax.Array:
        """Return actions `[..., *shape]` of the environment as vectors `[..., A]`."""
        return action_vector(self.action_space, action)

    def from_vector(self, vector: jax.Array) -> jax.Array:
        """Return vectors `[..., A]` as actions `[..., *shape]` of the environment."""
        return from_unit_vector(self.action_space, vector)

    def represent(self, params: ModelParams, observation: Observation) -> jax.Array:
        """Return the latents `[..., D]` of observations."""
        return self.representation.apply(params.representation, observation)

    def step(self, params: ModelParams, latent: jax.Array, action: jax.Array) -> jax.Array:
        """Return the latents `[..., D]` after actions."""
        return self.dynamics.apply(params.dynamics, _joined(latent, action))

    def unroll(self, params: ModelParams, latent: jax.Array, actions: jax.Array) -> jax.Array:
        """Return latents `[B, D]`, and after them those after each of the actions `[H, B, A]`: `[H + 1, B, D]`."""

        def step(latent: jax.Array, action: jax.Array) -> tuple[jax.Array, jax.Array]:
            latent = self.step(params, latent, action)
            return latent, latent

        return jnp.concatenate([latent[None], jax.lax.scan(step, latent, actions)[1]])

    def policy(self, params: PyTree, latent: jax.Array) -> Any:
        """Return the policy in latents."""
        return self.actor.apply(params, latent)

    def follow_policy(
        self, params: ModelParams, actor_params: PyTree, latent: jax.Array, keys: jax.Array, number: int
    ) -> jax.Array:
        """Return action sequences `[H, N, P, A]` of the policy from latents `[N, D]`, with one key per step."""

        def step(latent: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
            action = self.to_vector(self.policy(actor_params, latent).sample(seed=key))
            return self.step(params, latent, action), action

        return jax.lax.scan(step, _repeated(latent, number), keys)[1]

    def returns(
        self, params: ModelParams, actor: PyTree, latent: jax.Array, gamma: Scalar, actions: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Predict the returns of action sequences: rewards, and the value of the policy behind them, until an end.

        Source: Hansen et al. 2024 (TD-MPC2), arXiv:2310.16828, equation 6; ends as in the authors' code.

        `latent`: `[N, D]`, where the sequences start.
        `actions`: `[H, N, S, A]`.
        Returns `[N, S]`.
        """
        policy_key, value_key = jax.random.split(key)

        def step(before: Predicted, action: jax.Array) -> tuple[Predicted, None]:
            latent, discount, value = before
            value += discount * self.reward_at(params, latent, action)
            latent = self.step(params, latent, action)
            logit = self.logit_continues(params, latent)
            return Predicted(latent, discount * (gamma if logit is None else gamma * (logit > 0.0)), value), None

        nothing = jnp.zeros(actions.shape[1:3])
        start = Predicted(_repeated(latent, actions.shape[2]), nothing + 1.0, nothing)
        (latent, discount, value), _ = jax.lax.scan(step, start, actions)
        action = self.to_vector(self.policy(actor, latent).sample(seed=policy_key))
        return value + discount * jnp.mean(self.two_values(params.q, latent, action, value_key), axis=-1)

    def reward_at(self, params: ModelParams, latent: jax.Array, action: jax.Array) -> jax.Array:
        """Compute the rewards `[...]` of actions."""
        return symexp(self.reward.apply(params.reward, _joined(latent, action))[0])

    def reward_loss(self, params: ModelParams, latent: jax.Array, action: jax.Array, target: jax.Array) -> jax.Array:
        """Compute the cross-entropies of rewards `[...]` and their predictions."""
        _, logits, atoms = self.reward.apply(params.reward, _joined(latent, action))
        return two_hot_loss_per_example(logits, atoms, symlog(target))

    def logit_continues(self, params: ModelParams, latent: jax.Array) -> jax.Array | None:
        """Compute the logits `[...]` of the probabilities that episodes have not terminated; None without them."""
        return None if self.continues is None else self.continues.apply(params.continues, latent)

    def values(self, q_params: PyTree, latent: jax.Array, action: jax.Array) -> jax.Array:
        """Compute the values `[..., C]` of actions, one per critic."""
        return symexp(self.critics.apply(q_params, _joined(latent, action))[0])

    def two_values(self, q_params: PyTree, latent: jax.Array, action: jax.Array, key: jax.Array) -> jax.Array:
        """Compute the values `[..., 2]` of actions by two critics drawn at random."""
        values = self.values(q_params, latent, action)
        return values[..., jax.random.choice(key, values.shape[-1], (2,), replace=False)]

    def value_losses(
        self, q_params: PyTree, latent: jax.Array, action: jax.Array, target: jax.Array, key: jax.Array
    ) -> jax.Array:
        """Compute the cross-entropies `[..., C]` of value targets `[...]` and the critics, with dropout."""
        _, logits, atoms = self.critics.apply(q_params, _joined(latent, action), rngs={DROPOUT: key})
        # The targets are the same for all critics.
        losses = jax.vmap(two_hot_loss_per_example, (-1, -1, None), -1)
        return losses(logits, atoms, symlog(target))


def _repeated(latent: jax.Array, number: int) -> jax.Array:
    """Return latents `[N, D]` as `[N, number, D]`."""
    return jnp.broadcast_to(latent[:, None], (len(latent), number, latent.shape[-1]))


def _joined(latent: jax.Array, action: jax.Array) -> jax.Array:
    return jnp.concatenate([latent, action], axis=-1)


def make_model(atoms: SymlogAtoms, num_critics: int, episodic: bool, spec: SystemSpec) -> ImplicitModel:
    """Build the model from the networks of a configuration."""
    networks, space = spec.networks, spec.action_space
    q_head = configure_head(networks.q_network.critic_head, atoms.support)
    # Its input is a latent and an action, not an observation.
    q_network = SimpleNamespace(critic_head=q_head, pre_torso=networks.q_network.pre_torso, input_layer=ArrayInput())
    if not isinstance(space, Box) or not space.bounded:
        raise ConfigError("system=tdmpc/td_mpc2 plans within bounds of actions: set bounds, or use system=ppo/ff_ppo")
    representation, continues, reward = (
        getattr(networks, f"{name}_network") for name in ("representation", "continue", "reward")
    )
    return ImplicitModel(
        representation=CompositeNetwork((representation.input_layer, representation.pre_torso)),
        dynamics=CompositeNetwork((networks.dynamics_network.pre_torso,)),
        reward=FeedForwardCritic(configure_head(reward.critic_head, atoms.support), reward.pre_torso),
        continues=FeedForwardCritic(continues.critic_head, continues.pre_torso) if episodic else None,
        critics=make_critics(q_network, num_critics),
        actor=FeedForwardActor(networks.actor_network.action_head, networks.actor_network.pre_torso),
        action_space=space,
    )
