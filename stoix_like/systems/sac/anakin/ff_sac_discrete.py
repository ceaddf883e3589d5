"""Soft actor-critic for discrete actions (Christodoulou 2019, arXiv:1910.07207): expectations in place of samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like import cli
from stoix_like.base_types import Observation, System, SystemSpec
from stoix_like.envs.spaces import Discrete
from stoix_like.runner import experiment
from stoix_like.schema import Range
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.Config):
    """Hyperparameters of discrete SAC.

    Attributes:
        action_spaces: what it can act in.
        target_entropy_scale: the policy is held to this part of the entropy of the uniform one over all actions, legal
            or not. The paper's 0.98 leaves no room to control CartPole: the temperature grows without end.
    """

    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    target_entropy_scale: Annotated[float, Range(0.0, 1.0, without_high=True)]


class DiscreteSAC(ff_sac.SAC):
    """SAC whose critics value all actions at once.

    The target entropy is a part of the uniform policy's, for an entropy of discrete actions is never negative.
    """

    @property
    def target_entropy(self) -> Any:
        """`target_entropy_scale` times the entropy of the uniform policy, in nats."""
        return self.config.target_entropy_scale * math.log(self.action_space.n)

    def soft_value(
        self, params: SACParams, q_params: Any, observation: Observation, key: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Soft state values (equation 10).

            v = sum_a pi(a | s) min_c q_c(s, a) + alpha h,   h = -sum_a pi(a | s) log pi(a | s)

        Arguments and result as of `SAC.soft_value`; `key` is not used.
        """
        pi = self.actor.apply(params.actor_params, observation)
        q = jnp.min(self.critics.apply(q_params, observation).preferences, axis=-1)
        entropy = pi.entropy()
        return jnp.sum(pi.probs * q, axis=-1) + self.temperature(params) * entropy, entropy

    def q_taken(self, q_params: Any, batch: Batch) -> jax.Array:
        """Values `[B, C]` of the actions that were taken."""
        q = self.critics.apply(q_params, batch.observation).preferences
        return jnp.take_along_axis(q, batch.action[:, None, None], axis=1)[:, 0]

    def critic_input(self, observation: Observation, action: jax.Array) -> tuple[Any, ...]:
        """What the critics read."""
        return (observation,)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble discrete SAC; see `ff_sac.build`."""
    return ff_sac.build(config, spec, DiscreteSAC)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "sac/ff_sac_discrete")

if __name__ == "__main__":
    hydra_entry_point()
