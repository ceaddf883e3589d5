"""Intrinsic rewards of on-policy systems: novelty over the run (RND), or likeness to demonstrations (GAIL).

An intrinsic reward has its own value function and discount. Its advantages are added to the task's, so
that policies and critics of all kinds, recurrent ones among them, learn as they do without it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Axes, Loss, Metrics, Observation, PyTree, SystemSpec, TimeStep, Transition
from stoix_like.errors import ConfigError
from stoix_like.networks.feed_forward import FeedForwardCritic
from stoix_like.networks.heads.critics import ScalarCriticHead
from stoix_like.networks.torso.images import GridTorso
from stoix_like.schema import above, at_least, between, one_of
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.parts.action_vectors import action_vector, clip_to_bounds
from stoix_like.systems.parts.advantages import Advantages, make_advantages
from stoix_like.systems.parts.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer
from stoix_like.systems.parts.optimiser import gradient_step, make_optimiser
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.replay import DataFile

_FEATURES, _UNITS = 64, 64
_GAE_LAMBDA = 0.95
_MAX_ABS_OBSERVATION = 5.0
_ADAM_EPS = 1e-5
# Beyond the numbers of the keys that others split off.
_STREAM = 2**31 - 1


@dataclass(frozen=True, kw_only=True)
class IntrinsicReward(DataFile):
    """Hyperparameters of an intrinsic reward."""

    # `rnd`, `gail` with `data` as demonstrations, or None for no intrinsic reward.
    intrinsic: Annotated[str | None, one_of("rnd", "gail")] = None
    intrinsic_weight: Annotated[float, at_least(0.0)] = 1.0  # of its advantages; the task's have weight one
    intrinsic_gamma: Annotated[float, between(0.0, 1.0)] = 0.99  # its discount per step
    intrinsic_lr: Annotated[float, above(0.0)] = 1e-3  # Adam learning rate of its networks

    @property
    def reads_successors(self) -> bool:
        """The rewards belong to successors."""
        return self.intrinsic is not None

    def check(self, config: Any, num_envs: int, num_shards: int) -> None:
        """Check that there are data if, and only if, they are read."""
        if (self.intrinsic == "gail") != (self.data is not None):
            raise ConfigError(
                f"system.intrinsic={self.intrinsic} system.data={self.data}: demonstrations, system.data=FILE, are what"
                " system.intrinsic=gail is drawn to: set both, or neither"
            )


class IntrinsicState(NamedTuple):
    """The part of an intrinsic reward in `Agent.shared`."""

    params: dict[str, PyTree]  # parameters by network: `value`, and the bonus's own
    target: PyTree  # parameters that are never learned, the random network of RND; `()` for GAIL
    opt_state: PyTree  # state of the optimiser
    statistics: PyTree  # statistics of observations
    return_statistics: PyTree  # statistics of discounted intrinsic returns


def intrinsic_key(key: jax.Array) -> jax.Array:
    """Return a key for the intrinsic reward; others of the same update are split off their key as before."""
    return jax.random.fold_in(key, _STREAM)


Added = tuple[PyTree, PyTree, jax.Array, Metrics]
"""The state, the memory, the sum of the advantages, and metrics."""


class Intrinsic(NamedTuple):
    """Functions of an intrinsic reward."""

    init: Callable[[jax.Array, TimeStep], PyTree] = lambda key, timestep: ()  # `(key, time step) -> state`, shared
    init_memory: Callable[[int], PyTree] = lambda num_envs: ()  # `(num_envs) -> memory [N]`, discounted returns so far
    add: Callable[..., Added] = lambda state, memory, steps, advantage, key: (state, memory, advantage, {})


class _Sample(NamedTuple):
    """Data for the networks of an intrinsic reward, `[B, ...]`: steps of the environment, and value targets."""

    observation: Observation
    next_observation: Observation
    action: PyTree
    target: jax.Array
    demonstrations: PyTree = ()


@dataclass(frozen=True)
class _Bonus:
    """An intrinsic reward: its networks, and how they learn."""

    config: IntrinsicReward
    axes: Axes
    passes: MinibatchConfig
    value: FeedForwardCritic
    features: FeedForwardCritic
    optim: optax.GradientTransformation
    normalizer: Normalizer
    rewards: RewardNormalizer
    advantages: Advantages
    spec: SystemSpec

    def init(self, key: jax.Array, timestep: TimeStep) -> IntrinsicState:
        """Initialise the networks and the statistics."""
        value_key, key = jax.random.split(key)
        observation = timestep.observation
        params, target = self.init_bonus(key, observation)
        params |= {"value": self.value.init(value_key, observation)}
        statistics = self.normalizer.init(observation), self.rewards.init()
        return IntrinsicState(params, target, self.optim.init(params), *statistics)

    def init_memory(self, num_envs: int) -> jax.Array:
        """Return the memory before the first rollout."""
        return self.rewards.init_returns(num_envs)

    def init_bonus(self, key: jax.Array, observation: Observation) -> tuple[dict[str, PyTree], PyTree]:
        """Return the learned and the fixed parameters of the bonus."""
        raise NotImplementedError

    def bonus(self, state: IntrinsicState, steps: Transition) -> jax.Array:
        """Return the rewards `[T, N]` for normalised observations."""
        raise NotImplementedError

    def bonus_loss(self, params: dict[str, PyTree], target: PyTree, batch: _Sample) -> jax.Array:
        """Return the loss of the networks of the bonus."""
        raise NotImplementedError

    def add(
        self, state: IntrinsicState, memory: jax.Array, steps: Transition, advantage: jax.Array, key: jax.Array
    ) -> Added:
        """`steps` have the observations of the environment."""
        state = state._replace(statistics=self.normalizer.update(state.statistics, steps.next_observation))
        steps = steps._replace(
            observation=self.normalizer.apply(state.statistics, steps.observation),
            next_observation=self.normalizer.apply(state.statistics, steps.next_observation),
        )
        bonus = self.bonus(state, steps)
        task = self.as_task(steps._replace(reward=bonus))
        # Returns that never end would otherwise keep what made a member diverge, also after a copy has replaced it.
        memory = jnp.where(jnp.isfinite(memory), memory, 0.0)
        reward, return_statistics, returns = self.rewards.apply(state.return_statistics, memory, task)
        state = state._replace(return_statistics=return_statistics)
        added, target = self.estimate(state.params["value"], task._replace(reward=reward))
        demonstrations = self.draw_demonstrations(state.statistics, steps.reward.shape, key)
        batch = _Sample(steps.observation, steps.next_observation, steps.action, target, demonstrations)
        batch = jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)
        sgd_step, learned = partial(self.sgd_step, state.target), (state.params, state.opt_state)
        learned, metrics = minibatch_epochs(sgd_step, learned, batch, key, self.passes, step_keys=False)
        state = state._replace(params=learned[0], opt_state=learned[1])
        metrics |= {"intrinsic_reward": jnp.mean(bonus)}
        return state, returns, advantage + self.config.intrinsic_weight * added, metrics

    def draw_demonstrations(self, statistics: PyTree, shape: tuple[int, ...], key: jax.Array) -> PyTree:
        """Return normalised observations and actions of the data, `[*shape, ...]`: none."""
        return ()

    def as_task(self, steps: Transition) -> Transition:
        """Return the transitions of the task that the intrinsic rewards pose; by default, the environment's."""
        return steps

    def estimate(self, params: PyTree, steps: Transition) -> tuple[jax.Array, jax.Array]:
        """Compute the advantages and value targets of the intrinsic rewards `[T, N]`."""
        v_tm1, v_t = (self.value.apply(params, x) for x in (steps.observation, steps.next_observation))
        return self.advantages(steps, v_tm1, v_t, lambda: None)

    def sgd_step(self, fixed: PyTree, learned: PyTree, batch: _Sample, key: None) -> tuple[PyTree, Metrics]:
        """Take one gradient step of the value function and the networks of the bonus."""
        params, opt_state, metrics = gradient_step(self.loss, self.optim, self.axes, *learned, fixed, batch)
        return (params, opt_state), metrics

    def loss(self, params: dict[str, PyTree], fixed: PyTree, batch: _Sample) -> Loss:
        """Compute the losses of the value function and of the networks of the bonus."""
        value_loss = baseline_loss(self.value.apply(params["value"], batch.observation), batch.target)
        bonus_loss = self.bonus_loss(params, fixed, batch)
        return value_loss + bonus_loss, {"intrinsic_value_loss": value_loss, "intrinsic_loss": bonus_loss}


class _RND(_Bonus):
    """Random network distillation: the error of a network that predicts the output of a fixed random one.

        r_t = mean (f_hat(o_{t+1}) - f(o_{t+1}))^2

    Its returns continue beyond the end of episodes. Unlike in the paper, both networks have one architecture, the
    predictor learns from every step, intrinsic advantages weigh as much as the task's, not half as much, and
    images and symbols are not normalised.

    Source: Burda et al., Exploration by Random Network Distillation (2018), arXiv:1810.12894, section 2.
    """

    def init_bonus(self, key: jax.Array, observation: Observation) -> tuple[dict[str, PyTree], PyTree]:
        predictor, target = (self.features.init(key, observation) for key in jax.random.split(key))
        return {"predictor": predictor}, target

    def _errors(self, predictor: PyTree, target: PyTree, observation: Observation) -> jax.Array:
        found, wanted = (self.features.apply(params, observation) for params in (predictor, target))
        return jnp.mean(jnp.square(found - jax.lax.stop_gradient(wanted)), axis=-1)

    def bonus(self, state: IntrinsicState, steps: Transition) -> jax.Array:
        return self._errors(state.params["predictor"], state.target, steps.next_observation)

    def bonus_loss(self, params: dict[str, PyTree], target: PyTree, batch: _Sample) -> jax.Array:
        return jnp.mean(self._errors(params["predictor"], target, batch.next_observation))

    def as_task(self, steps: Transition) -> Transition:
        # The first observation of the next episode follows the end of one; after the last step of the rollout, where
        # it is not known, the last observation of the episode stands for it.
        views = steps.observation, steps.next_observation
        following = jax.tree.map(lambda first, successor: jnp.concatenate([first[1:], successor[-1:]]), *views)
        never = jnp.zeros_like(steps.terminated)
        return steps._replace(next_observation=following, terminated=never, truncated=never, is_first=never)


class _Discriminator(nn.Module):
    """The logit of whether an action is one of the demonstrations, given the features of the state."""

    @nn.compact
    def __call__(self, phi: jax.Array, action: jax.Array) -> jax.Array:
        x = nn.Dense(_UNITS)(jnp.concatenate([nn.tanh(phi), action], axis=-1))
        return nn.Dense(1)(nn.tanh(x))[..., 0]


class _GAIL(_Bonus):
    """Likeness to demonstrations: how sure a classifier is that an action is theirs.

        r_t = -log(1 - D(o_t, a_t))

    Source: Ho & Ermon, Generative Adversarial Imitation Learning (2016), arXiv:1606.03476, algorithm 1, where
    the classifier learns from a rollout first, by one gradient step; here it rewards the rollout, and then learns from
    it by one per minibatch and epoch of the policy.
    """

    def init_bonus(self, key: jax.Array, observation: Observation) -> tuple[dict[str, PyTree], PyTree]:
        features_key, key = jax.random.split(key)
        features = self.features.init(features_key, observation)
        phi = self.features.apply(features, observation)
        action = jax.vmap(self.spec.action_space.sample)(jax.random.split(key, len(phi)))
        return {"features": features, "classifier": _Discriminator().init(key, phi, self._vector(action))}, ()

    def _vector(self, action: jax.Array) -> jax.Array:
        """Return actions `[..., *shape]` as vectors `[..., A]`, as the environment takes them and data record them."""
        space: Any = self.spec.action_space
        return action_vector(space, clip_to_bounds(space, action))

    def _logits(self, params: dict[str, PyTree], observation: Observation, action: jax.Array) -> jax.Array:
        phi = self.features.apply(params["features"], observation)
        logits: Any = _Discriminator().apply(params["classifier"], phi, self._vector(action))
        return logits

    def draw_demonstrations(self, statistics: PyTree, shape: tuple[int, ...], key: jax.Array) -> PyTree:
        rows = self.spec.data.windows(intrinsic_key(key), math.prod(shape), 1).reshape(shape)
        steps = self.spec.data.take(rows, 1.0)
        return self.normalizer.apply(statistics, steps.observation), steps.action

    def bonus(self, state: IntrinsicState, steps: Transition) -> jax.Array:
        return jax.nn.softplus(self._logits(state.params, steps.observation, steps.action))

    def bonus_loss(self, params: dict[str, PyTree], target: PyTree, batch: _Sample) -> jax.Array:
        played = jax.nn.softplus(self._logits(params, batch.observation, batch.action))
        return jnp.mean(played) + jnp.mean(jax.nn.softplus(-self._logits(params, *batch.demonstrations)))


_BONUSES: dict[str, type[_Bonus]] = {"rnd": _RND, "gail": _GAIL}


def make_intrinsic(config: IntrinsicReward | None, system: Any, spec: SystemSpec) -> Intrinsic:
    """Build the intrinsic reward of a configuration; its networks have the input layer and torso of the actor."""
    if config is None or config.intrinsic is None:
        return Intrinsic()
    if not spec.share_networks:
        raise ConfigError(
            f"system.intrinsic={config.intrinsic} has one network for all agents, which does not fit"
            " network.share=false: use network.share=true with env.agent_ids=one_hot"
        )
    from stoix_like.networks.heads.general import LinearHead  # systems without intrinsic rewards start without it

    actor: SimpleNamespace = spec.networks.actor_network
    body = actor.pre_torso, actor.input_layer
    bonus = _BONUSES[config.intrinsic](
        config,
        spec.axes,
        system.find_part(MinibatchConfig) or MinibatchConfig(epochs=1, num_minibatches=1),
        value=FeedForwardCritic(ScalarCriticHead(), *body),
        features=FeedForwardCritic(LinearHead(_FEATURES, nn.initializers.orthogonal(1.0)), *body),
        optim=make_optimiser(system, spec, config.intrinsic_lr, transform=partial(optax.adam, eps=_ADAM_EPS)),
        normalizer=make_normalizer(not isinstance(actor.pre_torso, GridTorso), spec.axes, _MAX_ABS_OBSERVATION),
        rewards=make_reward_normalizer(True, config.intrinsic_gamma, spec.axes),
        advantages=make_advantages(config.intrinsic_gamma, _GAE_LAMBDA),
        spec=spec,
    )
    return Intrinsic(bonus.init, bonus.init_memory, bonus.add)
