"""V-MPO with feed-forward networks (Song et al. 2020, arXiv:1909.12238)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stoix_like.base_types import Agent, Loss, Metrics, PyTree, SystemSpec, TimeStep
from stoix_like.schema import Range, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.mpo.duals import DualConfig, Duals, constrained_policy_loss, make_dual_optimiser, positive
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared, make_parts
from stoix_like.systems.on_policy.epochs import MinibatchConfig, minibatch_epochs
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from stoix_like.systems.parts.advantages import make_advantages
from stoix_like.systems.parts.optimiser import gradient_step
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.systems.vpg.anakin import ff_a2c
from stoix_like.utils.loss import baseline_loss, vmpo_policy_loss, vmpo_temperature_loss
from stoix_like.utils.training import join_optimisers


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.BaseConfig):
    """Hyperparameters of V-MPO."""

    minibatches: MinibatchConfig
    duals: DualConfig
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step advantages
    # Fraction of each minibatch that the policy learns from, the steps with the largest advantages.
    top_fraction: Annotated[float, Range(0.0, 1.0, without_low=True)]
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


class LearnedDuals(NamedTuple):
    """The dual variables and the state of their optimiser."""

    duals: Duals
    opt_state: PyTree


@dataclass(frozen=True)
class VMPO(ff_a2c.A2C[Config]):
    """V-MPO: a policy loss of the best actions of each minibatch, near the policy before the update."""

    dual_optim: optax.GradientTransformation

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        agent = super().init(key, timestep)
        duals = self.config.duals.init(self.networks.policy(agent.shared.params, timestep.observation))
        state = self.dual_optim.init(duals)
        return agent._replace(shared=agent.shared._replace(own=LearnedDuals(duals, state)))

    def train(
        self, shared: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array
    ) -> tuple[OnPolicyShared, Metrics]:
        """Train for several epochs of minibatches on one rollout."""
        return minibatch_epochs(partial(self.sgd_step, shared), shared, batch, key, self.config.minibatches)

    def sgd_step(
        self, behaviour: OnPolicyShared, shared: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array
    ) -> tuple[OnPolicyShared, Metrics]:
        """Take one gradient step of actor, critic and duals; `behaviour` is the state before the update."""
        batch = batch._replace(advantage=self.standardize(batch.advantage, ("minibatch",)))
        (params, duals), (opt_states, dual_state), metrics = gradient_step(
            self.vmpo_loss,
            join_optimisers(self.optim, self.dual_optim),
            self.axes,
            (shared.params, shared.own.duals),
            (shared.opt_states, shared.own.opt_state),
            *(behaviour, batch, key),
        )
        return shared._replace(params=params, opt_states=opt_states, own=LearnedDuals(duals, dual_state)), metrics

    def vmpo_loss(
        self, learned: tuple[PyTree, Duals], behaviour: OnPolicyShared, batch: OnPolicyTransition, key: jax.Array
    ) -> Loss:
        """Compute the losses of the temperature, the policy and its multipliers, and the value (equations 1 to 5)."""
        (params, duals), config, axis_names = learned, self.config, self.axes.names
        pi, value = self.networks.both(params, batch.obs)
        b_pi = self.networks.policy(behaviour.params, batch.obs)
        temperature = positive(duals.temperature)
        temperature_loss, weights = vmpo_temperature_loss(
            batch.advantage, temperature, config.duals.epsilon, config.top_fraction, axis_names
        )
        policy_loss, metrics = constrained_policy_loss(
            config.duals, duals, pi, b_pi, lambda pi: vmpo_policy_loss(pi.log_prob(batch.action), weights, axis_names)
        )
        value_loss = baseline_loss(value, batch.target)
        entropy = jnp.mean(pi.entropy(seed=key))
        metrics |= {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        loss = temperature_loss + policy_loss + config.vf_coef * value_loss - config.ent_coef * entropy
        return self.lessons.add(loss, metrics | {"temperature": temperature}, pi, batch.lesson)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build V-MPO; the floats of the hyperparameters may be traced."""
    advantages = make_advantages(config.gamma, config.gae_lambda, config.vtrace, weighted=False)
    return VMPO(**make_parts(config, spec), advantages=advantages, dual_optim=make_dual_optimiser(config.duals))


build, run_experiment, hydra_entry_point = entry_points("mpo/ff_vmpo", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
