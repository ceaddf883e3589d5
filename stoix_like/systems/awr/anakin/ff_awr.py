"""Advantage-weighted regression with feed-forward networks (Peng et al. 2019, arXiv:1910.00177).

Actor and critic take their steps together, on windows with lambda-returns from the critic of this step. The
authors take all steps of the critic first, on returns of whole paths, and standardise advantages over the whole buffer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import jax

from stoix_like.base_types import (
    Agent,
    Distribution,
    Loss,
    Metrics,
    Observation,
    PyTree,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.schema import above, between
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.epochs import replay_epochs
from stoix_like.systems.on_policy.actor_critic import OnPolicyLocal, make_parts
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from stoix_like.systems.parts.advantages import make_advantages
from stoix_like.systems.parts.resets import PeriodicResets
from stoix_like.systems.vpg.anakin import ff_a2c
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.loss import awr_loss
from stoix_like.utils.replay import Replay, WholeWindowsConfig, make_replay


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.BaseConfig):
    """Hyperparameters of AWR."""

    needs_successors: ClassVar[bool] = True
    stores_raw_rewards: ClassVar[bool] = True
    replay: WholeWindowsConfig
    resets: PeriodicResets
    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step advantages
    beta: Annotated[float, above(0.0)]  # temperature of the weights, in the unit of the advantages
    weight_max: Annotated[float, above(0.0)]  # largest weight

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and refuse what needs the last rollout."""
        super().check(num_envs, num_shards)
        for name in ("normalize_rewards", "vtrace"):
            if getattr(self, name):
                raise ConfigError(f"system.{name}=true: this system learns from a replay buffer: use false")


@dataclass(frozen=True)
class AWR(ff_a2c.A2C[Config]):
    """AWR: values by regression on lambda-returns, and the policy on the actions taken, weighted by advantages."""

    replay: Replay

    def init(self, key: jax.Array, timestep: TimeStep) -> Agent:
        return super().init(key, timestep)._replace(local=self.replay.init(timestep))

    def observe(self, agent: Agent, trajectory: Trajectory) -> Agent:
        statistics = self.normalizer.update(agent.shared.statistics, trajectory.transitions.observation)
        return Agent(agent.shared._replace(statistics=statistics), self.replay.add(agent.local, trajectory))

    def observations(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> Observation:
        windows = self.replay.sample_steps(agent.local, key)
        return super().observations(agent, trajectory._replace(transitions=windows), key)

    def update(self, agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        def step(shared: PyTree, sample_key: jax.Array, step_key: jax.Array) -> tuple[PyTree, Metrics]:
            windows = Trajectory(self.replay.sample_steps(agent.local, sample_key), ())
            _, batch, _ = self.targets(Agent(unpack(shared), OnPolicyLocal()), windows, step_key)
            return self.improve(shared, batch, step_key)

        shared, metrics = replay_epochs(step, agent.shared, key, self.config.replay.epochs)
        shared = shared._replace(updates=jax.tree.map(lambda count: count + 1, shared.updates))
        return agent._replace(shared=shared), metrics

    def policy_loss(self, pi: Distribution, batch: OnPolicyTransition) -> Loss:
        """Compute the weighted log-likelihood of the actions taken (algorithm 1)."""
        return awr_loss(pi.log_prob(batch.action), batch.advantage, self.config.beta, self.config.weight_max), {}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build AWR; the floats of the hyperparameters may be traced."""
    # Rewards are scaled when a window is evaluated, and therefore not when they are stored.
    replay = make_replay(config.replay, spec, config.gamma)
    advantages = make_advantages(config.gamma, config.gae_lambda)
    return AWR(**make_parts(config, spec), advantages=advantages, replay=replay)


build, run_experiment, hydra_entry_point = entry_points("awr/ff_awr", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
