"""Action and value distributions, in the manner of distrax.

Every `entropy` takes an optional `seed`, so that callers need not know which of them are estimates, and every
`log_prob` takes further leading sample axes without relying on rank promotion. A distribution is a pytree: it
passes through jit, vmap and scan.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float, Int, Key, Shaped

from stoix_like.utils.jax_utils import prepend_dims

Seed = Key[Array, ""] | Shaped[Array, "2"] | int
"""A typed key, or what distrax makes one of."""
Bound = int | float | Sequence[Any] | np.ndarray | Array
"""One end of a range: a number, or one per action."""
Sizes = tuple[Any, ...]
"""Whole numbers, of which some may be symbols while a function is exported for batches of any size."""

# Nodes and weights of Gauss-Hermite rules: few for the entropy, which training asks for at every update.
_ENTROPY_RULE = np.polynomial.hermite_e.hermegauss(6)
_MOMENT_RULE = np.polynomial.hermite_e.hermegauss(32)


def mask_logits(logits: Float[Array, "*batch A"], action_mask: Bool[Array, "*batch A"] | None) -> Float[Array, "..."]:
    """Give illegal actions the lowest finite logit, hence probability zero and gradient zero.

    Finite rather than minus infinity, so that no product with it is NaN. See `legal_actions` for empty masks.

    Args:
        logits: `[..., A]` unnormalised log-probabilities.
        action_mask: `[..., A]`, True where an action is legal; None where all are.

    Returns:
        `[..., A]` logits.

    Raises:
        ValueError: as `legal_actions`.
    """
    if action_mask is None:
        return logits
    return jnp.where(legal_actions(action_mask), logits, jnp.finfo(logits.dtype).min)


def legal_actions(action_mask: Bool[Array, "*batch L"], sizes: Sequence[int] | None = None) -> Bool[Array, "*batch L"]:
    """An action mask that leaves something to choose everywhere.

    A compiled program cannot raise, so there a choice without any legal action (the last state of some games) is
    one where all are legal.

    Args:
        action_mask: `[..., L]`, True where an action is legal.
        sizes: how many entries belong to each of several choices; None for one choice among all of them.

    Returns:
        `[..., L]` mask.

    Raises:
        ValueError: where a choice has no legal action and the mask is not traced.
    """
    if sizes is not None:
        parts = jnp.split(action_mask, np.cumsum(sizes)[:-1], axis=-1)
        return jnp.concatenate([legal_actions(part) for part in parts], axis=-1)
    action_mask = jnp.asarray(action_mask, bool)
    some = action_mask.any(-1, keepdims=True)
    if not isinstance(some, jax.core.Tracer) and not some.all():
        raise ValueError(f"an action mask must allow at least one action, got {(~some).sum()} rows of False")
    return action_mask | ~some


def _grid(batch_shape: tuple[int, ...], index: Any) -> tuple[np.ndarray, ...]:
    """An index of batch axes spelt out, so that it does not reach any axis behind them."""
    np.broadcast_to(False, batch_shape)[index]  # raises where the index does not fit
    return tuple(np.asarray(axis[index]) for axis in np.indices(batch_shape))


def _take(distribution: Any, index: Any, *names: str) -> Any:
    """A distribution like this one, with the arrays of these names, batch axes first, at an index of the batch."""
    grid = _grid(distribution.batch_shape, index)
    taken = copy.copy(distribution)
    for name in names:
        setattr(taken, name, getattr(distribution, name)[grid])
    return taken


class Categorical(distrax.Categorical):
    """A categorical distribution over `0 … K - 1` that normalises only when asked for probabilities.

    Sampling is the Gumbel-max trick on the raw logits and nothing else, for it runs at every environment step.

    Args:
        logits: `[..., K]` unnormalised log-probabilities.
        probs: `[..., K]` probabilities, in place of `logits`.
        dtype: type of the samples.

    Raises:
        ValueError: where not exactly one of `logits` and `probs` is given.
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
            self._logits = jnp.log(jnp.asarray(probs))
        else:
            raise ValueError(f"exactly one of logits and probs must be given, got logits={logits}, probs={probs}")
        self._probs = None
        self._dtype = dtype

    @property
    def logits(self) -> Float[Array, "*batch K"]:
        """Log-probabilities, `[..., K]`."""
        return jax.nn.log_softmax(self._logits, axis=-1)

    @property
    def batch_shape(self) -> Sizes:
        """Shape of one sample."""
        return self._logits.shape[:-1]

    def _sample_n(self, key: Seed, n: int) -> Array:
        # Gumbel noise in bfloat16 is too coarse to follow the probabilities.
        logits = self._logits.astype(jnp.promote_types(self._logits.dtype, jnp.float32))
        noise = jax.random.gumbel(key, (n, *logits.shape), logits.dtype)
        return jnp.argmax(noise + logits[None], axis=-1).astype(self._dtype)

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Log-probability of `value`; minus infinity where it is not one of `0 … K - 1`."""
        value = jnp.asarray(value)
        chosen = jax.nn.one_hot(value, self.num_categories, dtype=bool)
        log_probs = jnp.where(chosen, prepend_dims(self.logits, chosen.ndim), 0.0).sum(-1)
        return jnp.where((value < 0) | (value >= self.num_categories), -jnp.inf, log_probs)

    def prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Probability of `value`; zero where it is not one of `0 … K - 1`."""
        return jnp.exp(self.log_prob(value))

    def cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Probability of `value` or less."""
        return jnp.exp(self.log_cdf(value))

    def log_cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Logarithm of the probability of `value` or less."""
        return self._log_sum(self._compared(value, jnp.less_equal))

    def _support(self) -> Array:
        """What is sampled, `[..., K]`."""
        return jnp.broadcast_to(jnp.arange(self.num_categories), self._logits.shape)

    def _compared(self, value: ArrayLike, comparison: Callable[..., Array]) -> Bool[Array, "..."]:
        """Whether each category compares so with `value`, `[..., K]`."""
        samples = jnp.asarray(value)
        support = prepend_dims(self._support(), max(samples.ndim + 1, self._logits.ndim))
        return comparison(support, prepend_dims(samples, support.ndim - 1)[..., None])

    def _log_sum(self, chosen: Array) -> Array:
        """Log-probability of the chosen ones, `[..., K]`, together."""
        log_probs = jnp.broadcast_to(prepend_dims(self.logits, chosen.ndim), chosen.shape)
        # At most 0, which the sum over everything exceeds by rounding.
        return jnp.minimum(jax.nn.logsumexp(log_probs, axis=-1, where=chosen), 0.0)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Shannon entropy in nats, exact: `-sum_k p_k log p_k`; `seed` is not used."""
        return super().entropy()

    def __getitem__(self, index: Any) -> Categorical:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_logits")


class EpsilonGreedy(Categorical):
    """The best action with probability `1 - epsilon`, else a legal one at random.

        p(a) = epsilon / |legal| + (1 - epsilon) [a = argmax_legal q]

    Of several best actions it is the first, so that acting and `mode` agree.

    Args:
        preferences: `[..., A]` action values.
        epsilon: probability of a random action, in [0, 1]: one number, or one for each of the last batch axes, such
            as `[N]` for N environments; may be traced.
        action_mask: `[..., A]`, True where an action is legal; None where all are.

    Raises:
        ValueError: as `legal_actions`.
    """

    def __init__(
        self,
        preferences: Float[Array, "*batch A"],
        epsilon: int | float | Array,
        action_mask: Bool[Array, "*batch A"] | None = None,
    ) -> None:
        self._preferences = preferences
        mask = jnp.ones(preferences.shape, bool) if action_mask is None else legal_actions(action_mask)
        legal = mask.astype(preferences.dtype)
        best = jnp.argmax(jnp.where(mask, preferences, -jnp.inf), axis=-1)
        greedy = jax.nn.one_hot(best, preferences.shape[-1], dtype=preferences.dtype)
        uniform = legal / legal.sum(-1, keepdims=True)
        epsilon = jnp.asarray(epsilon, preferences.dtype)
        if epsilon.ndim:
            epsilon = jnp.broadcast_to(epsilon, best.shape)[..., None]
        super().__init__(probs=epsilon * uniform + (1.0 - epsilon) * greedy)
        self._greedy_action = best

    @property
    def preferences(self) -> Float[Array, "*batch A"]:
        """Action values, as they were given."""
        return self._preferences

    def mode(self) -> Int[Array, "*batch"]:
        """The best legal action, whatever `epsilon` is."""
        return self._greedy_action.astype(self._dtype)

    def __getitem__(self, index: Any) -> EpsilonGreedy:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_logits", "_preferences", "_greedy_action")


class DiscreteValuedTfpDistribution(Categorical):
    """A categorical distribution over real values.

    The divergence compares probabilities atom by atom: it is meant for distributions over the same values.

    Source: Bellemare et al., A Distributional Perspective on Reinforcement Learning (2017), section 4.

    Args:
        values: `[K]` or `[..., K]`, the atoms.
        logits: `[..., K]` unnormalised log-probabilities.
        probs: `[..., K]` probabilities, in place of `logits`.
    """

    def __init__(
        self,
        values: Float[Array, "..."] | np.ndarray,
        logits: Float[Array, "*batch K"] | None = None,
        probs: Float[Array, "*batch K"] | None = None,
    ) -> None:
        super().__init__(logits, probs)
        self._values = jnp.broadcast_to(jnp.asarray(values, self._logits.dtype), self._logits.shape)
        self._dtype = self._values.dtype

    @property
    def values(self) -> Float[Array, "*batch K"]:
        """The atoms, `[..., K]`."""
        return self._values

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._at(Categorical(logits=self._logits)._sample_n(key, n))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Log-probability of the atom(s) equal to `value`; minus infinity where there is none."""
        return self._log_sum(self._compared(value, jnp.equal))

    def log_cdf(self, value: ArrayLike) -> Float[Array, "..."]:
        """Logarithm of the probability of all atoms up to `value`."""
        return super().log_cdf(value)

    def _support(self) -> Array:
        return self._values

    def mean(self) -> Float[Array, "*batch"]:
        """Expectation `sum_k p_k z_k`."""
        return (self.probs * self._values).sum(-1)

    def variance(self) -> Float[Array, "*batch"]:
        """Variance `sum_k p_k (z_k - mean)^2`."""
        return (self.probs * jnp.square(self._values - self.mean()[..., None])).sum(-1)

    def mode(self) -> Float[Array, "*batch"]:
        """The most likely value."""
        return self._at(jnp.argmax(self._logits, axis=-1))

    def __getitem__(self, index: Any) -> DiscreteValuedTfpDistribution:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_logits", "_values")

    def _at(self, index: Int[Array, "..."]) -> Array:
        values = jnp.broadcast_to(prepend_dims(self._values, index.ndim + 1), (*index.shape, self.num_categories))
        return jnp.take_along_axis(values, index[..., None], axis=-1)[..., 0]


class Deterministic(distrax.Distribution):
    """All probability on one number.

    Args:
        loc: `[...]`, the numbers.
    """

    def __init__(self, loc: Float[Array, "*batch"]) -> None:
        self._loc = loc

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Events are scalars."""
        return ()

    @property
    def batch_shape(self) -> Sizes:
        """Shape of one sample."""
        return self._loc.shape

    def _sample_n(self, key: Seed, n: int) -> Array:
        return jnp.broadcast_to(self._loc[None], (n, *self._loc.shape))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Zero where `value` is the number, else minus infinity."""
        loc = prepend_dims(self._loc, jnp.ndim(value))
        return jnp.where(value == loc, 0.0, -jnp.inf).astype(loc.dtype)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Zero, as there is nothing to know; `seed` is not used."""
        return jnp.zeros_like(self._loc)

    def mean(self) -> Float[Array, "*batch"]:
        """The numbers."""
        return self._loc

    def mode(self) -> Float[Array, "*batch"]:
        """The numbers."""
        return self._loc

    def variance(self) -> Float[Array, "*batch"]:
        """Zero."""
        return jnp.zeros_like(self._loc)

    def __getitem__(self, index: Any) -> Deterministic:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_loc")


class MultivariateNormalDiag(distrax.Distribution):
    """A normal distribution over vectors, or arrays of another rank, whose entries are independent.

    Args:
        loc: `[..., A]` means.
        scale_diag: `[..., A]` or `[A]` standard deviations.
        event_ndims: how many of the last axes make up one event: 1 for vectors.
    """

    def __init__(self, loc: Float[Array, "..."], scale_diag: Float[Array, "..."], event_ndims: int = 1) -> None:
        self._loc = loc
        self._scale_diag = jnp.broadcast_to(scale_diag, loc.shape)
        self._event_ndims = event_ndims

    def _over_event(self, per_entry: Array) -> Array:
        return per_entry.sum(tuple(range(-self._event_ndims, 0)))

    @property
    def loc(self) -> Float[Array, "*batch_and_event"]:
        """Means."""
        return self._loc

    @property
    def scale_diag(self) -> Float[Array, "*batch_and_event"]:
        """Standard deviations."""
        return self._scale_diag

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one event."""
        return self._loc.shape[self._loc.ndim - self._event_ndims :]

    @property
    def batch_shape(self) -> Sizes:
        """Shape of the batch."""
        return self._loc.shape[: self._loc.ndim - self._event_ndims]

    def _sample_n(self, key: Seed, n: int) -> Array:
        noise = jax.random.normal(key, (n, *self._loc.shape), self._loc.dtype)
        return self._loc[None] + self._scale_diag[None] * noise

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Log-density, summed over the entries: `-1/2 sum_i ((x_i - mu_i) / s_i)^2 + log(2 pi s_i^2)`."""
        loc, scale = (prepend_dims(parameter, jnp.ndim(value)) for parameter in (self._loc, self._scale_diag))
        log_prob = -0.5 * jnp.square((value - loc) / scale) - jnp.log(scale) - 0.5 * math.log(2.0 * math.pi)
        return self._over_event(log_prob)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Differential entropy in nats, exact: `1/2 sum_i log(2 pi e s_i^2)`; `seed` is not used."""
        return self._over_event(jnp.log(self._scale_diag) + 0.5 * math.log(2.0 * math.pi * math.e))

    def kl_divergence(self, other_dist: Any, **kwargs: Any) -> Float[Array, "*batch"]:
        """Divergence, exact: `sum_i log(s'_i / s_i) + (s_i^2 + (mu_i - mu'_i)^2) / (2 s'_i^2) - 1/2`."""
        difference = (self._loc - other_dist.loc) / other_dist.scale_diag
        log_ratio = jnp.log(self._scale_diag) - jnp.log(other_dist.scale_diag)
        return self._over_event(0.5 * jnp.square(difference) + 0.5 * jnp.expm1(2.0 * log_ratio) - log_ratio)

    def mean(self) -> Float[Array, "*batch_and_event"]:
        """Means."""
        return self._loc

    def mode(self) -> Float[Array, "*batch_and_event"]:
        """The most likely event, the mean."""
        return self._loc

    def stddev(self) -> Float[Array, "*batch_and_event"]:
        """Standard deviations."""
        return self._scale_diag

    def variance(self) -> Float[Array, "*batch_and_event"]:
        """Variances."""
        return jnp.square(self._scale_diag)

    def __getitem__(self, index: Any) -> MultivariateNormalDiag:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_loc", "_scale_diag")


class StateDependentNoise(MultivariateNormalDiag):
    """A normal whose noise is a random linear function of features, so that one `seed` gives smooth exploration.

        a = mu + eps^T phi + m xi,   eps_ij ~ N(0, s_ij^2),   xi_j ~ N(0, 1)
        hence   a_j ~ N(mu_j, sum_i phi_i^2 s_ij^2 + m^2)

    Sampling with the same key at successive steps keeps `eps` and `xi`, which is what makes the noise smooth in the
    state. The floor m is noise like any other, so that samples follow the density even where the features vanish.

    Source: Raffin et al., Smooth Exploration for Robotic Reinforcement Learning (2022), equations 4-6.

    Args:
        loc: `[..., *action]` means, the axes of an action being those of `noise_scale` after the first.
        features: `[..., D]`, what the noise depends on.
        noise_scale: `[D, *action]` standard deviations of `eps`.
        min_scale: m, lower limit of the standard deviation, in units of the action.
    """

    def __init__(
        self,
        loc: Float[Array, "*batch_and_action"],
        features: Float[Array, "*batch D"],
        noise_scale: Float[Array, "D *action"],
        min_scale: int | float | Array = 1e-3,
    ) -> None:
        # The floor is one more feature, constant, with a scale of 1.
        floor = jnp.broadcast_to(jnp.asarray(min_scale, features.dtype), (*features.shape[:-1], 1))
        features = jnp.concatenate([features, floor], axis=-1)
        width = features.shape[-1]
        flat_scale = noise_scale.reshape(width - 1, -1)
        flat_scale = jnp.concatenate([flat_scale, jnp.ones_like(flat_scale[:1])])
        variance = jnp.square(features) @ jnp.square(flat_scale)
        super().__init__(loc, jnp.sqrt(variance).reshape(loc.shape), noise_scale.ndim - 1)
        self._features = features
        # As wide as the batch, so that mapping over the batch maps over this, too.
        self._noise_scale = jnp.broadcast_to(flat_scale, (*features.shape[:-1], *flat_scale.shape))

    def _sample_n(self, key: Seed, n: int) -> Array:
        noise = jax.random.normal(key, (n, *self._noise_scale.shape), self._loc.dtype) * self._noise_scale[None]
        noise = jnp.einsum("...i,n...ij->n...j", self._features, noise)
        return self._loc[None] + noise.reshape(n, *self._loc.shape)

    def __getitem__(self, index: Any) -> StateDependentNoise:
        """The distributions at `index` of the batch."""
        return _take(self, index, "_loc", "_scale_diag", "_features", "_noise_scale")


class Independent(distrax.Independent):
    """Counts the last batch axes of a distribution as axes of one event: log-probabilities sum over them."""

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Sum of the entropies of the entries, which take the same `seed` where they are estimates."""
        return self._reduce(jnp.sum, self._distribution.entropy(seed=seed))

    def __getitem__(self, index: Any) -> Independent:
        """The distributions at `index` of the batch."""
        grid = _grid(self.batch_shape, index)
        return Independent(self._distribution[grid], self._reinterpreted_batch_ndims)


class MultiDiscreteActionDistribution(Independent):
    """Independent categoricals of different sizes; an action is the vector of their choices.

    Args:
        flat_logits: `[..., sum(sizes)]`, the logits of the sub-actions one after the other.
        number_of_dims_per_distribution: the sizes of the sub-actions.

    Raises:
        ValueError: where the sizes do not add up to the width of the logits.
    """

    def __init__(self, flat_logits: Float[Array, "*batch L"], number_of_dims_per_distribution: Sequence[int]) -> None:
        sizes = tuple(int(size) for size in number_of_dims_per_distribution)
        if sum(sizes) != flat_logits.shape[-1]:
            raise ValueError(f"sub-actions of sizes {sizes} need {sum(sizes)} logits, got {flat_logits.shape[-1]}")
        super().__init__(Categorical(logits=_pad_to_rectangle(flat_logits, sizes)), 1)


def _pad_to_rectangle(flat: Float[Array, "*batch L"], sizes: tuple[int, ...]) -> Float[Array, "*batch D K"]:
    """Logits of sub-actions as one rectangle, so that they are sampled at once; what is added has probability zero.

    Each part is shifted so that its largest logit is 0: however low its logits are, the padding is lower by far.
    """
    if len(set(sizes)) == 1:
        return flat.reshape(*flat.shape[:-1], len(sizes), sizes[0])
    never, unpadded = jnp.finfo(flat.dtype).min, [(0, 0)] * (flat.ndim - 1)
    parts = jnp.split(flat, np.cumsum(sizes)[:-1], axis=-1)
    parts = [p - jax.lax.stop_gradient(p.max(-1, keepdims=True)) for p in parts]
    padded = [jnp.pad(p, [*unpadded, (0, max(sizes) - p.shape[-1])], constant_values=never) for p in parts]
    return jnp.stack(padded, axis=-2)


def squash(x: Float[Array, "*batch"], minimum: Bound, maximum: Bound) -> Float[Array, "*batch"]:
    """Map numbers into an interval.

        y = minimum + (maximum - minimum) (1 + tanh x) / 2

    Args:
        x: of any shape.
        minimum: lower end, broadcast against the last axes of `x`.
        maximum: upper end, broadcast against the last axes of `x`.

    Returns:
        Numbers in [minimum, maximum], of the shape of `x`.
    """
    return _stretch(0.5 + 0.5 * jnp.tanh(x), minimum, maximum)


def _stretch(fraction: Array, minimum: Bound, maximum: Bound) -> Array:
    """Numbers in [0, 1] mapped to [minimum, maximum], which rounding must not leave."""
    low, width = _interval(minimum, maximum, fraction)
    high = prepend_dims(_as_array(maximum, fraction.dtype), fraction.ndim)
    return jnp.clip(low + width * fraction, low, high)


def _interval(minimum: Bound, maximum: Bound, like: Array) -> tuple[Any, Any]:
    """Minimum and width of an interval, to broadcast against `like`; constants where the bounds are."""
    low, high = (prepend_dims(_as_array(bound, like.dtype), like.ndim) for bound in (minimum, maximum))
    return low, high - low


def _is_traceable(bound: Any) -> bool:
    return any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(bound))


def _as_array(bound: Bound, dtype: Any) -> Any:
    return jnp.asarray(bound, dtype) if _is_traceable(bound) else np.asarray(bound, dtype)


class _Bounded(distrax.Distribution):
    """Scalars of a `distribution`, mapped one to one into [minimum, maximum] by `_forward`.

    Plain bounds are kept as plain floats: they are no leaves of the pytree, so mapping over a batch of distributions
    leaves them alone. Arrays, which may be traced, are leaves, and get the shape of the batch.
    """

    _parameters: ClassVar[tuple[str, ...]] = ("_minimum", "_maximum")

    def __init__(self, distribution: distrax.DistributionLike, minimum: Bound, maximum: Bound) -> None:
        self._distribution = distrax.as_distribution(distribution)
        self._minimum, self._maximum = (self._kept(bound) for bound in (minimum, maximum))

    def _kept(self, bound: Any) -> Any:
        if _is_traceable(bound):
            return jnp.broadcast_to(jnp.asarray(bound), self.batch_shape)
        return np.asarray(bound, np.float32).tolist()

    @property
    def distribution(self) -> distrax.Distribution:
        """The distribution before it is mapped."""
        return self._distribution

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Events are scalars."""
        return ()

    @property
    def batch_shape(self) -> Sizes:
        """Shape of one sample."""
        return self._distribution.batch_shape

    def __getitem__(self, index: Any) -> Any:
        """The distributions at `index` of the batch."""
        # A scalar bound holds wherever the index leads; others may vary along the axes that it picks from.
        whole = copy.copy(self)
        varying = [name for name in self._parameters if np.ndim(getattr(self, name))]
        for name in varying:
            setattr(whole, name, jnp.broadcast_to(jnp.asarray(getattr(self, name)), self.batch_shape))
        taken = _take(whole, index, *varying)
        taken._distribution = self._distribution[index]
        return taken

    def _interval(self, like: Array) -> tuple[Any, Any]:
        return _interval(self._minimum, self._maximum, like)

    def _forward(self, x: Array) -> Array:
        raise NotImplementedError

    def _log_prob(self, value: Array) -> Array:
        raise NotImplementedError

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._forward(self._distribution._sample_n(key, n))

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Log-density of `value`, finite at both ends of the interval."""
        value = jnp.asarray(value)
        return _over_samples(self._log_prob, value.ndim - len(self.batch_shape))(value)

    def mode(self) -> Float[Array, "*batch"]:
        """The mapped mode of the distribution underneath: what a greedy policy does."""
        return self._forward(self._distribution.mode())

    def kl_divergence(self, other_dist: distrax.DistributionLike, **kwargs: Any) -> Float[Array, "*batch"]:
        """Divergence to another one on the same interval, which the mapping does not change: KL(x || x')."""
        if type(other_dist) is not type(self):
            raise NotImplementedError(f"no divergence from {self.name} to {type(other_dist).__name__}")
        return self._distribution.kl_divergence(other_dist.distribution, **kwargs)


def _over_samples(function: Callable[[Array], Array], num_axes: int) -> Callable[[Array], Array]:
    for _ in range(num_axes):
        function = jax.vmap(function)
    return function


@jax.custom_jvp
def _log_tanh_slope(x: Array) -> Array:
    """log(1 - tanh^2 x), as log 4 - 2 |x| - 2 log(1 + exp(-2 |x|)), which does not cancel."""
    size = jnp.abs(x)
    return math.log(4.0) - 2.0 * (size + jnp.log1p(jnp.exp(-2.0 * size)))


@_log_tanh_slope.defjvp
def _log_tanh_slope_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _log_tanh_slope(x), -2.0 * jnp.tanh(x) * dx


class AffineTanhTransformedDistribution(_Bounded):
    """A distribution squashed into [minimum, maximum].

        y = minimum + (maximum - minimum) (1 + tanh x) / 2

    Within `epsilon` of an end the density is the mass of that end zone divided by its width: constant, finite,
    with a useful gradient, and the whole still integrates to one. There, samples are too close to the end for x
    to be recovered. What rounding puts beyond an end counts as part of the zone.

    `sample_and_log_prob` knows x and therefore gives the exact density everywhere: what a loss needs that passes
    gradients through the sample, as SAC's does. In the end zones it differs from `log_prob` of the same sample. A
    ratio of probabilities must therefore take both from `log_prob` of the stored action: then it is 1 for the same
    parameters, everywhere.

    Args:
        distribution: of the scalars x; with a normal one, entropy and moments need no seed.
        minimum: lower end, broadcast against samples; may be traced.
        maximum: upper end, broadcast against samples; may be traced.
        epsilon: width of each end zone, in units of half the interval; may be traced.
        validate_args: not used.
    """

    def __init__(
        self,
        distribution: distrax.DistributionLike,
        minimum: Bound,
        maximum: Bound,
        epsilon: int | float | Array = 1e-3,
        validate_args: bool = False,
    ) -> None:
        super().__init__(distribution, minimum, maximum)
        self._epsilon = self._kept(epsilon)

    _parameters = ("_minimum", "_maximum", "_epsilon")

    def _forward(self, x: Array) -> Array:
        return squash(x, self._minimum, self._maximum)

    def _log_slope(self, x: Array) -> Array:
        """Logarithm of dy/dx."""
        return _log_tanh_slope(x) + jnp.log(self._interval(x)[1]) - math.log(2.0)

    def _sample_n_and_log_prob(self, key: Seed, n: int) -> tuple[Array, Array]:
        x = self._distribution._sample_n(key, n)
        return self._forward(x), jax.vmap(self._distribution.log_prob)(x) - self._log_slope(x)

    def _log_prob(self, value: Array) -> Array:
        # In bfloat16 the whole of an end zone rounds to the end.
        value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
        low, width = self._interval(value)
        squashed = 2.0 * (value - low) / width - 1.0
        epsilon = jnp.asarray(self._epsilon, value.dtype)
        inside = jnp.abs(squashed) < 1.0 - epsilon
        squashed_inside = jnp.where(inside, squashed, 0.0)
        middle = self._distribution.log_prob(jnp.arctanh(squashed_inside)) - jnp.log1p(-jnp.square(squashed_inside))
        # atanh(1 - epsilon), without the rounding of the difference.
        edge = (0.5 * (jnp.log(2.0 - epsilon) - jnp.log(epsilon))).astype(middle.dtype)
        below, above = self._distribution.log_cdf(-edge), self._distribution.log_survival_function(edge)
        end_zone = jnp.where(squashed < 0.0, below, above) - jnp.log(epsilon)
        return jnp.where(inside, middle, end_zone) - jnp.log(width) + math.log(2.0)

    def _expectation(self, function: Callable[[Array], Array], rule: tuple[np.ndarray, np.ndarray]) -> Array:
        """E[f(x)] for normal x, by quadrature; `function` broadcasts over the last axis, the nodes."""
        if not self._is_normal:
            raise NotImplementedError(f"no moments of a squashed {self._distribution.name}")
        loc, scale = self._distribution.mean()[..., None], self._distribution.stddev()[..., None]
        nodes, weights = rule[0].astype(loc.dtype), (rule[1] / math.sqrt(2.0 * math.pi)).astype(loc.dtype)
        return function(loc + scale * prepend_dims(nodes, loc.ndim)) @ weights

    @property
    def _is_normal(self) -> bool:
        return self._distribution.name == "Normal"

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Differential entropy in nats, an estimate: `H(y) = H(x) + E[log dy/dx]`.

        With a normal x the expectation is a 6-node Gauss-Hermite rule: free of noise, exact to 0.003 nats for
        standard deviations of x up to 1, to 0.06 up to 2, 0.2 up to 3 and 0.5 up to 5, and off by more than 1 from
        10 on. Otherwise it is one sample, drawn with `seed`.

        Raises:
            ValueError: where x is not normal and there is no `seed`.
        """
        base_entropy = self._distribution.entropy()
        if self._is_normal:
            log_slope = self._expectation(_log_tanh_slope, _ENTROPY_RULE)
        elif seed is not None:
            log_slope = _log_tanh_slope(self._distribution.sample(seed=seed))
        else:
            raise ValueError(f"the entropy of a squashed {self._distribution.name} is estimated: give a seed")
        return base_entropy + log_slope + jnp.log(self._interval(base_entropy)[1]) - math.log(2.0)

    def mean(self) -> Float[Array, "*batch"]:
        """Expectation, by 32-node quadrature; normal x only."""
        mean = self._expectation(jnp.tanh, _MOMENT_RULE)
        return _stretch(0.5 + 0.5 * mean, self._minimum, self._maximum)

    def variance(self) -> Float[Array, "*batch"]:
        """Variance, by 32-node quadrature; normal x only."""
        mean = self._expectation(jnp.tanh, _MOMENT_RULE)
        variance = self._expectation(lambda x: jnp.square(jnp.tanh(x) - mean[..., None]), _MOMENT_RULE)
        return 0.25 * variance * jnp.square(self._interval(mean)[1])


class ClippedBeta(distrax.Beta):
    """A Beta distribution whose samples stay strictly inside (0, 1), where its log-density is finite.

    Made, as distrax's, from two positive concentrations, `alpha` and `beta`.
    """

    def _inside(self, value: Array) -> Array:
        margin = float(jnp.finfo(value.dtype).eps)
        return jnp.clip(value, margin, 1.0 - margin)

    def _sample_n(self, key: Seed, n: int) -> Array:
        return self._inside(super()._sample_n(key, n))

    def _sample_n_and_log_prob(self, key: Seed, n: int) -> tuple[Array, Array]:
        samples = self._sample_n(key, n)
        return samples, self.log_prob(samples)

    def log_prob(self, value: ArrayLike) -> Float[Array, "..."]:
        """Log-density; beyond the samples' range that of the nearest sample."""
        value = jnp.asarray(value)
        return _over_samples(super().log_prob, value.ndim - len(self.batch_shape))(self._inside(value))

    def mode(self) -> Float[Array, "*batch"]:
        """The most likely value; the mean where none is (both concentrations at most one)."""
        no_peak = (self._alpha <= 1.0) & (self._beta <= 1.0)
        excess = jnp.where(no_peak, 1.0, self._alpha + self._beta - 2.0)
        return jnp.where(no_peak, self.mean(), jnp.clip((self._alpha - 1.0) / excess, 0.0, 1.0))

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Differential entropy in nats, exact but for the clipping; `seed` is not used."""
        return super().entropy()

    def __getitem__(self, index: Any) -> ClippedBeta:
        """The distributions at `index` of the batch."""
        taken = super().__getitem__(index)
        return ClippedBeta(taken.alpha, taken.beta)


class AffineBeta(_Bounded):
    """A distribution on (0, 1) stretched over [minimum, maximum]: y = minimum + (maximum - minimum) x.

    Args:
        distribution: of x, such as a `ClippedBeta`.
        minimum: lower end, broadcast against samples.
        maximum: upper end, broadcast against samples.
    """

    def _forward(self, x: Array) -> Array:
        return _stretch(x, self._minimum, self._maximum)

    def _log_prob(self, value: Array) -> Array:
        low, width = self._interval(value)
        return self._distribution.log_prob((value - low) / width) - jnp.log(width)

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Differential entropy in nats, exact: `H(x) + log(maximum - minimum)`; `seed` is not used."""
        entropy = self._distribution.entropy()
        return entropy + jnp.log(self._interval(entropy)[1])

    def mean(self) -> Float[Array, "*batch"]:
        """Expectation."""
        return self._forward(self._distribution.mean())

    def variance(self) -> Float[Array, "*batch"]:
        """Variance."""
        variance = self._distribution.variance()
        return variance * jnp.square(self._interval(variance)[1])
