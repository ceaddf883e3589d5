"""Rainbow (Hessel et al. 2018, arXiv:1710.02298): double, dueling, noisy, n-step, distributional and prioritised.

Priorities are the cross-entropies of the loss; the KL divergences of the paper differ by the entropy of the target.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Agent, OnlineAndTarget, System, SystemSpec
from stoix_like.launch import entry_points
from stoix_like.networks.requirements import ACTION_VALUE_ATOMS, HeadRequirement
from stoix_like.schema import at_least, between
from stoix_like.systems.off_policy import configure_head
from stoix_like.systems.q_learning.anakin import ff_c51, ff_dqn
from stoix_like.utils.loss import categorical_double_q_learning
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_c51.Config):
    """Hyperparameters of Rainbow.

    Attributes:
        prioritised: whether windows are sampled by priority.
        network_heads: heads that the system needs.
        priority_exponent: exponent of the last loss in the sampling probability of a window.
        importance_sampling_exponent: initial exponent of the importance weights, annealed to 1 over the run.
        sigma_zero: initial scale of the parameter noise.
    """

    prioritised: ClassVar[bool] = True
    network_heads: ClassVar[Mapping[str, HeadRequirement]] = {
        "actor_network.action_head": HeadRequirement(ACTION_VALUE_ATOMS, ("num_atoms", "vmin", "vmax", "sigma_zero"))
    }
    priority_exponent: Annotated[float, between(0.0, 1.0)]
    importance_sampling_exponent: Annotated[float, between(0.0, 1.0)]
    sigma_zero: Annotated[float, at_least(0.0)]

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """See `SystemConfig.schedules`."""
        least = self.importance_sampling_exponent
        exponent = least + (1.0 - least) * updates / num_updates
        return {"importance-sampling exponent": exponent, **super().schedules(updates, num_updates)}


class Rainbow(ff_dqn.DQN):
    """DQN with noisy, distributional double targets that samples by priority."""

    def losses(self, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
        """Compute cross-entropies `[B]` to the projected target distribution of the greedy online action."""
        keys = jax.random.split(key, 3)
        _, logits_tm1, atoms_tm1 = self.q(params.online, batch.observation, keys[0])
        _, logits_t, atoms_t = self.q(params.target, batch.next_observation, keys[1])
        q_t_selector, *_ = self.q(params.online, batch.next_observation, keys[2])
        return categorical_double_q_learning(
            logits_tm1, atoms_tm1, batch.action, batch.reward, batch.discount, logits_t, atoms_t, q_t_selector
        )

    def sample(self, agent: Agent, key: jax.Array) -> Batch:
        """Sample a batch by priority, with annealed importance weights (section 3.4 of arXiv:1511.05952)."""
        least = self.config.importance_sampling_exponent
        exponent = least + (1.0 - least) * agent.shared.updates / self.num_updates
        return self.replay.sample(agent.local, key, exponent)

    def set_priorities(self, local: Any, batch: Batch, losses: jax.Array) -> Any:
        """Set the priorities of a batch from its losses; windows without a target get priority zero."""
        priority = (losses + 1e-6) ** self.config.priority_exponent
        return self.replay.set_priorities(local, batch.indices, jnp.where(batch.weight > 0.0, priority, 0.0))


def build(config: Config, spec: SystemSpec) -> System:
    """Build Rainbow; see `ff_dqn.assemble`."""
    hyperparams = config.support | {"sigma_zero": config.sigma_zero}
    head = configure_head(spec.networks.actor_network.action_head, hyperparams)
    return ff_dqn.assemble(config, spec, Rainbow, head)


run_experiment, hydra_entry_point = entry_points("q_learning/ff_rainbow", build)

if __name__ == "__main__":
    hydra_entry_point()
