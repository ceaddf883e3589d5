"""Value heads: a value, or its distribution over atoms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn.initializers import lecun_normal, orthogonal
from jaxtyping import Array, Float

from stoix_like.networks import distributions
from stoix_like.networks.heads.base import Bounds, Embedding, dense
from stoix_like.networks.requirements import VALUE, VALUE_ATOMS, VALUE_DISTRIBUTION
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.scales import symexp_atoms

# exp(88.7) is the largest float32; products of atoms and probabilities stay finite, too.
_MAX_LIMIT, _MOST_ATOMS = 80.0, 2**20


class ScalarCriticHead(nn.Module):
    """A single value."""

    outputs: ClassVar[str | None] = VALUE

    kernel_init: Initializer | str = orthogonal(1.0)  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, embedding: Embedding) -> Float[Array, "*batch"]:
        """Return the value, `[...]`, of an embedding `[..., D]`."""
        return dense(embedding, (), self.kernel_init)


class CategoricalCriticHead(nn.Module):
    """A value distribution on evenly spaced atoms.

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.
    """

    outputs: ClassVar[str | None] = VALUE_DISTRIBUTION

    num_atoms: int = 601  # number of atoms
    vmax: Scalar | None = None  # largest atom; None for `(num_atoms - 1) / 2`, which spaces the atoms one apart
    vmin: Scalar | None = None  # smallest atom; None for `-vmax`
    kernel_init: Initializer | str = orthogonal(1.0)  # initialiser of the weights, or its name

    def __post_init__(self) -> None:
        """Check that the atoms ascend; traced ends are not checked."""
        vmin, vmax = self._range()
        if isinstance(vmin, int | float) and isinstance(vmax, int | float) and vmin >= vmax:
            raise ValueError(f"vmin={vmin:g} must be less than vmax={vmax:g}: set both")
        super().__post_init__()

    @nn.nowrap
    def _range(self) -> tuple[Scalar, Scalar]:
        vmax = 0.5 * (self.num_atoms - 1) if self.vmax is None else self.vmax
        return -vmax if self.vmin is None else self.vmin, vmax

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.DiscreteValuedTfpDistribution:
        """Return the distribution, with `mean` `[...]`, for an embedding `[..., D]`."""
        return DiscreteValuedTfpHead(*self._range(), self.num_atoms, kernel_init=self.kernel_init)(embedding)


class SymexpCriticHead(nn.Module):
    """A value distribution on atoms that are evenly spaced on the scale of `symlog`, for values of any magnitude.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, symexp two-hot loss.
    """

    outputs: ClassVar[str | None] = VALUE_DISTRIBUTION

    num_atoms: int = 255  # number of atoms
    limit: float = 20.0  # `symlog` of the largest atom
    # Initialiser of the weights, or its name; with zeros, values are exactly 0 at first.
    kernel_init: Initializer | str = "zeros"

    def __post_init__(self) -> None:
        """Check that there are atoms on both sides of 0, all of them finite in float32."""
        if not 2 <= self.num_atoms <= _MOST_ATOMS:
            raise ValueError(f"num_atoms={self.num_atoms} must be from 2 to {_MOST_ATOMS:,}: use 255")
        if not 0.0 < self.limit <= _MAX_LIMIT:
            raise ValueError(f"limit={self.limit} must be in (0, {_MAX_LIMIT:g}]: use 20")
        super().__post_init__()

    @nn.compact
    def __call__(self, embedding: Embedding) -> distributions.SymmetricallyValuedDistribution:
        """Return the distribution, with `mean` `[...]`, for an embedding `[..., D]`."""
        logits = dense(embedding, (self.num_atoms,), self.kernel_init)
        return distributions.SymmetricallyValuedDistribution(symexp_atoms(self.num_atoms, self.limit), logits)


class DiscreteValuedTfpHead(nn.Module):
    """Value distributions on evenly spaced atoms, in an array of any shape."""

    outputs: ClassVar[str | None] = VALUE_DISTRIBUTION

    vmin: Bounds  # smallest atom, a scalar or of shape `logits_shape`
    vmax: Bounds  # largest atom, a scalar or of shape `logits_shape`
    num_atoms: int  # number of atoms
    logits_shape: Sequence[int] | None = None  # shape of the array of values; None for a single value
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    @nn.compact
    def __call__(self, inputs: Embedding) -> distributions.DiscreteValuedTfpDistribution:
        """Return the distributions, with `mean` `[..., *logits_shape]`, for embeddings `[..., D]`."""
        logits = dense(inputs, (*(self.logits_shape or ()), self.num_atoms), self.kernel_init)
        atoms = jnp.linspace(jnp.asarray(self.vmin), jnp.asarray(self.vmax), self.num_atoms, axis=-1)
        return distributions.DiscreteValuedTfpDistribution(atoms, logits=logits)


class DistributionalContinuousQNetwork(nn.Module):
    """The distribution of an action value on evenly spaced atoms, for continuous actions (D4PG).

    The embedding is of an observation and an action.

    Source: Barth-Maron et al., Distributed Distributional Deterministic Policy Gradients (2018), appendix A.
    """

    outputs: ClassVar[str | None] = VALUE_ATOMS

    num_atoms: int  # number of atoms
    vmin: Scalar  # smallest atom
    vmax: Scalar  # largest atom
    kernel_init: Initializer | str = lecun_normal()  # initialiser of the weights, or its name

    @nn.compact
    def __call__(
        self, embedding: Embedding
    ) -> tuple[Float[Array, "*batch"], Float[Array, "*batch K"], Float[Array, "*batch K"]]:
        """Return the mean value `[...]`, the logits `[..., num_atoms]` and the atoms `[..., num_atoms]`."""
        logits = dense(embedding, (self.num_atoms,), self.kernel_init)
        q, atoms = mean_over_atoms(self, logits)
        return q, logits, atoms


def mean_over_atoms(head: Any, logits: Array) -> tuple[Array, Array]:
    """Return the mean value `[...]` and the atoms `[..., K]` for logits `[..., K]`."""
    # Rounded to bfloat16, atoms would be up to 1 / 256 of their size off.
    dtype = jnp.promote_types(logits.dtype, jnp.float32)
    atoms = jnp.broadcast_to(jnp.linspace(head.vmin, head.vmax, head.num_atoms, dtype=dtype), logits.shape)
    return (jax.nn.softmax(logits, axis=-1) * atoms).sum(-1), atoms
