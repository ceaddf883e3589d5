"""Rainbow (Hessel et al. 2018, arXiv:1710.02298): double, dueling, noisy, n-step, distributional and prioritised.

Priorities are the cross-entropies that are learnt from, which lie above the paper's divergences by the entropy of the
target.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar

import jax
import jax.numpy as jnp

from stoix_like import cli
from stoix_like.base_types import Agent, OnlineAndTarget, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.schema import at_least, between
from stoix_like.systems.off_policy import with_head
from stoix_like.systems.q_learning.anakin import ff_c51, ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import categorical_double_q_learning
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_c51.Config):
    """Hyperparameters of Rainbow.

    Attributes:
        priority_exponent: a window is drawn in proportion to this power of its last loss.
        importance_sampling_exponent: how far the loss makes up for that in the first update; fully in the last.
        sigma_zero: scale of the noise in the weights at first.
    """

    prioritised: ClassVar[bool] = True
    priority_exponent: Annotated[float, between(0.0, 1.0)]
    importance_sampling_exponent: Annotated[float, between(0.0, 1.0)]
    sigma_zero: Annotated[float, at_least(0.0)]


@dataclass(frozen=True)
class Rainbow(ff_dqn.DQN):
    """DQN that draws by priority.

    Attributes:
        num_updates: of the whole run.
    """

    num_updates: int = 1

    def sample(self, agent: Agent, key: jax.Array) -> Batch:
        """A batch by priority; its weights make up for that more and more (section 3.4 of arXiv:1511.05952)."""
        least = self.config.importance_sampling_exponent
        exponent = least + (1.0 - least) * agent.shared.updates / self.num_updates
        return self.replay.sample(agent.local, key, exponent)

    def revise(self, local: Any, batch: Batch, losses: jax.Array) -> Any:
        """The losses of a batch become its priorities; windows without a target are never drawn again."""
        priority = (losses + 1e-6) ** self.config.priority_exponent
        return self.replay.set_priorities(local, batch.indices, jnp.where(batch.weight > 0.0, priority, 0.0))


def rainbow_loss(config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
    """Cross-entropies with the projected distribution of the action that the parameters that learn choose."""
    del config
    keys = jax.random.split(key, 3)
    _, logits_tm1, atoms_tm1 = q(params.online, batch.observation, keys[0])
    _, logits_t, atoms_t = q(params.target, batch.next_observation, keys[1])
    q_t_selector, *_ = q(params.online, batch.next_observation, keys[2])
    discounted = batch.action, batch.reward, batch.discount
    return categorical_double_q_learning(logits_tm1, atoms_tm1, *discounted, logits_t, atoms_t, q_t_selector)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble Rainbow; see `ff_dqn.assemble`."""
    head = config.support | {"sigma_zero": config.sigma_zero}
    algorithm = partial(Rainbow, num_updates=spec.num_updates)
    return ff_dqn.assemble(config, with_head(spec, head), rainbow_loss, algorithm)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_rainbow")

if __name__ == "__main__":
    hydra_entry_point()
