"""Parts of systems that learn distributions of returns."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Loss, SystemConfig
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.schema import Part, between, one_of
from stoix_like.utils.loss import categorical_critics_loss_per_example, clipped_probability
from stoix_like.utils.replay import Batch

Head = TypeVar("Head", bound=Any)


@dataclass(frozen=True, kw_only=True)
class AtomsConfig(Part):
    """Hyperparameters of a categorical distribution of returns."""

    scale: ClassVar[str] = ""
    num_atoms: Annotated[int, between(2, 100_000)]  # number of atoms
    vmin: float  # value of the first atom, in units of scaled reward
    vmax: float  # value of the last atom, likewise

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        """Check that the support is not empty."""
        if self.vmin >= self.vmax:
            raise ConfigError(f"system.vmin={self.vmin} must be less than system.vmax={self.vmax}")

    @property
    def support(self) -> dict[str, float | jax.Array]:
        """Attributes of a distributional head by name; the values may be traced."""
        return {"num_atoms": self.num_atoms, "vmin": self.vmin, "vmax": self.vmax}

    def entropy_notes(self, name: str, alpha: float, gamma: float, action_space: Box) -> tuple[str, ...]:
        """Return a note if the entropy of random actions is worth more than the support holds.

        alpha |A| ln 2 / (1 - gamma) > vmax
        """
        bonus = alpha * math.prod(action_space.shape) * math.log(2.0)
        if bonus <= self.vmax * (1.0 - gamma):
            return ()
        worth = f"{bonus / (1.0 - gamma):,.3g}" if gamma < 1.0 else "any number"
        return (
            f"system.{name}={alpha:g}: the entropy of random actions is worth {worth} in soft returns, above"
            f" system.vmax={self.vmax:g}: targets are clipped until the temperature has fallen. Lower it, or raise"
            " system.vmax",
        )


class Reduction(NamedTuple):
    """Objective of the policy and targets of the critics, where there are several critics."""

    value: Callable[[jax.Array], jax.Array]  # `(q [B, C]) -> q [B]`, what the policy maximises
    clipped_double: bool  # whether all critics learn the target with the smallest mean, or each its own


MEAN = Reduction(lambda q: jnp.mean(q, axis=-1), clipped_double=False)
REDUCTIONS = {"min": Reduction(lambda q: jnp.min(q, axis=-1), clipped_double=True), "mean": MEAN}
"""The values of `system.critic_reduction`."""


@dataclass(frozen=True, kw_only=True)
class CategoricalCriticsConfig(AtomsConfig):
    """Hyperparameters of systems with several critics of this kind."""

    critic_reduction: Annotated[str, one_of("min", "mean")] = "min"  # `min`

    @property
    def reduction(self) -> Reduction:
        """Objective of the policy and targets of the critics."""
        return REDUCTIONS[self.critic_reduction]


def categorical_loss(
    tm1: tuple[jax.Array, ...], reward: jax.Array, batch: Batch, logits_t: jax.Array, reduction: Reduction
) -> Loss:
    """Compute the weighted cross-entropies of critics to projected distributions of targets.

    `tm1`: means `[B, C]`, logits and atoms `[B, K, C]` of the actions taken.
    `reward`: `[B]`, of the targets.
    `logits_t`: `[B, K, C]`, of the successors.
    """
    q_tm1, logits_tm1, atoms_tm1 = tm1
    atoms = atoms_tm1[..., 0]
    losses = categorical_critics_loss_per_example(
        logits_tm1, atoms, reward, batch.discount, logits_t, reduction.clipped_double
    )
    loss = jnp.mean(batch.weight * losses)
    probs_t = jnp.mean(jax.nn.softmax(logits_t, axis=1), axis=-1)
    clipped = jnp.mean(clipped_probability(reward, batch.discount, atoms, probs_t))
    return loss, {"q_loss": loss, "q_value": jnp.mean(q_tm1), "clipped_targets": clipped}


def configure_head(head: Head, hyperparams: Mapping[str, Any]) -> Head:
    """Set those attributes of a head that are hyperparameters of the system."""
    for name in hyperparams:
        if not hasattr(head, name):
            raise ConfigError(
                f"network: the head {type(head).__name__} has no {name}, which the system sets: use the default network"
                " of the system"
            )
    return head.clone(**hyperparams)
