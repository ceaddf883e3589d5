"""Hyperparameters that change linearly over the run."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from stoix_like.base_types import SystemConfig
from stoix_like.utils.jax_utils import Scalar


@dataclass(frozen=True, kw_only=True)
class AnnealedConfig(SystemConfig):
    """Hyperparameters of which some may change over the run.

    Attributes:
        annealed: names of hyperparameters with a second one, the same name after `final_`: the value at the end of the
            run, or None for one that does not change.
    """

    annealed: ClassVar[tuple[str, ...]] = ()

    @property
    def final_values(self) -> dict[str, Scalar]:
        """The values at the end of the run, of the hyperparameters that change."""
        finals = {name: getattr(self, f"final_{name}") for name in self.annealed}
        return {name: value for name, value in finals.items() if value is not None}

    def init_updates(self) -> Any:
        """Return the count of updates that `at` needs, `()` if nothing changes."""
        return jnp.zeros((), jnp.int32) if self.final_values else ()

    def at(self, updates: Any, num_updates: int) -> Self:
        """Return the hyperparameters of one update.

            x(k) = x + (final_x - x) min(1, k / num_updates)

        Args:
            updates: k, the updates so far; not used if nothing changes.
            num_updates: updates of the run.

        Returns:
            The hyperparameters.
        """
        finals = self.final_values
        if not finals:
            return self
        fraction = jnp.minimum(1.0, updates / num_updates)

        def between(start: Scalar, end: Scalar) -> jax.Array:
            return start + fraction * (end - start)

        reached: dict[str, Any] = {name: between(getattr(self, name), final) for name, final in finals.items()}
        return replace(self, **reached)

    def schedules(self, updates: int, num_updates: int) -> dict[str, float]:
        """See `SystemConfig.schedules`."""
        now = self.at(updates, num_updates)
        return {name: float(getattr(now, name)) for name in self.final_values} | super().schedules(updates, num_updates)
