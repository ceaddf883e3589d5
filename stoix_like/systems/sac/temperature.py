"""The temperature: the weight of the entropy in soft values, learned or fixed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, Observation
from stoix_like.networks.distributions.masks import mean_uniform_entropy
from stoix_like.schema import Part, Range, above, at_least
from stoix_like.systems.parts.action_vectors import target_entropy
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss import sac_temperature_loss

# The value in the configuration files, which a learned temperature does not read.
_DEFAULT_ENT_COEF = 0.2


@dataclass(frozen=True, kw_only=True)
class Temperature(Part):
    """Hyperparameters of the temperature, and its loss towards a target entropy."""

    alpha_lr: Annotated[float, above(0.0)]  # Adam learning rate of the log-temperature
    autotune: bool  # whether the temperature is learned; otherwise it is `ent_coef`
    # Negative target entropy in nats per action dimension, for actions in units of half their range.
    target_entropy_scale: Annotated[float, above(-math.log(2.0))]
    init_alpha: Annotated[float, above(0.0)]  # initial value of the learned temperature
    ent_coef: Annotated[float, at_least(0.0)]  # fixed temperature, the weight of the entropy in units of reward per nat

    def notes(self) -> tuple[str, ...]:
        """Return notes on values that have no effect."""
        if self.autotune and self.ent_coef != _DEFAULT_ENT_COEF:
            return (
                f"system.ent_coef={self.ent_coef:g} has no effect with system.autotune=true, which learns the"
                f" temperature from system.init_alpha={self.init_alpha:g}",
            )
        return ()

    @property
    def initial(self) -> tuple[str, float]:
        """Name and value of the key of the initial temperature."""
        name = "init_alpha" if self.autotune else "ent_coef"
        return name, getattr(self, name)

    def init(self) -> jax.Array:
        """Return the first log-temperature."""
        return jnp.log(jnp.asarray(self.init_alpha, jnp.float32))

    def value(self, log_alpha: jax.Array) -> jax.Array:
        """Return the temperature, a scalar."""
        return jnp.exp(log_alpha) if self.autotune else jnp.asarray(self.ent_coef)

    def target_entropy(self, action_space: Any, observation: Observation) -> Scalar:
        """Return the target entropy in nats, see `target_entropy_scale`; the mean over a batch of observations."""
        return target_entropy(action_space, self.target_entropy_scale)

    @staticmethod
    def dual_loss(log_alpha: jax.Array, entropy: jax.Array, target_entropy: Scalar) -> Loss:
        """Compute the dual loss of the entropy constraint (Haarnoja et al. 2018, equation 18)."""
        loss = sac_temperature_loss(log_alpha, -entropy, target_entropy)
        return loss, {"alpha_loss": loss}


@dataclass(frozen=True, kw_only=True)
class DiscreteTemperature(Temperature):
    """Temperature of discrete actions, whose entropy is never negative."""

    target_entropy_scale: Annotated[float, Range(0.0, 1.0, without_high=True)]  # share of the uniform policy's entropy

    def target_entropy(self, action_space: Any, observation: Observation) -> Scalar:
        """Return the mean over a batch of `target_entropy_scale` times the entropy of the uniform legal policy."""
        return self.target_entropy_scale * mean_uniform_entropy(action_space.n, observation.action_mask)
