"""Torsos with variables that are no parameters."""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp


class FixedFeatures(nn.Module):
    """Random features in a collection of their own, so that they are not trained."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        draw = self.variable("constants", "b", lambda: jax.random.normal(self.make_rng("params"), (x.shape[-1], 2)))
        return nn.Dense(2)(jnp.sin(x @ draw.value))
