"""Components of on-policy actor-critic systems: PPO, A2C and their variants."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Annotated, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    ActorCriticOptStates,
    ActorCriticParams,
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    System,
    SystemSpec,
    TimeStep,
    Trajectory,
    Transition,
)
from stoix_like.networks.base import FeedForwardActor, FeedForwardCritic
from stoix_like.networks.requirements import STOCHASTIC_POLICY, VALUE, HeadRequirement, shares_torso
from stoix_like.schema import INT32_MAX, above, at_least, between, one_of
from stoix_like.systems.annealing import AnnealedConfig
from stoix_like.systems.exploration_noise import hold_noise_keys, initial_noise_keys
from stoix_like.systems.gradient_descent import Transform, gradient_step, make_optimiser
from stoix_like.systems.on_policy import OnPolicyConfig
from stoix_like.utils.jax_utils import Scalar, explained_variance, merge_leading_dims, standardize
from stoix_like.utils.loss import baseline_loss
from stoix_like.utils.multistep import (
    VTraceOutput,
    batch_truncated_generalized_advantage_estimation,
    batch_vtrace_td_error_and_advantage,
)
from stoix_like.utils.normalizer import Normalizer, RewardNormalizer, make_normalizer, make_reward_normalizer


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(AnnealedConfig, OnPolicyConfig):
    """Hyperparameters of a policy and its value function.

    Attributes:
        network_heads: heads that the system needs; a critic without a torso of its own shares that of the actor.
        annealed: hyperparameters that may change over the run.
        actor_lr: Adam learning rate of the actor.
        critic_lr: Adam learning rate of the critic.
        adam_eps: see `GradientConfig`.
        ent_coef: weight of the entropy bonus.
        final_ent_coef: weight of the entropy bonus at the end of the run; None keeps it constant.
        vf_coef: weight of the value loss.
        standardize_advantages: whether advantages are standardised to mean 0 and deviation 1: over the whole batch
            (True or `batch`), over each minibatch (`minibatch`), or not.
        normalize_observations: whether observations are normalised by their running mean and standard deviation, which
            are frozen in evaluation.
        vtrace: whether V-trace corrects values and advantages where the behaviour policy is not the current one, as
            with Sebulba.
        sde_sample_freq: steps for which an environment keeps its exploration noise, see `hold_noise_keys`; None draws
            new noise in every step.
    """

    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "critic_network.critic_head": HeadRequirement(VALUE, shares_torso_of="actor_network"),
    }
    annealed: ClassVar[tuple[str, ...]] = ("ent_coef",)
    actor_lr: Annotated[float, above(0.0)]
    critic_lr: Annotated[float, above(0.0)]
    adam_eps: Annotated[float, above(0.0)] = 1e-5
    ent_coef: Annotated[float, at_least(0.0)]
    final_ent_coef: Annotated[float | None, at_least(0.0)] = None
    vf_coef: Annotated[float, at_least(0.0)]
    standardize_advantages: bool | Annotated[str, one_of("batch", "minibatch")]
    normalize_observations: bool
    vtrace: bool = False
    sde_sample_freq: Annotated[int | None, between(1, INT32_MAX)] = None


class OnPolicyTransition(NamedTuple):
    """One step of a rollout with the inputs of the losses.

    Attributes:
        obs: the observation that the policy acted on, normalised if the run normalises observations; `Sequences` of
            them for recurrent networks.
        action: the action taken.
        log_prob: log-probability of the action under the behaviour policy.
        value: value of `obs` before the update.
        advantage: advantage of the action.
        target: value target.
    """

    obs: Any
    action: jax.Array
    log_prob: jax.Array
    value: jax.Array
    advantage: jax.Array
    target: jax.Array


class OnPolicyShared(NamedTuple):
    """The shared state of an agent: parameters, optimiser states, statistics, and updates so far if any are needed."""

    params: ActorCriticParams
    opt_states: ActorCriticOptStates
    statistics: Any
    return_statistics: Any = ()
    updates: Any = ()


def critic_variables(params: ActorCriticParams) -> PyTree:
    """Return the parameters of the critic, with those of the actor that it has none of."""
    return {"params": params.actor_params["params"] | params.critic_params.get("params", {})}


class SharedTorsoCritic(NamedTuple):
    """A critic whose parameters are those of its head alone; it is applied with those of a torso as well."""

    critic: Any

    def init(self, key: jax.Array, observation: Observation) -> PyTree:
        """Initialise the parameters of the head for observations `[N, ...]`."""
        params = self.critic.init(key, observation)["params"]
        return {"params": {"critic_head": params["critic_head"]}}

    def apply(self, params: PyTree, observation: Observation) -> Any:
        """Return the output of the head."""
        return self.critic.apply(params, observation)


@dataclass(frozen=True)
class ActorCritic(ABC):
    """Base class of on-policy actor-critic algorithms, with their hyperparameters, networks and optimisers.

    Subclasses implement `policy_loss`, and may replace the advantages, the value loss and the gradient steps. Actor and
    critic are functions of `OnPolicyTransition.obs`, with `init` and `apply` as flax modules have them.

    Attributes:
        ratio_in_loss: whether the policy loss weights advantages by the ratio of the current to the behaviour policy;
            otherwise V-trace does.
    """

    ratio_in_loss: ClassVar[bool] = False
    config: Any
    axes: Axes
    actor: Any
    critic: Any
    optim: optax.GradientTransformation
    normalizer: Normalizer
    reward_normalizer: RewardNormalizer
    num_updates: int

    @staticmethod
    def make_networks(networks: SimpleNamespace) -> tuple[Any, Any]:
        """Build the actor and the critic from the modules of the network configuration."""
        actor, critic = networks.actor_network, networks.critic_network
        body = actor if shares_torso(critic) else critic
        value = FeedForwardCritic(critic.critic_head, body.pre_torso, body.input_layer)
        return (
            FeedForwardActor(actor.action_head, actor.pre_torso, actor.input_layer),
            SharedTorsoCritic(value) if body is actor else value,
        )

    def init_carry(self, num_envs: int) -> Any:
        """Return the carry of `act` at the start of an episode: noise keys if noise is kept over several steps."""
        return () if self.config.sde_sample_freq is None else initial_noise_keys(num_envs)

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        """Initialise the agent."""
        actor_key, critic_key = jax.random.split(key)
        observation = timestep.observation
        params = ActorCriticParams(self.actor.init(actor_key, observation), self.critic.init(critic_key, observation))
        statistics = self.normalizer.init(observation), self.reward_normalizer.init()
        returns = self.reward_normalizer.init_returns(len(timestep.reward))
        updates = self.config.init_updates()
        return Agent(OnPolicyShared(params, self.optim.init(params), *statistics, updates), returns)

    def act(self, shared: Any, state: RolloutState, key: jax.Array, greedy: bool = False) -> tuple[Any, jax.Array, Any]:
        """Choose an action for each environment; the extras are the log-probabilities."""
        observation = self.normalizer.apply(shared.statistics, state.timestep.observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        if greedy:
            return state.carry, pi.mode(), ()
        carry, action = self.explore(pi, state, key)
        return carry, action, pi.log_prob(action)

    def explore(self, pi: Any, state: RolloutState, key: jax.Array) -> tuple[Any, jax.Array]:
        """Sample actions; the carry holds the noise keys if noise is kept over several steps."""
        steps = self.config.sde_sample_freq
        if steps is None:
            return state.carry, pi.sample(seed=key)
        keys = hold_noise_keys(state.carry, state.timestep, key, steps)
        return keys, jax.vmap(lambda pi, key: pi.sample(seed=key))(pi, keys)

    def value(self, params: ActorCriticParams, observation: Any) -> jax.Array:
        """Compute the values of observations."""
        return self.critic.apply(critic_variables(params), observation)

    def outputs(self, params: ActorCriticParams, observation: Any) -> tuple[Any, jax.Array]:
        """Compute the policy and the values of observations."""
        return self.actor.apply(params.actor_params, observation), self.value(params, observation)

    def inspect(self, shared: Any, observation: Observation) -> NetworkOutputs:
        """Return the policy and the values of observations `[B, ...]`."""
        observation = self.normalizer.apply(shared.statistics, observation)
        pi = self.actor.apply(shared.params.actor_params, observation)
        return NetworkOutputs(pi, self.value(shared.params, observation))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Return the agent as it is: it remembers nothing of a rollout but what it learns."""
        del trajectory
        return agent

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        """Learn from one rollout."""
        agent, batch = self.evaluate(agent, trajectory)
        shared, metrics = self.improve(agent.shared, batch, key)
        # Updated last: probability ratios need the statistics of the behaviour policy.
        statistics = self.normalizer.update(shared.statistics, trajectory.transitions.observation)
        updates = jax.tree.map(lambda count: count + 1, shared.updates)
        return Agent(shared._replace(statistics=statistics, updates=updates), agent.local), metrics

    def improve(self, shared: Any, batch: OnPolicyTransition, key: jax.Array) -> tuple[Any, Metrics]:
        """Learn from a batch `[B]` with the hyperparameters of this update."""
        config = self.config.at(shared.updates, self.num_updates)
        shared, metrics = replace(self, config=config).learn(shared, batch, key)
        metrics |= {name: getattr(config, name) for name in config.final_values}
        return shared, metrics | {"explained_variance": explained_variance(batch.value, batch.target, self.axes.names)}

    def evaluate(self, agent: Agent, trajectory: Trajectory) -> tuple[Agent, OnPolicyTransition]:
        """Compute the values and advantages of a rollout, in one pass over all steps.

        Args:
            agent: the agent before the update.
            trajectory: the rollout `[T, N]`.

        Returns:
            The agent with new statistics of returns, and the batch to learn from, `[B]`.
        """
        shared, returns, steps = self.normalize(agent.shared, agent.local, trajectory.transitions)
        v_tm1, v_t = (self.value(shared.params, obs) for obs in (steps.observation, steps.next_observation))
        batch = self.with_targets(shared, steps, v_tm1, v_t)
        return Agent(shared, returns), jax.tree.map(lambda x: merge_leading_dims(x, 2), batch)

    def normalize(self, shared: Any, returns: Any, steps: Transition) -> tuple[Any, Any, Transition]:
        """Normalise and scale the rewards of a rollout, and normalise its observations.

        Args:
            shared: the state before the update.
            returns: `[N]` discounted returns before the rollout, see `RewardNormalizer`.
            steps: the rollout `[T, N]`.

        Returns:
            The state with new statistics of returns, the returns after the rollout, and the rollout.
        """
        reward, statistics, returns = self.reward_normalizer.apply(shared.return_statistics, returns, steps)
        steps = steps._replace(
            observation=self.normalizer.apply(shared.statistics, steps.observation),
            next_observation=self.normalizer.apply(shared.statistics, steps.next_observation),
            reward=reward * self.config.reward_scale,
        )
        return shared._replace(return_statistics=statistics), returns, steps

    def with_targets(self, shared: Any, steps: Transition, v_tm1: jax.Array, v_t: jax.Array) -> OnPolicyTransition:
        """Compute the advantages, standardised if configured, and the value targets; see `advantages`."""
        advantage, target = self.advantages(shared, steps, v_tm1, v_t)
        if self.config.standardize_advantages in (True, "batch"):
            advantage = standardize(advantage, self.axes.names)
        return OnPolicyTransition(steps.observation, steps.action, steps.extras, v_tm1, advantage, target)

    def advantages(
        self, shared: Any, steps: Transition, v_tm1: jax.Array, v_t: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Compute generalised advantage estimates and value targets `[T, N]`, by V-trace if configured.

        Args:
            shared: the state before the update.
            steps: the rollout `[T, N]`, with normalised observations and scaled rewards.
            v_tm1: `[T, N]` values of the observations acted on.
            v_t: `[T, N]` values of their true successors.

        Returns:
            Advantages and value targets.
        """
        if self.config.vtrace:
            vtrace = self.vtrace(shared, steps, v_tm1, v_t)
            advantage = vtrace.q_estimate - v_tm1 if self.ratio_in_loss else vtrace.pg_advantage
            return advantage, v_tm1 + vtrace.errors
        return batch_truncated_generalized_advantage_estimation(
            steps.reward,
            self.config.gamma * (1.0 - steps.terminated),
            self.gae_lambda,
            v_tm1=v_tm1,
            v_t=v_t,
            truncation_t=steps.truncated,
            time_major=True,
        )

    @property
    def gae_lambda(self) -> Scalar:
        """Mixing parameter of n-step advantages."""
        return self.config.gae_lambda

    @property
    def max_ratios(self) -> tuple[Scalar, Scalar]:
        """Upper bounds of the probability ratios that weight value errors and advantages (V-trace)."""
        return 1.0, 1.0

    def vtrace(self, shared: Any, steps: Transition, v_tm1: jax.Array, v_t: jax.Array) -> VTraceOutput:
        """Compute V-trace errors and advantages `[T, N]` of the current policy; arguments as for `advantages`."""
        log_prob = self.actor.apply(shared.params.actor_params, steps.observation).log_prob(steps.action)
        return batch_vtrace_td_error_and_advantage(
            v_tm1,
            v_t,
            steps.reward,
            self.config.gamma * (1.0 - steps.terminated),
            jnp.exp(log_prob - steps.extras),
            self.gae_lambda,
            *self.max_ratios,
            truncation_t=steps.truncated,
            time_major=True,
        )

    def learn(self, shared: Any, batch: OnPolicyTransition, key: jax.Array) -> tuple[Any, Metrics]:
        """Take one gradient step on the whole rollout `[B]`."""
        return self.sgd_step(shared, shared, batch, key)

    def sgd_step(self, shared: Any, behaviour: Any, batch: OnPolicyTransition, key: jax.Array) -> tuple[Any, Metrics]:
        """Take one gradient step on one minibatch; `behaviour` is the state before the update."""
        batch = self.standardize_minibatch(batch)
        params, opt_states, metrics = gradient_step(
            self.loss, self.optim, self.axes, shared.params, shared.opt_states, behaviour, batch, key
        )
        return shared._replace(params=params, opt_states=opt_states), metrics

    def standardize_minibatch(self, batch: OnPolicyTransition) -> OnPolicyTransition:
        """Standardise the advantages of a minibatch, if configured."""
        if self.config.standardize_advantages != "minibatch":
            return batch
        return batch._replace(advantage=standardize(batch.advantage, self.axes.names))

    def loss(
        self, params: ActorCriticParams, behaviour: Any, batch: OnPolicyTransition, key: jax.Array
    ) -> tuple[jax.Array, Metrics]:
        """Compute the policy loss, the value loss and the entropy bonus."""
        pi, value = self.outputs(params, batch.obs)
        policy_loss, metrics = self.policy_loss(pi, behaviour, batch)
        entropy = jnp.mean(pi.entropy(seed=key))
        value_loss = self.value_loss(value, batch)
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy, **metrics}
        return policy_loss - self.config.ent_coef * entropy + self.config.vf_coef * value_loss, metrics

    @abstractmethod
    def policy_loss(self, pi: Any, behaviour: Any, batch: OnPolicyTransition) -> tuple[jax.Array, Metrics]:
        """Compute the loss of the policy `pi` at the observations of a minibatch, and further metrics.

        Args:
            pi: the current policy, a distribution of batch shape `[B]`.
            behaviour: the state before the update, with the parameters of the policy that acted.
            batch: the minibatch.

        Returns:
            The loss, a scalar, and the metrics.
        """

    def value_loss(self, value: jax.Array, batch: OnPolicyTransition) -> jax.Array:
        """Compute half the mean squared error of the values `[B]`."""
        return baseline_loss(value, batch.target)


def assemble(
    config: ActorCriticConfig,
    spec: SystemSpec,
    algorithm: type[ActorCritic],
    transform: Transform | None = None,
    **parts: Any,
) -> System:
    """Build an on-policy actor-critic system.

    Args:
        config: hyperparameters; the floats may be traced.
        spec: spaces, networks, axes and sizes.
        algorithm: a subclass of `ActorCritic`.
        transform: `(learning_rate) -> GradientTransformation` of the actor and the critic; None for Adam.
        **parts: attributes that the algorithm has beside those of `ActorCritic`.

    Returns:
        The system.
    """
    actor, critic = algorithm.make_networks(spec.networks)
    agent = algorithm(
        config,
        spec.axes,
        actor=actor,
        critic=critic,
        optim=actor_critic_optimiser(
            make_optimiser(config, spec, config.actor_lr, transform=transform),
            make_optimiser(config, spec, config.critic_lr, transform=transform),
        ),
        normalizer=make_normalizer(config.normalize_observations, spec.axes),
        reward_normalizer=make_reward_normalizer(config.normalize_rewards, config.gamma, spec.axes),
        num_updates=spec.num_updates,
        **parts,
    )
    return System(
        init=agent.init,
        act=agent.act,
        observe=agent.observe,
        update=agent.update,
        eval_act=partial(agent.act, greedy=spec.evaluation_greedy),
        init_carry=agent.init_carry,
        inspect=agent.inspect,
    )


def actor_critic_optimiser(
    actor_optim: optax.GradientTransformation, critic_optim: optax.GradientTransformation
) -> optax.GradientTransformation:
    """Combine the optimisers of an actor and a critic.

    Args:
        actor_optim: optimiser of `ActorCriticParams.actor_params`.
        critic_optim: optimiser of `ActorCriticParams.critic_params`.

    Returns:
        An optimiser of `ActorCriticParams` with the state `ActorCriticOptStates`.
    """

    def init(params: ActorCriticParams) -> ActorCriticOptStates:
        return ActorCriticOptStates(actor_optim.init(params.actor_params), critic_optim.init(params.critic_params))

    def update(
        grads: ActorCriticParams, state: ActorCriticOptStates, params: ActorCriticParams | None = None
    ) -> tuple[ActorCriticParams, ActorCriticOptStates]:
        actor_params, critic_params = (None, None) if params is None else params
        actor, actor_state = actor_optim.update(grads.actor_params, state.actor_opt_state, actor_params)
        critic, critic_state = critic_optim.update(grads.critic_params, state.critic_opt_state, critic_params)
        return ActorCriticParams(actor, critic), ActorCriticOptStates(actor_state, critic_state)

    return optax.GradientTransformation(init, update)
