"""Contrastive reinforcement learning (Eysenbach et al. 2022, arXiv:2206.07568), as in JaxGCRL.

The critic is the similarity of an encoding of states and actions with an encoding of goals. It learns to tell the goals
that an episode reached after an action from goals of other episodes: its value is `log p(g | s, a) / p(g)` up to a
constant, where g is what is achieved after a geometric number of steps. The policy maximises the value of goals of the
batch, and its entropy. Rewards are not used. Each shard contrasts its own batch.

JaxGCRL: Bortkiewicz et al. 2025, arXiv:2408.11052. Its `cosine` divides by norms of whole batches; here, of each row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Observation, PyTree, SystemSpec
from stoix_like.networks.feed_forward import Network
from stoix_like.networks.requirements import REPRESENTATION, STOCHASTIC_POLICY, HeadRequirement
from stoix_like.schema import at_least, one_of
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.off_policy.actor_critic import make_critics
from stoix_like.systems.parts.normalizer import ReplayNormalisation
from stoix_like.systems.sac.anakin import ff_sac
from stoix_like.systems.sac.sac_types import SACParams
from stoix_like.utils.loss import ENERGIES, info_nce_loss, sac_actor_loss_per_example
from stoix_like.utils.replay import Batch, ReplayConfig


@dataclass(frozen=True, kw_only=True)
class GoalReplayConfig(ReplayConfig):
    """Hyperparameters of the replay buffer."""

    n_step: Literal[1] = 1
    store_next_observation: Literal[True] = True
    relabel: Literal["geometric"] = "geometric"
    relabel_fraction: Literal[1] = 1


@dataclass(frozen=True, kw_only=True)
class ObservationNormalisation(ReplayNormalisation):
    """Normalisation without rewards."""

    normalize_rewards: Literal[False] = False


@dataclass(frozen=True, kw_only=True)
class Config(ff_sac.BaseConfig):
    """Hyperparameters of contrastive RL."""

    network_heads: ClassVar = {
        "actor_network.action_head": HeadRequirement(STOCHASTIC_POLICY),
        "q_network.critic_head": HeadRequirement(REPRESENTATION, dropout=True),
        "goal_network.critic_head": HeadRequirement(REPRESENTATION, dropout=True),
    }
    needs_goals: ClassVar[bool] = True
    replay: GoalReplayConfig
    normalisation: ObservationNormalisation
    reward_scale: Literal[1] = 1
    energy: Annotated[str, one_of(*ENERGIES)]  # similarity of encodings, see `ENERGIES`
    symmetric: bool  # whether goals are to be told from the states and actions of the batch, too
    logsumexp_coef: Annotated[float, at_least(0.0)]  # weight of the squared log-sum-exps over all goals


class Encoders(Network):
    """Encodings of states and actions, and of goals."""

    actions: Network
    goals: Network

    def __call__(self, observation: Any, input_kwargs: Any) -> tuple[jax.Array, jax.Array]:
        """Return both encodings, `[B, D, C]`."""
        return self.actions(observation, input_kwargs), self.goals(observation)


@dataclass(frozen=True)
class CRL(ff_sac.SAC[Config]):
    """SAC with the similarity of encodings for a critic; goals of the batch are those that were reached later."""

    def critic_loss(self, q_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute the contrastive loss: each state and action, and its goal, among the others of the batch."""
        logits = self.similarities(self.q_taken(q_params, batch, key))
        losses = [info_nce_loss(f, self.config.symmetric, self.config.logsumexp_coef) for f in logits]
        loss = jnp.mean(jnp.stack(losses))
        values = jnp.diagonal(logits, axis1=1, axis2=2)
        correct = jnp.mean(jnp.max(logits, axis=2) == values, dtype=jnp.float32)
        return loss, {"q_loss": loss, "q_value": jnp.mean(values), "accuracy": correct}

    def actor_loss(self, actor_params: PyTree, params: SACParams, batch: Batch, key: jax.Array) -> Loss:
        """Compute the negative value of the policy for the goals of the batch, less its entropy."""
        params = params._replace(actor_params=actor_params)
        encodings, log_prob = self.evaluate_policy(params, params.q_params.online, batch.observation, key)
        q = self.own_similarities(encodings)
        loss = jnp.mean(sac_actor_loss_per_example(log_prob, q, self.temperature(params)))
        return loss, {"actor_loss": loss, "entropy": -jnp.mean(log_prob)}

    def value(self, params: SACParams, observation: Observation, action: jax.Array) -> jax.Array:
        """Compute the value of each action for its goal: the least of the critics'."""
        encodings = self.q_values(params.q_params.online, observation, action, None)
        return jnp.min(self.own_similarities(encodings), axis=-1)

    def similarities(self, encodings: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Compute the values `[C, B, B]` of all actions for all goals, from encodings `[B, D, C]`."""
        return jax.vmap(ENERGIES[self.config.energy], in_axes=-1)(*encodings)

    def own_similarities(self, encodings: tuple[jax.Array, jax.Array]) -> jax.Array:
        """Compute the values `[B, C]` of actions for their own goals."""
        x, y = (jnp.moveaxis(encoding, 1, -1)[:, :, None] for encoding in encodings)
        return jax.vmap(jax.vmap(ENERGIES[self.config.energy]))(x, y)[..., 0, 0]


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build contrastive RL."""
    # Goals may be replaced without rewards of their own.
    spec = spec._replace(goal_reward=lambda achieved, desired: (jnp.zeros(()), jnp.zeros((), bool)))
    crl = ff_sac.make_variant(config, spec, CRL)
    return replace(crl, critics=Encoders(crl.critics, make_critics(spec.networks.goal_network, config.num_critics)))


build, run_experiment, hydra_entry_point = entry_points("goals/ff_crl", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
