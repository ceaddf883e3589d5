"""IMPALA with feed-forward networks (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import optax

from stoix_like.base_types import System, SystemSpec
from stoix_like.schema import above, between, one_of
from stoix_like.systems.gradient_descent import Transform
from stoix_like.systems.launch import entry_points
from stoix_like.systems.on_policy_actor_critic import assemble
from stoix_like.systems.vpg.anakin import ff_a2c
from stoix_like.utils.jax_utils import Scalar


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.Config):
    """Hyperparameters of IMPALA.

    Attributes:
        clip_rho_threshold: upper bound of the probability ratios that weight value errors.
        clip_pg_rho_threshold: upper bound of the probability ratios that weight advantages.
        optimiser: `rmsprop`, as in the paper, or `adam`.
        rms_decay: decay of the mean squared gradient per step (RMSProp).
        rms_eps: constant added to the mean squared gradient (RMSProp).
    """

    clip_rho_threshold: Annotated[float, above(0.0)]
    clip_pg_rho_threshold: Annotated[float, above(0.0)]
    optimiser: Annotated[str, one_of("rmsprop", "adam")]
    rms_decay: Annotated[float, between(0.0, 1.0)]
    rms_eps: Annotated[float, above(0.0)]


class IMPALA(ff_a2c.A2C):
    """IMPALA: the policy gradient of A2C, with values and advantages by V-trace."""

    @property
    def max_ratios(self) -> tuple[Scalar, Scalar]:
        """Upper bounds of the probability ratios that weight value errors and advantages."""
        return self.config.clip_rho_threshold, self.config.clip_pg_rho_threshold


def make_transform(config: Config) -> Transform | None:
    """Return the configured optimiser, a function of the learning rate; None for Adam."""
    if config.optimiser == "adam":
        return None
    return partial(optax.rmsprop, decay=config.rms_decay, eps=config.rms_eps)


def build(config: Config, spec: SystemSpec) -> System:
    """Build IMPALA; see `on_policy_actor_critic.assemble`."""
    return assemble(config, spec, IMPALA, make_transform(config))


run_experiment, hydra_entry_point = entry_points("impala/ff_impala", build)

if __name__ == "__main__":
    hydra_entry_point()
