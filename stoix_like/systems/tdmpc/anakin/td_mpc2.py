"""TD-MPC2 (Hansen, Su & Wang 2024, arXiv:2310.16828): planning in the latents of a model that learns by TD-learning.

A model without a decoder predicts latents, rewards and values from replayed sequences. Every step plans a few actions
ahead in it, starting from the last plan; a policy proposes plans and gives the value behind their horizon. Rewards and
values are distributions on the scale of symlog. A sequence that is truncated by a time limit bootstraps from the latent
of its true successor. A terminated one has no value behind its end; the model predicts ends, and plans stop there.

Shape letters: H horizon, B sequences, D width of a latent, N environments, S action sequences, A entries of an action.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Box
from stoix_like.schema import Range, above, at_least, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.normalizer import MIN_STD_OF_DATA, Normalizer, make_normalizer
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.return_scale import ReturnScale, ReturnScaleConfig, make_return_scale
from stoix_like.systems.parts.target import SoftTarget
from stoix_like.systems.tdmpc.planner import Plan, PlannerConfig, choose, describe, make_plan, shift
from stoix_like.systems.tdmpc.tdmpc_types import HorizonReplay, TDMPC2Params, TDMPC2Shared, alive, decay, scale_encoder
from stoix_like.systems.tdmpc.world_model import NETWORK_HEADS, ImplicitModel, ModelParams, SymlogAtoms, make_model
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.replay import SequenceReplay, Step, make_sequence_replay


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of TD-MPC2."""

    action_spaces: ClassVar[tuple[type, ...]] = (Box,)
    policy_hyperparams: ClassVar = {"iterations": 0}
    network_heads: ClassVar = NETWORK_HEADS
    replay: HorizonReplay
    planner: PlannerConfig
    atoms: SymlogAtoms
    gradients: Gradients
    resets: PeriodicResets
    target: SoftTarget
    returns: ReturnScaleConfig  # of the values in the policy's loss
    lr: Annotated[float, above(0.0)]  # Adam learning rate
    encoder_lr_scale: Annotated[float, above(0.0)]  # factor of the representation's learning rate
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    rho: Annotated[float, Range(0.0, 1.0, without_low=True)]  # decay of the weights of losses per step of a sequence
    consistency_coef: Annotated[float, at_least(0.0)]  # weight of the loss of latents
    reward_coef: Annotated[float, at_least(0.0)]  # weight of the loss of rewards
    vf_coef: Annotated[float, at_least(0.0)]  # weight of the value loss
    continue_coef: Annotated[float, at_least(0.0)]  # weight of the loss of ends
    ent_coef: Annotated[float, at_least(0.0)]  # weight of the entropy of the policy, in units of scaled values
    num_critics: Annotated[int, between(2, 1000)]  # number of critics, C
    episodic: bool  # whether to predict where episodes terminate
    normalize_observations: bool  # whether observations are normalised by their running mean and standard deviation


@dataclass(frozen=True)
class TDMPC2(Algorithm):
    """TD-MPC2 with its hyperparameters, networks and optimisers. The carry of `act` is the mean of the last plan."""

    config: Config
    axes: Axes
    model: ImplicitModel
    model_optim: optax.GradientTransformation
    actor_optim: optax.GradientTransformation
    normalizer: Normalizer
    returns: ReturnScale
    replay: SequenceReplay

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        model, actor = self.model.init(key, timestep.observation)
        params = TDMPC2Params(model, jax.tree.map(jnp.copy, model.q), actor)
        opt_states = self.model_optim.init(model), self.actor_optim.init(actor)
        statistics = self.normalizer.init(timestep.observation)
        return Agent(TDMPC2Shared(params, opt_states, statistics, self.returns.init()), self.replay.init(timestep))

    def init_carry(self, num_envs: int) -> PyTree:
        """Return the mean of the plan before an episode; none without plans."""
        shape = num_envs, self.config.replay.horizon, math.prod(self.model.action_space.shape)
        return jnp.zeros(shape, jnp.float32) if self.config.planner.iterations else ()

    def act(self, shared: TDMPC2Shared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose the first actions of plans, with noise unless greedy; without plans, actions of the policy."""
        if not self.config.planner.iterations:
            pi = self.inspect(shared, state.timestep.observation).policy
            return state.carry, pi.mode() if greedy else pi.sample(seed=key), ()
        plan, action = self.plan(shared, state, key, greedy)
        return jnp.moveaxis(plan.mean, 0, 1), action, ()

    def plan(self, shared: TDMPC2Shared, state: RolloutState, key: jax.Array, greedy: bool) -> tuple[Plan, jax.Array]:
        """Make a plan from the last one, and choose an action `[N, ...]`."""
        params, timestep = shared.params, state.timestep
        latent = self.model.represent(params.model, self.normalizer.apply(shared.statistics, timestep.observation))
        policy_key, plan_key, choose_key = jax.random.split(key, 3)
        horizon, number = self.config.replay.horizon, self.config.planner.num_policy_samples
        plan = make_plan(
            self.config.planner,
            partial(self.model.returns, params.model, params.actor, latent, self.config.gamma),
            self.model.follow_policy(params.model, params.actor, latent, jax.random.split(policy_key, horizon), number),
            shift(state.carry, timestep.starts_episode),
            plan_key,
        )
        return plan, self.model.from_vector(choose(plan, choose_key, greedy))

    def evaluation_search(self, greedy: bool) -> Callable[..., Any] | None:
        """Return a description of plans; None without plans."""

        def search(shared: TDMPC2Shared, state: RolloutState, key: jax.Array) -> Any:
            plan, action = self.plan(shared, state, key, greedy)
            value: Any = self.inspect(shared, state.timestep.observation).value
            return describe(plan, action, self.model.from_vector(plan.first), value)

        return search if self.config.planner.iterations else None

    def inspect(self, shared: TDMPC2Shared, observation: Observation) -> NetworkOutputs:
        """Return the policy, and the values of its modes, in units of return, at observations `[B, ...]`."""
        model = shared.params.model
        latent = self.model.represent(model, self.normalizer.apply(shared.statistics, observation))
        pi = self.model.policy(shared.params.actor, latent)
        values = self.model.values(model.q, latent, self.model.to_vector(pi.mode()))
        return NetworkOutputs(pi, jnp.mean(values, axis=-1))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        statistics = self.normalizer.update(agent.shared.statistics, trajectory.transitions.observation)
        return Agent(agent.shared._replace(statistics=statistics), self.replay.add(agent.local, trajectory))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.replay.sample(agent.local, key, 1.0).observations

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        def step(shared: TDMPC2Shared, sample_key: jax.Array, step_key: jax.Array) -> tuple[TDMPC2Shared, Metrics]:
            steps = self.replay.sample(agent.local, sample_key, 1.0).steps
            normalize: Any = partial(self.normalizer.apply, shared.statistics)
            views = {name: normalize(getattr(steps, name)) for name in ("observation", "next_observation")}
            return self.sgd_step(shared, steps._replace(**views), step_key)

        shared, metrics = replay_epochs(step, agent.shared, key, self.config.replay.epochs)
        return agent._replace(shared=shared), metrics

    def sgd_step(self, shared: TDMPC2Shared, steps: Step, key: jax.Array) -> tuple[TDMPC2Shared, Metrics]:
        """Take a gradient step of the model, then one of the policy in its latents, and move the targets."""
        target_key, model_key, policy_key = jax.random.split(key, 3)
        params, (model_state, actor_state) = shared.params, shared.opt_states
        targets = jax.lax.stop_gradient(self.targets(unpack(params), steps, target_key))
        model, model_state, (metrics, latent) = gradient_step(
            self.model_loss, self.model_optim, self.axes, params.model, model_state, steps, *targets, model_key
        )
        others = unpack(model), shared.value_percentiles, latent, steps, policy_key
        actor, actor_state, (policy_metrics, percentiles) = gradient_step(
            self.policy_loss, self.actor_optim, self.axes, params.actor, actor_state, *others
        )
        target_q = optax.incremental_update(model.q, params.target_q, self.config.target.tau)
        params, opt_states = TDMPC2Params(model, target_q, actor), (model_state, actor_state)
        shared = shared._replace(params=params, opt_states=opt_states, value_percentiles=percentiles)
        return shared, metrics | policy_metrics

    def targets(self, params: TDMPC2Params, steps: Step, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Compute the latents `[H, B, D]` of true successors, and the value targets `[H, B]` (equation 3)."""
        policy_key, value_key = jax.random.split(key)
        assert steps.next_observation is not None
        latent = self.model.represent(params.model, steps.next_observation)
        action = self.model.to_vector(self.model.policy(params.actor, latent).sample(seed=policy_key))
        value = jnp.min(self.model.two_values(params.target_q, latent, action, value_key), axis=-1)
        return latent, steps.reward + self.config.gamma * (1.0 - steps.terminated) * value

    def model_loss(
        self, params: ModelParams, steps: Step, successor: jax.Array, target: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
        """Compute the losses of latents, rewards, values and ends (equation 3); also the latents `[H + 1, B, D]`."""
        config, action = self.config, self.model.to_vector(steps.action)
        first = self.model.represent(params, jax.tree.map(lambda x: x[0], steps.observation))
        latent = self.model.unroll(params, first, action)
        before, after = latent[:-1], latent[1:]
        present, _ = alive(steps)
        weight = present * decay(config.rho, len(present))
        value_losses = self.model.value_losses(params.q, before, action, target, key)
        losses: Metrics = {
            "consistency_loss": jnp.mean(weight * jnp.mean(jnp.square(after - successor), axis=-1)),
            "reward_loss": jnp.mean(weight * self.model.reward_loss(params, before, action, steps.reward)),
            "q_loss": jnp.mean(weight * jnp.mean(value_losses, axis=-1)),
        }
        coefs = [config.consistency_coef, config.reward_coef, config.vf_coef]
        if (logit := self.model.logit_continues(params, after)) is not None:
            ends = optax.sigmoid_binary_cross_entropy(logit, 1.0 - steps.terminated)
            losses["continue_loss"] = jnp.mean(present * ends)
            coefs.append(config.continue_coef)
        loss = sum(coef * loss for coef, loss in zip(coefs, losses.values(), strict=True))
        return jnp.asarray(loss), (losses, jax.lax.stop_gradient(latent))

    def policy_loss(
        self, params: PyTree, model: ModelParams, percentiles: jax.Array, latent: jax.Array, steps: Step, key: jax.Array
    ) -> tuple[jax.Array, tuple[Metrics, jax.Array]]:
        """Compute the negative scaled value and entropy of the policy in latents `[H + 1, B, D]` (equation 4)."""
        action_key, value_key = jax.random.split(key)
        action, log_prob = self.model.policy(params, latent).sample_and_log_prob(seed=action_key)
        values = self.model.two_values(model.q, latent, self.model.to_vector(action), value_key)
        value = jnp.mean(values, axis=-1)
        percentiles = self.returns.update(percentiles, value[0])
        scaled = value / self.returns.scale(percentiles)
        _, present = alive(steps)
        weight = present * decay(self.config.rho, len(present))
        loss = -jnp.mean(weight * (scaled - self.config.ent_coef * log_prob))
        metrics = {"policy_loss": loss, "entropy": -jnp.mean(log_prob), "q_value": jnp.mean(value[0])}
        return loss, (metrics | {"value_range": self.returns.scale(percentiles)}, percentiles)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build TD-MPC2; the floats of the hyperparameters may be traced."""
    scaled = partial(scale_encoder, config.gradients, config.encoder_lr_scale)
    return TDMPC2(
        config,
        spec.axes,
        model=make_model(config.atoms, config.num_critics, config.episodic, spec),
        model_optim=make_optimiser(config, spec, config.lr, transform=scaled),
        actor_optim=make_optimiser(config, spec, config.lr),
        normalizer=make_normalizer(config.normalize_observations, spec.axes, min_std=MIN_STD_OF_DATA, data=spec.data),
        returns=make_return_scale(config.returns, spec.axes),
        replay=make_sequence_replay(config.replay, spec, (), reward_scale=config.reward_scale),
    )


build, run_experiment, hydra_entry_point = entry_points("tdmpc/td_mpc2", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
