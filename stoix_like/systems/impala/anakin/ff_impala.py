"""IMPALA with feed-forward networks (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import optax

from stoix_like.base_types import SystemSpec
from stoix_like.schema import Part, Range, above, between, one_of
from stoix_like.systems.algorithm import Algorithm, entry_points
from stoix_like.systems.on_policy.actor_critic import make_parts
from stoix_like.systems.on_policy.intrinsic import IntrinsicReward
from stoix_like.systems.on_policy.networks import ActorCriticNetworks
from stoix_like.systems.parts.advantages import make_advantages
from stoix_like.systems.parts.optimiser import Gradients
from stoix_like.systems.parts.teacher import Kickstarting
from stoix_like.systems.vpg.anakin import ff_a2c


@dataclass(frozen=True, kw_only=True)
class RMSPropGradients(Gradients):
    """As `Gradients`, and RMSProp."""

    # By default RMSProp, as in the paper.
    optimiser: Annotated[str, one_of("rmsprop", "adam", "radam", "adamw", "muon")]
    rms_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]  # RMSProp: decay of the mean squared gradient
    rms_eps: Annotated[float, above(0.0)]  # constant added to the mean squared gradient (RMSProp)


@dataclass(frozen=True, kw_only=True)
class VTrace(Part):
    """Hyperparameters of the targets of IMPALA."""

    gae_lambda: Annotated[float, between(0.0, 1.0)]  # mixing parameter of n-step advantages
    clip_rho_threshold: Annotated[float, above(0.0)]  # upper bound of the probability ratios that weight value errors
    clip_pg_rho_threshold: Annotated[float, above(0.0)]  # upper bound of the probability ratios that weight advantages


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.BaseConfig):
    """Hyperparameters of IMPALA."""

    gradients: RMSPropGradients
    targets: VTrace
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


def make_variant(config: Any, spec: SystemSpec, networks: ActorCriticNetworks | None = None) -> Algorithm:
    """Build IMPALA: the policy gradient of A2C, with values and advantages by V-trace."""
    gradients, targets = config.gradients, config.targets
    rms_prop = partial(optax.rmsprop, decay=gradients.rms_decay, eps=gradients.rms_eps)
    parts = make_parts(config, spec, networks, rms_prop if gradients.optimiser == "rmsprop" else None)
    max_ratios = targets.clip_rho_threshold, targets.clip_pg_rho_threshold
    advantages = make_advantages(config.gamma, targets.gae_lambda, config.vtrace, max_ratios)
    return ff_a2c.A2C(**parts, advantages=advantages)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IMPALA with feed-forward networks."""
    return make_variant(config, spec)


build, run_experiment, hydra_entry_point = entry_points("impala/ff_impala", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
