"""Heads with weights on the unit hypersphere (SimBaV2, XQC), see `networks.hyperspherical`."""

from __future__ import annotations

import math
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.networks import distributions
from stoix_like.networks.heads.base import Embedding, action_shape
from stoix_like.networks.heads.continuous import BoundedBoxHead
from stoix_like.networks.heads.critics import mean_over_atoms
from stoix_like.networks.hyperspherical import UnitOutput
from stoix_like.networks.requirements import VALUE, VALUE_ATOMS
from stoix_like.utils.jax_utils import Scalar


class HypersphericalPolicyHead(BoundedBoxHead):
    """A normal policy squashed to the action bounds, with the log deviation squashed to a range, too.

        a = minimum + (maximum - minimum) (1 + tanh x) / 2,   x ~ N(mu, exp(low + (high - low) (1 + tanh s) / 2))

    With `clip_scale`, the log deviation is s within the range.
    """

    min_log_scale: Scalar = -10.0  # lower limit of the log standard deviation before squashing
    max_log_scale: Scalar = 2.0  # its upper limit
    clip_scale: bool = False  # whether the log standard deviation is clipped to its limits instead of squashed
    hidden: bool = True  # whether the output layers have a hidden layer, see `UnitOutput`

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.Independent:
        """Return the policy: a distribution over actions `[..., *action_dim]`."""
        shape = action_shape(self.action_dim)
        outputs = (UnitOutput(math.prod(shape), self.hidden)(embedding) for _ in range(2))
        loc, spread = (x.reshape(*embedding.shape[:-1], *shape) for x in outputs)
        if self.clip_scale:
            log_scale = jnp.clip(spread, self.min_log_scale, self.max_log_scale)
        else:
            fraction = 0.5 * (1.0 + jnp.tanh(spread))
            log_scale = self.min_log_scale + (self.max_log_scale - self.min_log_scale) * fraction
        normal = distributions.Normal(loc, jnp.exp(log_scale))
        squashed = distributions.AffineTanhTransformedDistribution(normal, self.minimum, self.maximum)
        return distributions.Independent(squashed, len(shape))


class HypersphericalCriticHead(nn.Module):
    """A single value."""

    outputs: ClassVar[str | None] = VALUE

    @nn.compact
    def __call__(self, embedding: Embedding) -> Float[Array, "*batch"]:
        """Return the value, `[...]`, of an embedding `[..., D]`."""
        return UnitOutput(1)(embedding)[..., 0]


class HypersphericalCategoricalCriticHead(nn.Module):
    """The distribution of an action value on evenly spaced atoms, for continuous actions."""

    outputs: ClassVar[str | None] = VALUE_ATOMS

    num_atoms: int  # number of atoms
    vmin: Scalar  # smallest atom
    vmax: Scalar  # largest atom
    hidden: bool = True  # whether the output layer has a hidden layer, see `UnitOutput`

    @nn.compact
    def __call__(
        self, embedding: Embedding
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch K"], Float[Array, "*batch K"]]:
        """Return the mean value `[...]`, the logits `[..., num_atoms]` and the atoms `[..., num_atoms]`."""
        logits = UnitOutput(self.num_atoms, self.hidden)(embedding)
        q, atoms = mean_over_atoms(self, logits)
        return q, logits, atoms
