"""Twin delayed deterministic policy gradient (Fujimoto, van Hoof & Meger 2018, arXiv:1802.09477)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import jax

from stoix_like.base_types import Loss, PyTree, SystemSpec
from stoix_like.schema import Part, at_least
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.ddpg.anakin import ff_ddpg
from stoix_like.systems.ddpg.ddpg_types import ActionRange, DDPGParams
from stoix_like.systems.parts.behaviour import Behaviour, BehaviourDistance, make_behaviour
from stoix_like.systems.parts.chunks import ChunkedReplay
from stoix_like.utils.loss import target_policy_smoothing
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class TargetSmoothing(Part):
    """Hyperparameters of target policy smoothing."""

    policy_noise: Annotated[float, at_least(0.0)]  # standard deviation of the target noise, in half action ranges
    noise_clip: Annotated[float, at_least(0.0)]  # largest absolute value of this noise, likewise


def make_smoothing(config: TargetSmoothing) -> ff_ddpg.Smoothing:
    """Build target policy smoothing: clipped noise on the actions of targets (equation 14)."""

    def smooth(action: jax.Array, key: jax.Array, actions: ActionRange) -> jax.Array:
        noise_scale, noise_clip = config.policy_noise * actions.unit, config.noise_clip * actions.unit
        return target_policy_smoothing(key, action, noise_scale, noise_clip, actions.minimum, actions.maximum)

    return smooth


@dataclass(frozen=True, kw_only=True)
class Config(ff_ddpg.Config):
    """Hyperparameters of TD3."""

    replay: ChunkedReplay
    smoothing: TargetSmoothing
    behaviour: BehaviourDistance


class TD3(ff_ddpg.DDPG[Config]):
    """DDPG with a policy that may stay near the actions of data."""

    @property
    def behaviour(self) -> Behaviour:
        """Regularisation towards the actions of the data."""
        return make_behaviour(self.config.behaviour, self.actions.unit, self.axes)

    def critic_loss(self, q_params: PyTree, params: DDPGParams, batch: Batch, key: jax.Array) -> Loss:
        action = self.target_action(params.actor_params.target, batch.next_observation, key)
        q_t = self.behaviour.target(
            self.q_values(params.q_params.target, batch.next_observation, action), action, batch
        )
        return self.td_loss(q_params, batch, q_t)

    def actor_loss(self, actor_params: PyTree, q_params: PyTree, batch: Batch) -> Loss:
        """Compute the negative value of the policy under the first critic, near the actions of data."""
        action = self.policy(actor_params, batch.observation)
        q = self.q_values(q_params, batch.observation, action)[:, 0]
        loss = self.behaviour.actor_loss(q, action, batch)
        return loss, {"actor_loss": loss}


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build TD3: DDPG with twin critics, target policy smoothing, and by the configuration a delay of the policy."""
    smooth = make_smoothing(config.smoothing)
    return ff_ddpg.make_variant(config, spec, TD3, num_critics=2, smooth=smooth)


build, run_experiment, hydra_entry_point = entry_points("ddpg/ff_td3", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
