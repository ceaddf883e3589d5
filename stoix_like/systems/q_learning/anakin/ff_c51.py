"""Categorical deep Q-networks, C51 (Bellemare, Dabney & Munos 2017, arXiv:1707.06887)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax

from stoix_like import cli
from stoix_like.base_types import OnlineAndTarget, System, SystemSpec
from stoix_like.runner import experiment
from stoix_like.systems.off_policy import CategoricalConfig, with_head
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.q_types import QFunction
from stoix_like.utils.loss import categorical_double_q_learning
from stoix_like.utils.replay import Batch


@dataclass(frozen=True, kw_only=True)
class Config(ff_dqn.BaseConfig, CategoricalConfig):
    """Hyperparameters of C51."""


def categorical_loss(config: Config, q: QFunction, params: OnlineAndTarget, batch: Batch, key: jax.Array) -> jax.Array:
    """Cross-entropies with the projected distribution of the greedy action (algorithm 1)."""
    del config, key
    _, logits_tm1, atoms_tm1 = q(params.online, batch.observation)
    q_t, logits_t, atoms_t = q(params.target, batch.next_observation)
    discounted = batch.action, batch.reward, batch.discount
    return categorical_double_q_learning(logits_tm1, atoms_tm1, *discounted, logits_t, atoms_t, q_t)


def build(config: Config, spec: SystemSpec) -> System:
    """Assemble C51; see `ff_dqn.assemble`."""
    return ff_dqn.assemble(config, with_head(spec, config.support), categorical_loss)


run_experiment = partial(experiment.run_experiment, build=build)
hydra_entry_point = partial(cli.launch, "q_learning/ff_c51")

if __name__ == "__main__":
    hydra_entry_point()
