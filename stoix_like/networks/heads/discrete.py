"""Policy heads for discrete actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import flax.linen as nn
import jax.numpy as jnp
import numpy as np
from jax.nn.initializers import orthogonal
from jaxtyping import Array, Bool

from stoix_like.envs.spaces import Discrete, MultiDiscrete
from stoix_like.networks import distributions
from stoix_like.networks.distributions.masks import legal_actions, mask_logits, mix_uniform
from stoix_like.networks.heads.base import Embedding, PolicyHead, Shape, action_shape, dense
from stoix_like.networks.requirements import STOCHASTIC_POLICY
from stoix_like.networks.utils import Initializer
from stoix_like.utils.jax_utils import Scalar


class CategoricalHead(PolicyHead, nn.Module):
    """A categorical policy."""

    outputs: ClassVar[str | None] = STOCHASTIC_POLICY
    action_spaces: ClassVar[tuple[type, ...]] = (Discrete,)
    takes_action_mask: ClassVar[bool] = True

    action_dim: Shape  # number of actions; or a shape `(…, K)`, for an array of choices among K
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    uniform_mix: Scalar = 0.0  # probability of a uniformly random legal action, in [0, 1], see `mix_uniform`

    def __post_init__(self) -> None:
        """Check that the share of random actions is a probability."""
        _check_share(self.uniform_mix)
        super().__post_init__()

    @nn.compact
    def __call__(
        self, embedding: Embedding, action_mask: Bool[Array, "*batch_and_actions"] | None = None
    ) -> distributions.Categorical | distributions.Independent:
        """Return a distribution over integers `[...]` that are legal: those of which `action_mask` is True, or all."""
        shape = action_shape(self.action_dim)
        logits = mask_logits(dense(embedding, shape, self.kernel_init), action_mask)
        if _mixes(self.uniform_mix):
            logits = mix_uniform(logits, self.uniform_mix, action_mask)
        pi = distributions.Categorical(logits=logits)
        return distributions.Independent(pi, len(shape) - 1) if len(shape) > 1 else pi


class MultiDiscreteHead(PolicyHead, nn.Module):
    """A policy of independent sub-actions."""

    outputs: ClassVar[str | None] = STOCHASTIC_POLICY
    action_spaces: ClassVar[tuple[type, ...]] = (MultiDiscrete,)
    takes_action_mask: ClassVar[bool] = True

    action_dim: int  # number of sub-actions, or of the choices of all of them
    number_of_dims_per_distribution: Sequence[int]  # number of choices of each sub-action
    kernel_init: Initializer | str = orthogonal(0.01)  # initialiser of the weights, or its name
    uniform_mix: Scalar = 0.0  # probability of a uniformly random legal action, in [0, 1], see `mix_uniform`

    def __post_init__(self) -> None:
        """Check the number of sub-actions, and that the share of random actions is a probability."""
        _check_share(self.uniform_mix)
        sizes = tuple(self.number_of_dims_per_distribution)
        if self.action_dim not in (len(sizes), sum(sizes)):
            raise ValueError(
                f"action_dim={self.action_dim} is not the number of sub-actions:"
                f" number_of_dims_per_distribution={sizes} has {len(sizes)}, and {sum(sizes)} choices in all"
            )
        super().__post_init__()

    @nn.compact
    def __call__(
        self, embedding: Embedding, action_mask: Bool[Array, "*batch L"] | None = None
    ) -> distributions.MultiDiscreteActionDistribution:
        """Return a distribution over legal integers `[..., action_dim]`, by an `action_mask` `[..., sum(sizes)]`."""
        sizes = tuple(self.number_of_dims_per_distribution)
        legal = None if action_mask is None else legal_actions(action_mask, sizes)
        logits = mask_logits(dense(embedding, (sum(sizes),), self.kernel_init), legal)
        if _mixes(self.uniform_mix):
            ends = np.cumsum(sizes)[:-1]
            masks = [None] * len(sizes) if legal is None else jnp.split(legal, ends, axis=-1)
            parts = zip(jnp.split(logits, ends, axis=-1), masks, strict=True)
            logits = jnp.concatenate([mix_uniform(part, self.uniform_mix, mask) for part, mask in parts], axis=-1)
        return distributions.MultiDiscreteActionDistribution(logits, sizes)


def _mixes(share: Scalar) -> bool:
    return not isinstance(share, int | float) or share != 0


def _check_share(share: Scalar) -> None:
    if isinstance(share, int | float) and not 0 <= share <= 1:
        raise ValueError(f"uniform_mix={share} must be a probability in [0, 1]: use 0.01")
