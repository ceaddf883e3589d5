"""Components of systems that learn from a replay buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import jax
import jax.numpy as jnp

from stoix_like.base_types import Metrics, PyTree, SystemConfig
from stoix_like.errors import ConfigError
from stoix_like.schema import between
from stoix_like.systems.gradient_descent import GradientConfig
from stoix_like.utils.replay import ReplayConfig

Head = TypeVar("Head", bound=Any)


@dataclass(frozen=True, kw_only=True)
class OffPolicyBaseConfig(GradientConfig, ReplayConfig):
    """Hyperparameters of systems with a replay buffer."""

    @property
    def gradient_steps(self) -> int:
        """Gradient steps per update."""
        return self.epochs


@dataclass(frozen=True, kw_only=True)
class OffPolicyConfig(OffPolicyBaseConfig):
    """Hyperparameters of systems with a replay buffer and target networks.

    Attributes:
        tau: Polyak step size of the target parameters (soft update).
    """

    tau: Annotated[float, between(0.0, 1.0)]


@dataclass(frozen=True, kw_only=True)
class AtomsConfig(SystemConfig):
    """Hyperparameters of a categorical distribution of returns, with or without a replay buffer.

    Attributes:
        num_atoms: number of atoms.
        vmin: value of the first atom, in units of scaled reward.
        vmax: value of the last atom, likewise.
    """

    num_atoms: Annotated[int, between(2, 100_000)]
    vmin: float
    vmax: float

    def check(self, num_envs: int, num_shards: int) -> None:
        """Check sizes, and that the support is not empty; see `SystemConfig.check`."""
        super().check(num_envs, num_shards)
        if self.vmin >= self.vmax:
            raise ConfigError(f"system.vmin={self.vmin} must be less than system.vmax={self.vmax}")

    @property
    def support(self) -> dict[str, Any]:
        """Attributes of a distributional head by name; the values may be traced."""
        return {"num_atoms": self.num_atoms, "vmin": self.vmin, "vmax": self.vmax}


@dataclass(frozen=True, kw_only=True)
class CategoricalConfig(AtomsConfig, OffPolicyConfig):
    """Hyperparameters of systems with a replay buffer that learn a categorical distribution of returns."""


def configure_head(head: Head, hyperparams: Mapping[str, Any]) -> Head:
    """Set those attributes of a head that are hyperparameters of the system.

    Args:
        head: a flax module.
        hyperparams: attributes by name; the values may be traced.

    Returns:
        A copy of the head with these attributes.

    Raises:
        ConfigError: if the head has no such attribute.
    """
    for name in hyperparams:
        if not hasattr(head, name):
            raise ConfigError(
                f"network: the head {type(head).__name__} has no {name}, which the system sets: use the default network"
                " of the system"
            )
    return head.clone(**hyperparams)


def periodically(
    step: Callable[[PyTree], tuple[PyTree, Metrics]], operand: PyTree, count: jax.Array, period: int
) -> tuple[PyTree, Metrics]:
    """Take a step every `period` calls.

    Args:
        step: `(operand) -> (operand, metrics)`.
        operand: the argument of the step.
        count: number of calls before this one; over a mapped axis, such as a population, the largest count decides for
            all entries.
        period: calls per step, at least 1.

    Returns:
        The new operand, and the metrics: multiplied by `period` if the step was taken and zero otherwise, so that their
        mean over a whole number of periods is the mean over steps.
    """
    if period == 1:
        return step(operand)
    _, metrics = jax.eval_shape(step, operand)

    def taken(operand: PyTree) -> tuple[PyTree, Metrics]:
        operand, metrics = step(operand)
        return operand, jax.tree.map(lambda metric: period * metric, metrics)

    def skipped(operand: PyTree) -> tuple[PyTree, Metrics]:
        return operand, jax.tree.map(lambda like: jnp.zeros(like.shape, like.dtype), metrics)

    return jax.lax.cond((_common_count(count) + 1) % period == 0, taken, skipped, operand)


@jax.custom_batching.custom_vmap
def _common_count(count: jax.Array) -> jax.Array:
    return count


@_common_count.def_vmap
def _common_count_of_batch(axis_size: int, in_batched: list[bool], count: jax.Array) -> tuple[jax.Array, bool]:
    # With one predicate per member, vmap would take the step every time and select afterwards. All members share the
    # count, except diverged ones: their state is frozen, and their count with it.
    del axis_size, in_batched
    return _common_count(jnp.max(count)), False
