"""What systems with a policy and critics of actions share, that learn from replay: SAC, DDPG and their variants."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Actor, Agent, Axes, Metrics, PyTree, System, SystemSpec, TimeStep, Trajectory
from stoix_like.envs.spaces import Box
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic, MultiNetwork
from stoix_like.schema import above, at_least, between
from stoix_like.systems.off_policy import OffPolicyConfig, make_optimiser
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.replay import Batch, Replay, make_replay


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(OffPolicyConfig):
    """Hyperparameters of a policy and its critics.

    Attributes:
        action_spaces: what they can act in.
        actor_lr: Adam step size of the policy.
        q_lr: Adam step size of the critics.
        policy_frequency: gradient steps of the critics per step of the policy; with it waits the temperature (SAC), or
            wait all targets (DDPG and its variants).
        noise_correlation: of the exploration noise of two successive steps.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    actor_lr: Annotated[float, above(0.0)]
    q_lr: Annotated[float, above(0.0)]
    policy_frequency: Annotated[int, at_least(1)]
    noise_correlation: Annotated[float, between(0.0, 1.0)]


@dataclass(frozen=True)
class ActorCritic(ABC):
    """A policy and critics that learn from replay: all but how they begin, act and learn."""

    config: Any
    axes: Axes
    replay: Replay
    actor: FeedForwardActor
    critics: MultiNetwork
    actor_optim: optax.GradientTransformation
    q_optim: optax.GradientTransformation

    @abstractmethod
    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """A new agent."""

    @abstractmethod
    def act(self, shared: Any, actor: Actor, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """An action for each environment; what is carried are the keys of the noise, see `hold_keys`."""

    @abstractmethod
    def learn(self, shared: Any, batch: Batch, key: jax.Array) -> tuple[Any, Metrics]:
        """One gradient step on a batch."""

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Store a rollout."""
        return agent._replace(local=self.replay.add(agent.local, trajectory))

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Several gradient steps, each on a batch of its own; metrics are averaged over them."""
        del trajectory

        def epoch(shared: PyTree, key: jax.Array) -> tuple[PyTree, Metrics]:
            sample_key, learn_key = jax.random.split(key)
            return self.learn(shared, self.replay.sample(agent.local, sample_key), learn_key)

        shared, metrics = jax.lax.scan(epoch, agent.shared, jax.random.split(key, self.config.epochs))
        return agent._replace(shared=shared), jax.tree.map(jnp.mean, metrics)

    def system(self, spec: SystemSpec) -> System:
        """What the runner calls."""
        return System(
            init=self.init,
            act=self.act,
            observe=self.observe,
            update=self.update,
            eval_act=partial(self.act, greedy=spec.evaluation_greedy),
            init_carry=first_keys,
        )


def make_parts(config: ActorCriticConfig, spec: SystemSpec, num_critics: int) -> dict[str, Any]:
    """What an `ActorCritic` is made of.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.
        num_critics: critics that learn side by side.

    Returns:
        Its attributes, by name.
    """
    network = spec.networks.actor_network
    return {
        "config": config,
        "axes": spec.axes,
        "replay": make_replay(config, spec),
        "actor": FeedForwardActor(network.action_head, network.pre_torso, network.input_layer),
        "critics": make_critics(spec.networks.q_network, num_critics),
        "actor_optim": make_optimiser(config, spec, config.actor_lr, config.policy_frequency),
        "q_optim": make_optimiser(config, spec, config.q_lr),
    }


def make_critics(network: SimpleNamespace, number: int) -> MultiNetwork:
    """Critics side by side, each with parameters of its own; their values are `[..., number]`.

    Args:
        network: `input_layer`, `pre_torso` and `critic_head` of one.
        number: how many.

    Returns:
        A network of `(observation, {"action": action})`, or of what else the input layer reads.
    """

    def critic() -> FeedForwardCritic:
        # Copies: one module object has one set of parameters, wherever it is called.
        parts = (network.critic_head, network.pre_torso, network.input_layer)
        return FeedForwardCritic(*(copy.deepcopy(part) for part in parts))

    return MultiNetwork(tuple(critic() for _ in range(number)))


def hold_keys(keys: jax.Array, timestep: TimeStep, key: jax.Array, correlation: Scalar) -> jax.Array:
    """A key per environment that is kept for some steps: what is drawn with it is correlated in time.

    Noise drawn with the keys is, at every single step, distributed as ever; the correlation of that of two successive
    steps is the probability of keeping the key. A new episode begins with a new key.

    Args:
        keys: `[N]` of the step before.
        timestep: what is acted on.
        key: a new key.
        correlation: probability of keeping a key, in [0, 1].

    Returns:
        `[N]` keys.
    """
    new_key, keep_key = jax.random.split(key)
    keep = jax.random.bernoulli(keep_key, correlation, keys.shape)
    begins = timestep.episode.finished | (timestep.episode.episode_length == 0)
    return jnp.where(keep & ~begins, keys, jax.random.split(new_key, keys.shape))


def first_keys(num_envs: int) -> jax.Array:
    """Keys to begin with, which `hold_keys` replaces at the first step of an episode: `[N]`."""
    return jax.random.split(jax.random.key(0), num_envs)
