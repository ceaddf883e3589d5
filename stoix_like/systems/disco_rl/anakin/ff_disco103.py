"""Disco103, a discovered update rule, with feed-forward networks (Oh et al. 2025, doi:10.1038/s41586-025-09761-x).

A meta-network with weights learned on many tasks reads replayed trajectories with the agent's predictions, and
returns targets for its policy and for predictions with a meaning that the rule discovered. The agent learns them by
cross-entropy, in addition to action values by Retrace, which the meta-network reads, and the policy one step ahead.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax
import rlax

from stoix_like import weights
from stoix_like.base_types import (
    Acted,
    Agent,
    Axes,
    Metrics,
    NetworkOutputs,
    Observation,
    OnlineAndTarget,
    PyTree,
    RolloutState,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.envs.spaces import Discrete
from stoix_like.networks.base import FeedForwardActor
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.networks.heads import Predictions
from stoix_like.networks.requirements import DISCOVERED_PREDICTIONS, HeadRequirement
from stoix_like.schema import above, at_least, between, one_of
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.disco_rl import meta_network
from stoix_like.systems.disco_rl.estimates import EstimatesConfig, Moments, estimate, initial_moments
from stoix_like.systems.disco_rl.meta_network import LSTMState, Pair
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.parts.distributional import AtomsConfig, configure_head
from stoix_like.systems.parts.optimiser import Gradients, gradient_step, make_optimiser
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.parts.target import SoftTarget, TargetParameters, make_soft_target
from stoix_like.utils.jax_utils import merge_leading_dims
from stoix_like.utils.loss.common import taken
from stoix_like.utils.replay import SequenceBatch, SequenceReplay, StepSequenceConfig, Stored, make_sequence_replay
from stoix_like.utils.scales import signed_hyperbolic, signed_parabolic


@dataclass(frozen=True, kw_only=True)
class AdamGradients(Gradients):
    """As `Gradients`, with only Adam, which decays no weights."""

    optimiser: Annotated[str, one_of("adam")] = "adam"
    weight_decay: Literal[0] = 0


@dataclass(frozen=True, kw_only=True)
class Config(SystemConfig):
    """Hyperparameters of Disco103. The atoms of action values are on the scale of `signed_hyperbolic`."""

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(DISCOVERED_PREDICTIONS, hyperparams=("num_atoms",))
    }
    estimates: EstimatesConfig
    atoms: AtomsConfig
    replay: StepSequenceConfig
    target: SoftTarget
    resets: PeriodicResets
    weights: str | None  # path of the meta-network's weights; None: from `stoix-like fetch disco103`
    weights_sha256: str  # checksum of the file
    lr: Annotated[float, above(0.0)]  # Adam learning rate
    gamma: Annotated[float, between(0.0, 1.0)]  # discount per step
    reward_scale: Annotated[float, above(0.0)]  # factor by which rewards are multiplied
    max_abs_update: Annotated[float, above(0.0)]  # largest magnitude of Adam's step, before the learning rate
    gradients: AdamGradients
    policy_coef: Annotated[float, at_least(0.0)]  # weight of the divergence from the target of the policy
    y_coef: Annotated[float, at_least(0.0)]  # weight of the divergence of the prediction about the observation
    z_coef: Annotated[float, at_least(0.0)]  # weight of the divergence of the prediction about the action
    next_policy_coef: Annotated[float, at_least(0.0)]  # weight of the divergence of the predicted next policy
    value_coef: Annotated[float, at_least(0.0)]  # weight of the cross-entropy of the action values

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and that the weights are there."""
        super().check(num_envs, num_shards)
        weights.load(self.weights, self.weights_sha256)


class DiscoShared(NamedTuple):
    """The shared state of an agent."""

    params: OnlineAndTarget  # the parameters
    opt_state: PyTree  # the state of the optimiser
    lifetime: LSTMState  # the meta-network's state of the agent's lifetime
    moments: Moments  # moments of advantages
    parts: PyTree = ()  # what options need, by name


@dataclass(frozen=True)
class Disco103(Algorithm):
    """An agent that learns by the discovered rule."""

    config: Config
    axes: Axes
    network: FeedForwardActor
    optim: optax.GradientTransformation
    target: TargetParameters
    replay: SequenceReplay

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        online = self.network.init(key, timestep.observation)
        params, opt_state = self.target.init(online), self.optim.init(online)
        shared = DiscoShared(params, opt_state, meta_network.initial_lifetime(), initial_moments())
        return Agent(shared, self.replay.init(timestep))

    def act(self, shared: DiscoShared, state: RolloutState, key: jax.Array, greedy: bool = False) -> Acted:
        """Choose an action for each environment; the extras are the actions and the logits of the policy."""
        pi = self.network.apply(shared.params.online, state.timestep.observation).policy
        action = pi.mode() if greedy else pi.sample(seed=key)
        return state.carry, action, (action, pi.logits)

    def inspect(self, shared: DiscoShared, observation: Observation) -> NetworkOutputs:
        predictions = self.network.apply(shared.params.online, observation)
        return NetworkOutputs(predictions.policy, mask_logits(self.values(predictions), observation.action_mask))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        """Add the rollout to the replay buffer, with the logits of the behaviour policy."""
        steps = trajectory.transitions
        chosen, logits = steps.extras
        uniform = mask_logits(jnp.zeros_like(logits), steps.observation.action_mask)
        # A rollout of the warm-up has random actions in place of those that the policy chose.
        logits = jnp.where(jnp.all(chosen == steps.action), logits, uniform)
        steps = steps._replace(extras=Stored((), logits))
        return agent._replace(local=self.replay.add(agent.local, trajectory._replace(transitions=steps)))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        return self.replay.sample(agent.local, key, 1.0).observations

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        def step(shared: DiscoShared, sample_key: jax.Array, step_key: jax.Array) -> tuple[DiscoShared, Metrics]:
            return self.sgd_step(shared, self.replay.sample(agent.local, sample_key, 1.0))

        shared, metrics = replay_epochs(step, agent.shared, key, self.config.replay.epochs)
        return agent._replace(shared=shared), metrics

    def sgd_step(self, shared: DiscoShared, batch: SequenceBatch) -> tuple[DiscoShared, Metrics]:
        """Take one gradient step; the target parameters follow those before it."""
        loss = partial(self.loss, shared=shared, batch=batch)
        online, opt_state, (lifetime, moments, metrics) = gradient_step(
            loss, self.optim, self.axes, shared.params.online, shared.opt_state
        )
        params = self.target.update(shared.params)._replace(online=online)
        learned = {"params": params, "opt_state": opt_state, "lifetime": lifetime, "moments": moments}
        return shared._replace(**learned), metrics

    def loss(
        self, params: PyTree, shared: DiscoShared, batch: SequenceBatch
    ) -> tuple[jax.Array, tuple[LSTMState, Moments, Metrics]]:
        """Compute the loss; also return the next states of the rule and metrics."""
        config, steps, mask = self.config, batch.steps, batch.steps.observation.action_mask
        predictions = self.network.apply(params, steps.observation)
        constant = jax.lax.stop_gradient(params)
        online = Pair(jax.lax.stop_gradient(predictions), self.network.apply(constant, steps.next_observation))
        observations = steps.observation, steps.next_observation
        target = Pair(*(self.network.apply(shared.params.target, each) for each in observations))
        q_values = Pair(*map(self.values, online)), Pair(*map(self.values, target))
        inputs, returns, moments = estimate(
            config.estimates, config.gamma, self.axes, steps, (online, target), q_values, shared.moments
        )
        constants = weights.load(config.weights, config.weights_sha256)
        targets, lifetime = meta_network.apply(constants, inputs, shared.lifetime, self.axes)

        z, q, next_policy = (_of_action(x, steps.action) for x in predictions[2:])
        support = config.atoms
        atoms = rlax.transform_to_2hot(signed_hyperbolic(returns), support.vmin, support.vmax, support.num_atoms)
        bootstrapped = 1.0 - steps.terminated
        losses = {
            "policy_loss": divergence(mask_logits(targets.policy, mask), predictions.policy.logits),
            "y_loss": divergence(targets.y, predictions.y),
            "z_loss": divergence(targets.z, z),
            "next_policy_loss": bootstrapped * divergence(online.after.policy.logits, next_policy),
            "q_loss": optax.softmax_cross_entropy(q, atoms),
        }
        coefs = config.policy_coef, config.y_coef, config.z_coef, config.next_policy_coef, config.value_coef
        metrics = {name: jnp.mean(loss) for name, loss in losses.items()}
        total = sum(coef * loss for coef, loss in zip(coefs, metrics.values(), strict=True))
        values = {"entropy": predictions.policy.entropy(), "q_value": inputs.value.now, "q_target": returns}
        return jnp.asarray(total), (lifetime, moments, metrics | jax.tree.map(jnp.mean, values))

    def values(self, predictions: Predictions) -> jax.Array:
        """Return the mean action values `[..., A]`, in units of scaled reward."""
        support = self.config.atoms
        atoms = jnp.linspace(support.vmin, support.vmax, support.num_atoms)
        return signed_parabolic(jnp.dot(jax.nn.softmax(predictions.q), atoms))


def divergence(p_logits: jax.Array, q_logits: jax.Array) -> jax.Array:
    """Compute KL(p || q) of distributions over the last axis."""
    log_p, log_q = jax.nn.log_softmax(p_logits), jax.nn.log_softmax(q_logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), -1)


def _of_action(x: jax.Array, action: jax.Array) -> jax.Array:
    """Select the rows `[T, B, K]` of the actions `[T, B]` from `[T, B, A, K]`."""
    return taken(merge_leading_dims(x, 2), action.reshape(-1)).reshape(*action.shape, -1)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build an agent that learns by Disco103; the floats of the hyperparameters may be traced."""
    network = spec.networks.actor_network
    head = configure_head(
        network.action_head, {"num_atoms": config.atoms.num_atoms, "num_predictions": weights.NUM_PREDICTIONS}
    )

    def adam(rate: optax.ScalarOrSchedule) -> optax.GradientTransformation:
        return optax.chain(
            optax.scale_by_adam(eps=config.gradients.adam_eps),
            optax.clip(config.max_abs_update),
            optax.scale_by_learning_rate(rate),
        )

    return Disco103(
        config,
        spec.axes,
        FeedForwardActor(head, network.pre_torso, network.input_layer),
        optim=make_optimiser(config, spec, config.lr, transform=adam),
        target=make_soft_target(config.target),
        replay=make_sequence_replay(config.replay, spec, (), jnp.zeros((head.action_dim,)), config.reward_scale),
    )


build, run_experiment, hydra_entry_point = entry_points("disco_rl/ff_disco103", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
