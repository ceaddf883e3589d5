"""The distribution of actions that consist of discrete and continuous parts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Any

import distrax
import jax
from jaxtyping import Array, Float

from stoix_like.envs.spaces import Mixed
from stoix_like.networks.distributions.base import Independent, Seed, Sizes, check_value


class MixedActionDistribution(distrax.Distribution):
    """Independent distributions of the parts of an action, concatenated to one vector of floats.

        log p(a) = sum_i log p_i(a_i)

    `parts`: one for each of `space.parts`, with equal batch shapes.
    """

    def __init__(self, parts: Sequence[Any], space: Mixed) -> None:
        self._parts, self._space = list(parts), space

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one vector, `(D,)`."""
        return self._space.shape

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch."""
        return self._parts[0].batch_shape

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._sample_n_and_log_prob(key, n)[0]

    def _sample_n_and_log_prob(self, key: Seed, n: int) -> tuple[Array, Array]:
        pairs = zip(self._parts, jax.random.split(key, len(self._parts)), strict=True)
        drawn = [part.sample_and_log_prob(seed=each, sample_shape=(n,)) for part, each in pairs]
        values, log_probs = zip(*drawn, strict=True)
        return self._space.join(values), reduce(add, log_probs)

    def log_prob(self, value: Array) -> Float[Array, "..."]:
        """Add the log-probabilities of the parts of vectors `[..., D]`."""
        check_value(value, self)
        pairs = zip(self._parts, self._space.split(value), strict=True)
        return reduce(add, (part.log_prob(each) for part, each in pairs))

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Add the entropies of the parts, in nats; estimates of continuous parts need a `seed`."""
        return reduce(add, (Independent(part, 0).entropy(seed) for part in self._parts))

    def mode(self) -> Float[Array, "*batch D"]:
        """Return the most likely action."""
        return self._space.join([part.mode() for part in self._parts])

    def mean(self) -> Float[Array, "*batch D"]:
        """Return the mode: choices have no mean."""
        return self.mode()

    def kl_divergence(self, other_dist: MixedActionDistribution, **kwargs: Any) -> Float[Array, "*batch"]:
        """Add the divergences of the parts from another distribution's equal parts, in nats."""
        pairs = zip(self._parts, other_dist._parts, strict=True)
        return reduce(add, (part.kl_divergence(other, **kwargs) for part, other in pairs))

    def __getitem__(self, index: Any) -> MixedActionDistribution:
        return MixedActionDistribution([part[index] for part in self._parts], self._space)
