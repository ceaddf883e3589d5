"""Distributions over discrete actions and over the atoms of a return."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Real

from stoix_like.networks.distributions.base import Independent, Seed, Sizes, check_value, take
from stoix_like.networks.distributions.masks import check_mask, legal_actions
from stoix_like.utils.accelerate.columns import argmax, columns, in_columns
from stoix_like.utils.jax_utils import prepend_dims


def sum_last(x: Float[Array, "... K"]) -> Float[Array, "..."]:
    """Sum over the last axis."""
    return functools.reduce(operator.add, columns(x)) if in_columns(x) else x.sum(-1)


def log_softmax(logits: Float[Array, "... K"]) -> Float[Array, "... K"]:
    """Normalise log-probabilities over the last axis."""
    if not in_columns(logits):
        return jax.nn.log_softmax(logits, axis=-1)
    parts = columns(logits)
    largest = jax.lax.stop_gradient(functools.reduce(jnp.maximum, parts))
    shift = largest + jnp.log(functools.reduce(operator.add, [jnp.exp(part - largest) for part in parts]))
    return jnp.stack([part - shift for part in parts], -1)


class Categorical(distrax.Categorical):
    """A categorical distribution over `0 … K - 1`.

    Logits are normalised only where probabilities are needed: sampling, which runs at every environment step, applies
    the Gumbel-max trick to the raw logits.

    Args:
        logits: `[..., K]` unnormalised log-probabilities.
        probs: `[..., K]` probabilities, instead of `logits`.
        dtype: dtype of the samples.

    Raises:
        ValueError: both or neither of `logits` and `probs` are given.
    """

    def __init__(
        self,
        logits: Float[Array, "*batch K"] | None = None,
        probs: Float[Array, "*batch K"] | None = None,
        dtype: Any = jnp.int32,
    ) -> None:
        if logits is not None and probs is None:
            self._logits = jnp.asarray(logits)
        elif probs is not None and logits is None:
            # The gradient of the logarithm of 0 is infinite, times the logit's, which is 0: not a number.
            probs = jnp.asarray(probs)
            is_possible = probs != 0
            self._logits = jnp.where(is_possible, jnp.log(jnp.where(is_possible, probs, 1.0)), -jnp.inf)
        else:
            given = "neither" if logits is None else "both"
            raise ValueError(f"Categorical got {given} of logits and probs: pass exactly one of them")
        self._probs = None
        self._dtype = dtype

    @property
    def logits(self) -> Float[Array, "*batch K"]:
        """Normalised log-probabilities, `[..., K]`."""
        return log_softmax(self._logits)

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch, which is the shape of one sample."""
        return self._logits.shape[:-1]

    def _sample_n(self, key: Seed, n: int) -> Array:
        # Gumbel noise in bfloat16 is too coarse to follow the probabilities.
        logits = self._logits.astype(jnp.promote_types(self._logits.dtype, jnp.float32))
        noise = jax.random.gumbel(key, (n, *logits.shape), logits.dtype)
        return argmax(noise + logits[None]).astype(self._dtype)

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the log-probability of `value`; minus infinity outside of `0 … K - 1`."""
        check_value(value, self)
        value = jnp.asarray(value)
        chosen = jax.nn.one_hot(value, self.num_categories, dtype=bool)
        log_probs = sum_last(jnp.where(chosen, prepend_dims(self.logits, chosen.ndim), 0.0))
        return jnp.where((value < 0) | (value >= self.num_categories), -jnp.inf, log_probs)

    def prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the probability of `value`; zero outside of `0 … K - 1`."""
        return jnp.exp(self.log_prob(value))

    def cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the probability of `value` or less."""
        return jnp.exp(self.log_cdf(value))

    def log_cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the log-probability of `value` or less."""
        return self._log_sum(self._compare(value, jnp.less_equal))

    def _support(self) -> Array:
        """Return the value of each category, `[..., K]`."""
        return jnp.broadcast_to(jnp.arange(self.num_categories), self._logits.shape)

    def _compare(self, value: ArrayLike, comparison: Callable[..., Array]) -> Bool[Array, "..."]:
        """Compare the value of each category with `value`, `[..., K]`."""
        check_value(value, self)
        samples = jnp.asarray(value)
        support = prepend_dims(self._support(), max(samples.ndim + 1, self._logits.ndim))
        return comparison(support, prepend_dims(samples, support.ndim - 1)[..., None])

    def _log_sum(self, chosen: Array) -> Array:
        """Return the log of the total probability of the categories `chosen`, `[..., K]`."""
        log_probs = jnp.broadcast_to(prepend_dims(self.logits, chosen.ndim), chosen.shape)
        # Rounding can bring the sum over all categories above 0.
        return jnp.minimum(jax.nn.logsumexp(log_probs, axis=-1, where=chosen), 0.0)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Compute the Shannon entropy in nats, `-sum_k p_k log p_k`, exactly; ignores `seed`."""
        log_probs = self.logits
        probs = jnp.exp(log_probs)
        # The product of minus infinity and 0 is 0, and so is its gradient.
        return -sum_last(jnp.where(probs == 0, 0.0, log_probs) * probs)

    def __getitem__(self, index: Any) -> Categorical:
        return take(self, index, "_logits")


class EpsilonGreedy(Categorical):
    """An epsilon-greedy policy: the best legal action with probability `1 - epsilon`, else a random legal action.

        p(a) = epsilon / |legal| + (1 - epsilon) [a = argmax_legal q]

    Ties go to the first of the best actions, so that samples agree with `mode`.

    Args:
        preferences: `[..., A]` action values.
        epsilon: probability of a random action, in [0, 1]: a number, or an array of the last batch axes, such as `[N]`
            for N environments; may be traced.
        action_mask: `[..., A]`, True where an action is legal; None where all are legal.

    Raises:
        ValueError: the mask has other axes than the action values, or a row of a concrete one has no legal action.
    """

    def __init__(
        self,
        preferences: Real[Array, "*batch A"],
        epsilon: int | float | Array,
        action_mask: Bool[Array, "*batch A"] | None = None,
    ) -> None:
        # Integers would round `epsilon` to 0.
        self._preferences = preferences = preferences.astype(jnp.result_type(preferences, 1.0))
        check_mask(action_mask, preferences)
        mask = jnp.ones(preferences.shape, bool) if action_mask is None else legal_actions(action_mask)
        legal = mask.astype(preferences.dtype)
        best = argmax(jnp.where(mask, preferences, -jnp.inf))
        greedy = jax.nn.one_hot(best, preferences.shape[-1], dtype=preferences.dtype)
        uniform = legal / legal.sum(-1, keepdims=True)
        epsilon = jnp.asarray(epsilon, preferences.dtype)
        if epsilon.ndim:
            epsilon = jnp.broadcast_to(epsilon, best.shape)[..., None]
        super().__init__(probs=epsilon * uniform + (1.0 - epsilon) * greedy)
        self._greedy_action = best

    @property
    def preferences(self) -> Float[Array, "*batch A"]:
        """Action values, unmasked."""
        return self._preferences

    def mode(self) -> Int[Array, "*batch"]:
        """Return the best legal action, for any `epsilon`."""
        return self._greedy_action.astype(self._dtype)

    def __getitem__(self, index: Any) -> EpsilonGreedy:
        return take(self, index, "_logits", "_preferences", "_greedy_action")


class DiscreteValuedTfpDistribution(Categorical):
    """A categorical distribution over real values, the atoms.

    `kl_divergence` compares probabilities atom by atom: both distributions must have the same atoms.

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.

    Args:
        values: `[K]` or `[..., K]` atoms.
        logits: `[..., K]` unnormalised log-probabilities.
        probs: `[..., K]` probabilities, instead of `logits`.
    """

    def __init__(
        self,
        values: Float[Array, "..."] | np.ndarray,
        logits: Float[Array, "*batch K"] | None = None,
        probs: Float[Array, "*batch K"] | None = None,
    ) -> None:
        super().__init__(logits, probs)
        # Rounded to bfloat16, atoms would be up to 1 / 256 of their size off.
        dtype = jnp.promote_types(self._logits.dtype, jnp.float32)
        self._values = jnp.broadcast_to(jnp.asarray(values, dtype), self._logits.shape)
        self._dtype = self._values.dtype

    @property
    def values(self) -> Float[Array, "*batch K"]:
        """Atoms, `[..., K]`."""
        return self._values

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._take_values(Categorical(logits=self._logits)._sample_n(key, n))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Return the log-probability of the atoms equal to `value`; minus infinity where there is none."""
        return self._log_sum(self._compare(value, jnp.equal))

    def _support(self) -> Array:
        return self._values

    def mean(self) -> Float[Array, "*batch"]:
        """Compute the expectation, `sum_k p_k z_k`."""
        return (self.probs * self._values).sum(-1)

    def variance(self) -> Float[Array, "*batch"]:
        """Compute the variance, `sum_k p_k (z_k - mean)^2`."""
        return (self.probs * jnp.square(self._values - self.mean()[..., None])).sum(-1)

    def mode(self) -> Float[Array, "*batch"]:
        """Return the most likely atom."""
        return self._take_values(argmax(self._logits))

    def __getitem__(self, index: Any) -> DiscreteValuedTfpDistribution:
        return take(self, index, "_logits", "_values")

    def _take_values(self, index: Int[Array, "..."]) -> Array:
        values = jnp.broadcast_to(prepend_dims(self._values, index.ndim + 1), (*index.shape, self.num_categories))
        return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


class SymmetricallyValuedDistribution(DiscreteValuedTfpDistribution):
    """A categorical distribution over atoms that are symmetric around 0, `z_k = -z_{K + 1 - k}`.

    Its mean is exact for equal probabilities of opposite atoms, however large: they cancel before they are summed.
    """

    def mean(self) -> Float[Array, "*batch"]:
        """Compute the expectation, `sum_{z_k > 0} (p_k - p_{K + 1 - k}) z_k`."""
        probs, num_above = self.probs, self.num_categories // 2
        difference = probs[..., -num_above:] - probs[..., :num_above][..., ::-1]
        return (difference * self._values[..., -num_above:]).sum(-1)


class MultiDiscreteActionDistribution(Independent):
    """Independent categorical distributions of several sizes; an action is a vector of sub-actions.

    Args:
        flat_logits: `[..., sum(sizes)]`, the concatenated logits of the sub-actions.
        number_of_dims_per_distribution: the sizes, the number of choices of each sub-action.

    Raises:
        ValueError: the sizes do not add up to the number of logits.
    """

    def __init__(self, flat_logits: Float[Array, "*batch L"], number_of_dims_per_distribution: Sequence[int]) -> None:
        sizes = tuple(int(size) for size in number_of_dims_per_distribution)
        if sum(sizes) != flat_logits.shape[-1]:
            raise ValueError(
                f"number_of_dims_per_distribution={sizes} needs {sum(sizes)} logits, got {flat_logits.shape[-1]}:"
                " pass one logit per choice of each sub-action"
            )
        super().__init__(Categorical(logits=_pad_to_rectangle(flat_logits, sizes)), 1)


def _pad_to_rectangle(flat: Float[Array, "*batch L"], sizes: tuple[int, ...]) -> Float[Array, "*batch D K"]:
    """Pad the logits of sub-actions to one array, so that a single call samples all of them.

    The padding has probability zero: the logits of each sub-action are shifted to a maximum of 0, far above the
    padding however low they were.
    """
    if len(set(sizes)) == 1:
        return flat.reshape(*flat.shape[:-1], len(sizes), sizes[0])
    never, unpadded = jnp.finfo(flat.dtype).min, [(0, 0)] * (flat.ndim - 1)
    parts = jnp.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    parts = [p - jax.lax.stop_gradient(p.max(-1, keepdims=True)) for p in parts]
    padded = [jnp.pad(p, [*unpadded, (0, max(sizes) - p.shape[-1])], constant_values=never) for p in parts]
    return jnp.stack(padded, axis=-2)
