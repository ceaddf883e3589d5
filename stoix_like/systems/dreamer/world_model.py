"""A world model of latents: it observes sequences, imagines others, and decodes both.

Shape letters: T time, B sequences, S starts of imagination, H imagined steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Dream, Metrics, Observation, PyTree, SystemSpec
from stoix_like.envs.spaces import Box, Mixed, ObservationSpace, Space, choices
from stoix_like.networks.base import FeedForwardCritic
from stoix_like.networks.distributions import mix_uniform
from stoix_like.networks.latents import mode, sample_straight_through
from stoix_like.networks.rssm import RSSM, Latent
from stoix_like.networks.world_model import decoded_view, decoder_loss
from stoix_like.schema import Part, at_least, between
from stoix_like.systems.parts.action_vectors import action_vector
from stoix_like.systems.parts.critic_outputs import two_hot_loss
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.loss import kl_balance_loss
from stoix_like.utils.replay import Stream, StreamBatch

Policy = Callable[[Latent, jax.Array | None, jax.Array], jax.Array]
"""`(latents [S], action mask [S, A] or None, key) -> actions [S, ...]`."""


class StoredLatent(NamedTuple):
    """A latent as the replay buffer holds it."""

    deterministic: jax.Array  # `[..., D]`
    classes: jax.Array  # `[..., G]` uint16, the classes of the categorical variables


class Observed(NamedTuple):
    """Latent states of sequences that a world model has observed."""

    latent: Latent  # `[T, B]`, after each observation
    posterior: jax.Array  # `[T, B, G, K]`, logits of its random part
    prior: jax.Array  # `[T, B, G, K]`, those before the observation was known


class Imagined(NamedTuple):
    """Imagined trajectories."""

    latent: Latent  # `[H + 1, S]`, the first ones are those that imagination started from
    action: jax.Array  # `[H, S, ...]`
    mask: jax.Array | None  # `[H, S, A]` bool, the actions that were legal there; None where all are


@dataclass(frozen=True, kw_only=True)
class WorldModelConfig(Part):
    """Hyperparameters of the world model."""

    free_nats: Annotated[float, at_least(0.0)]  # KL of the random part, in nats, below which losses do not reduce it
    uniform_mix: Annotated[float, between(0.0, 1.0)]  # share of the uniform distribution in the random part
    reconstruction_coef: Annotated[float, at_least(0.0)]  # weight of the loss of reconstructed observations
    reward_coef: Annotated[float, at_least(0.0)]  # weight of the loss of rewards
    continue_coef: Annotated[float, at_least(0.0)]  # weight of the loss of continuations
    dynamics_coef: Annotated[float, at_least(0.0)]  # weight of the loss that trains the prior towards the posterior
    representation_coef: Annotated[float, at_least(0.0)]  # likewise, of the posterior towards the prior


class _Networks(nn.Module):
    """The networks of latents and observations, with one set of parameters."""

    encoder: nn.Module
    dynamics: RSSM
    decoder: nn.Module
    num_choices: int

    def setup(self) -> None:
        """Create the layers that predict which actions are legal."""
        self.legal = nn.Sequential([nn.Dense(self.dynamics.hidden_size), nn.silu, nn.Dense(self.num_choices)])

    def initialise(self, observation: Observation, latent: Latent, action: jax.Array) -> None:
        """Call every layer once."""
        embedding = self.embed(observation.agent_view)
        deterministic = self.dynamics.advance(latent, action)
        self.dynamics.prior(deterministic)
        self.dynamics.posterior(deterministic, embedding)
        self.decoder(latent.features)
        if observation.action_mask is not None:
            self.legal(latent.features)

    def embed(self, view: PyTree) -> jax.Array:
        """Return what the posterior needs of observations."""
        return self.dynamics.embed_tokens(self.encoder(view))


@dataclass(frozen=True)
class WorldModel:
    """A recurrent state-space model, with an encoder and a decoder of observations, rewards and continuations."""

    config: WorldModelConfig  # hyperparameters
    networks: _Networks  # networks of latents and observations
    reward_network: FeedForwardCritic  # the distribution of the reward that led to a latent
    continue_network: FeedForwardCritic  # the logit of the probability that the episode has not terminated in a latent
    observation_space: ObservationSpace  # the space of `Observation.agent_view`
    action_space: Space

    def init(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters for observations `[N, ...]`."""
        batch = jax.tree.leaves(observation.agent_view)[0].shape[:1]
        keys, latent = jax.random.split(key, 4), self.initial(batch)
        action = self._vector(jax.vmap(self.action_space.sample)(jax.random.split(keys[0], batch[0])))
        return {
            "latents": self.networks.init(keys[1], observation, latent, action, method="initialise"),
            "reward": self.reward_network.init(keys[2], latent.features),
            "continues": self.continue_network.init(keys[3], latent.features),
        }

    def initial(self, batch: tuple[int, ...]) -> Latent:
        """Return the latents before the first observation of episodes."""
        return self.networks.dynamics.initial(batch)

    def step(
        self,
        params: PyTree,
        latent: Latent,
        action: jax.Array,
        observation: Observation,
        is_first: jax.Array,
        key: jax.Array | None,
    ) -> Latent:
        """Return the latents `[N]` after the next observations; with the likeliest random part without a key."""
        embedding = self._apply("embed", params, observation.agent_view)
        deterministic = self._advance(params, latent, self._vector(action), is_first)
        logits = self._logits("posterior", params, deterministic, embedding)
        return Latent(deterministic, mode(logits) if key is None else sample_straight_through(key, logits))

    def observe(self, params: PyTree, latent: Latent, entries: Stream, key: jax.Array) -> Observed:
        """Compute the latents of sequences `[T, B]`; where episodes start, latents and actions are reset.

        `latent`: `[B]`, before the first entry.
        """

        def step(latent: Latent, inputs: PyTree) -> tuple[Latent, tuple[Latent, jax.Array]]:
            embedding, vector, is_first, key = inputs
            deterministic = self._advance(params, latent, vector, is_first)
            logits = self._logits("posterior", params, deterministic, embedding)
            latent = Latent(deterministic, sample_straight_through(key, logits))
            return latent, (latent, logits)

        embedding, vector = self._apply("embed", params, entries.observation.agent_view), self._vector(entries.action)
        inputs = embedding, vector, entries.is_first, jax.random.split(key, len(entries.is_first))
        _, (latents, posterior) = jax.lax.scan(step, latent, inputs)
        return Observed(latents, posterior, self._logits("prior", params, latents.deterministic))

    def imagine(
        self, params: PyTree, latent: Latent, mask: jax.Array | None, policy: Policy, key: jax.Array, length: int
    ) -> Imagined:
        """Continue from latents with the actions of a policy.

        `latent`: `[S]`, the starts.
        `mask`: `[S, A]` bool, the legal actions there; None where all are. Later ones are decoded.
        """

        def step(carry: tuple[Latent, jax.Array | None], key: jax.Array) -> tuple[PyTree, PyTree]:
            (latent, mask), (act_key, key) = carry, jax.random.split(key)
            action = policy(latent, mask, act_key)
            deterministic = self._apply("dynamics.advance", params, latent, self._vector(action))
            logits = self._logits("prior", params, deterministic)
            following = Latent(deterministic, sample_straight_through(key, logits))
            legal = None if mask is None else self._apply("legal", params, following.features) > 0.0
            return (following, legal), (latent, action, mask)

        (last, _), (latents, action, mask) = jax.lax.scan(step, (latent, mask), jax.random.split(key, length))
        return Imagined(jax.tree.map(lambda x, y: jnp.concatenate([x, y[None]]), latents, last), action, mask)

    def decode(self, params: PyTree, latent: Latent) -> PyTree:
        """Return the views that latents stand for, like `Observation.agent_view`, as floats in its units."""
        return decoded_view(self.observation_space, self._apply("decoder", params, latent.features))

    def reward(self, params: PyTree, latent: Latent) -> Any:
        """Return the distributions of the rewards that led to latents."""
        return self.reward_network.apply(params["reward"], latent.features)

    def continues(self, params: PyTree, latent: Latent) -> jax.Array:
        """Return the probabilities that episodes have not terminated in latents."""
        return jax.nn.sigmoid(self.continue_network.apply(params["continues"], latent.features))

    def loss(self, params: PyTree, batch: StreamBatch, key: jax.Array) -> tuple[jax.Array, Latent, Metrics]:
        """Compute the loss of sequences; also their latents `[T, B]` and metrics.

            L = L_observation + L_reward + L_continue + b_dyn L_dyn + b_rep L_rep

        Source: Hafner et al. 2025, equations 2 and 3. A truncated episode continues.

        `batch`: `[T, B]`.
        """
        entries = batch.entries
        latent, posterior, prior = self.observe(params, self.restored(batch.latent), entries, key)
        dynamics, representation = kl_balance_loss(posterior, prior, self.config.free_nats)
        continues = self.continue_network.apply(params["continues"], latent.features)
        losses = {
            "reconstruction": self.reconstruction_loss(params, latent, entries.observation),
            "reward": two_hot_loss(self.reward(params, latent), entries.reward),
            "continue": optax.sigmoid_binary_cross_entropy(continues, 1.0 - entries.terminated),
            "dynamics": dynamics,
            "representation": representation,
        }
        means = {name: jnp.mean(loss) for name, loss in losses.items()}
        loss = jnp.sum(jnp.stack([getattr(self.config, f"{name}_coef") * mean for name, mean in means.items()]))
        return loss, latent, {f"{name}_loss": mean for name, mean in means.items()}

    def dream(self, params: PyTree, observation: Observation, action: jax.Array, context: int) -> Dream:
        """Predict the observations of episodes from the first ones and the actions, with the likeliest latents.

        `observation`: `[T, B, ...]`, from the first ones of episodes.
        `action`: `[T, B, ...]`, those that led to them.
        """
        embedding, vector = self._apply("embed", params, observation.agent_view), self._vector(action)
        times = jnp.arange(len(vector))

        def step(latent: Latent, inputs: PyTree) -> tuple[Latent, Latent]:
            embedding, vector, time = inputs
            deterministic = self._advance(params, latent, vector, jnp.full(len(vector), time == 0))
            known = self._logits("posterior", params, deterministic, embedding)
            logits = jnp.where(time < context, known, self._logits("prior", params, deterministic))
            latent = Latent(deterministic, mode(logits))
            return latent, latent

        _, latents = jax.lax.scan(step, self.initial(vector.shape[1:2]), (embedding, vector, times))
        return Dream(self.decode(params, latents), self.reward(params, latents).mean(), self.continues(params, latents))

    def reconstruction_loss(self, params: PyTree, latent: Latent, observation: Observation) -> jax.Array:
        """Compute the losses `[...]` of the observations that latents stand for.

        They are the losses of `decoder_loss`, and the binary cross-entropies of the action mask.
        """
        predictions = self._apply("decoder", params, latent.features)
        losses: jax.Array = decoder_loss(self.observation_space, predictions, observation.agent_view)
        if observation.action_mask is None:
            return losses
        logits = self._apply("legal", params, latent.features)
        return losses + optax.sigmoid_binary_cross_entropy(logits, observation.action_mask).sum(axis=-1)

    def stored(self, latent: Latent) -> StoredLatent:
        """Return latents as the replay buffer holds them."""
        return StoredLatent(latent.deterministic, jnp.argmax(latent.stochastic, axis=-1).astype(jnp.uint16))

    def restored(self, stored: StoredLatent) -> Latent:
        """Return latents that were stored."""
        size = self.networks.dynamics.num_classes
        return Latent(stored.deterministic, jax.nn.one_hot(stored.classes, size, dtype=jnp.float32))

    def _advance(self, params: PyTree, latent: Latent, vector: jax.Array, is_first: jax.Array) -> jax.Array:
        """Return the next deterministic parts; where episodes start, latents and actions are zeros."""

        def reset(x: jax.Array) -> jax.Array:
            return jnp.where(is_first.reshape(-1, *(1,) * (x.ndim - 1)), 0.0, x)

        return self._apply("dynamics.advance", params, jax.tree.map(reset, latent), reset(vector))

    def _logits(self, name: str, params: PyTree, *args: jax.Array) -> jax.Array:
        return mix_uniform(self._apply(f"dynamics.{name}", params, *args), self.config.uniform_mix)

    def _apply(self, name: str, params: PyTree, *args: PyTree) -> PyTree:
        """Apply a method of the networks, or one of their parts."""
        latents = unpack(params)["latents"]
        return self.networks.apply(latents, *args, method=lambda nets, *args: attrgetter(name)(nets)(*args))

    def _vector(self, action: jax.Array) -> jax.Array:
        return action_vector(self.action_space, action)


def no_action(space: Space) -> jax.Array:
    """Return what stands for the action before an episode: its vector is zeros, as `_advance` makes it there."""
    if isinstance(space, Mixed):
        return space.join([no_action(part) for part in space.parts])
    if not isinstance(space, Box):
        return jnp.full(space.shape, -1, space.dtype)
    return jnp.asarray(space.centre, space.dtype)


def make_world_model(config: WorldModelConfig, spec: SystemSpec) -> WorldModel:
    """Build the model from the networks of a configuration."""
    parts, space = spec.networks.world_model, spec.observation_space
    reward, continues = spec.networks.reward_network, spec.networks.continue_network
    networks = _Networks(
        parts.encoder.clone(space=space),
        parts.dynamics,
        parts.decoder.clone(space=space),
        num_choices=sum(choices(spec.action_space)),
    )
    return WorldModel(
        config,
        networks,
        FeedForwardCritic(reward.critic_head, reward.pre_torso),
        FeedForwardCritic(continues.critic_head, continues.pre_torso),
        space,
        spec.action_space,
    )
