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
    """As `Gradients`, and RMSProp.

    Attributes:
        optimiser: by default RMSProp, as in the paper.
        rms_decay: decay per step of the mean squared gradient (RMSProp), which starts at 0: the first steps are up to
            ten learning rates. That of TensorFlow, which the paper used, starts at 1.
        rms_eps: constant added to the mean squared gradient (RMSProp).
    """

    optimiser: Annotated[str, one_of("rmsprop", "adam", "radam", "adamw", "muon")]
    rms_decay: Annotated[float, Range(0.0, 1.0, without_high=True)]
    rms_eps: Annotated[float, above(0.0)]


@dataclass(frozen=True, kw_only=True)
class VTrace(Part):
    """Hyperparameters of the targets of IMPALA.

    Attributes:
        gae_lambda: mixing parameter of n-step advantages; at 1, they are as long as the rollout allows.
        clip_rho_threshold: upper bound of the probability ratios that weight value errors.
        clip_pg_rho_threshold: upper bound of the probability ratios that weight advantages.
    """

    gae_lambda: Annotated[float, between(0.0, 1.0)]
    clip_rho_threshold: Annotated[float, above(0.0)]
    clip_pg_rho_threshold: Annotated[float, above(0.0)]


@dataclass(frozen=True, kw_only=True)
class Config(ff_a2c.BaseConfig):
    """Hyperparameters of IMPALA.

    Attributes:
        gradients: gradient descent.
        targets: values and advantages.
        intrinsic_reward: an intrinsic reward, or none.
        kickstarting: a teacher, or none.
    """

    gradients: RMSPropGradients
    targets: VTrace
    intrinsic_reward: IntrinsicReward
    kickstarting: Kickstarting


def make_variant(config: Any, spec: SystemSpec, networks: ActorCriticNetworks | None = None) -> Algorithm:
    """Build IMPALA: the policy gradient of A2C, with values and advantages by V-trace.

    Args:
        config: hyperparameters, with or without those of recurrent networks; the floats may be traced.
        spec: spaces, networks, axes and sizes.
        networks: by default feed-forward.

    Returns:
        The algorithm.
    """
    gradients, targets = config.gradients, config.targets
    rms_prop = partial(optax.rmsprop, decay=gradients.rms_decay, eps=gradients.rms_eps)
    parts = make_parts(config, spec, networks, rms_prop if gradients.optimiser == "rmsprop" else None)
    max_ratios = targets.clip_rho_threshold, targets.clip_pg_rho_threshold
    advantages = make_advantages(config.gamma, targets.gae_lambda, config.vtrace, max_ratios)
    return ff_a2c.A2C(**parts, advantages=advantages)


def make_algorithm(config: Config, spec: SystemSpec) -> Algorithm:
    """Build IMPALA with feed-forward networks; see `make_variant`."""
    return make_variant(config, spec)


build, run_experiment, hydra_entry_point = entry_points("impala/ff_impala", make_algorithm)

if __name__ == "__main__":
    hydra_entry_point()
