"""Distributions squashed to an interval by tanh."""

from __future__ import annotations

import math
from collections.abc import Callable

import distrax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Seed
from stoix_like.networks.distributions.bounded import Bound, Bounded, squash, stretch
from stoix_like.utils.jax_utils import prepend_dims

# Nodes and weights of Gauss-Hermite rules. The entropy, which training computes in every update, uses few nodes.
_ENTROPY_RULE = np.polynomial.hermite_e.hermegauss(6)
_MOMENT_RULE = np.polynomial.hermite_e.hermegauss(32)


@jax.custom_jvp
def _log_tanh_slope(x: Array) -> Array:
    """Compute log(1 - tanh^2 x) as log 4 - 2 |x| - 2 log(1 + exp(-2 |x|)), without cancellation."""
    size = jnp.abs(x)
    return math.log(4.0) - 2.0 * (size + jnp.log1p(jnp.exp(-2.0 * size)))


@_log_tanh_slope.defjvp
def _log_tanh_slope_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    (x,), (dx,) = primals, tangents
    return _log_tanh_slope(x), -2.0 * jnp.tanh(x) * dx


class AffineTanhTransformedDistribution(Bounded):
    """A distribution squashed to [minimum, maximum].

        y = minimum + (maximum - minimum) (1 + tanh x) / 2

    Near the ends, x cannot be recovered from y. Within `epsilon` of an end, `log_prob` is therefore the log of the
    probability of that end zone divided by its width: constant in y, finite, with a useful gradient, and the density
    still integrates to one. Values that rounding puts beyond an end count as part of the zone.

    `sample_and_log_prob` knows x and returns the exact density everywhere, as losses need that differentiate through
    the sample (SAC). In the end zones it differs from `log_prob` of the same sample. A probability ratio must
    therefore use `log_prob` of the stored action on both sides: then it is 1 for equal parameters.

    Args:
        distribution: distribution of the scalars x; entropy and moments of a normal distribution need no seed.
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
        self._epsilon = self._store(epsilon)

    _parameters = ("_minimum", "_maximum", "_epsilon")

    def _forward(self, x: Array) -> Array:
        return squash(x, self._minimum, self._maximum)

    def _log_slope(self, x: Array) -> Array:
        """Compute log dy/dx."""
        return _log_tanh_slope(x) + jnp.log(self._interval(x)[1]) - math.log(2.0)

    def _sample_n_and_log_prob(self, key: Seed, n: int) -> tuple[Array, Array]:
        x = self._distribution._sample_n(key, n)
        return self._forward(x), jax.vmap(self._distribution.log_prob)(x) - self._log_slope(x)

    def _log_prob(self, value: Array) -> Array:
        # In bfloat16 every value of an end zone would round to the end.
        value = value.astype(jnp.promote_types(value.dtype, jnp.float32))
        low, width = self._interval(value)
        squashed = 2.0 * (value - low) / width - 1.0
        epsilon = jnp.asarray(self._epsilon, value.dtype)
        inside = jnp.abs(squashed) < 1.0 - epsilon
        squashed_inside = jnp.where(inside, squashed, 0.0)
        middle = self._distribution.log_prob(jnp.arctanh(squashed_inside)) - jnp.log1p(-jnp.square(squashed_inside))
        # atanh(1 - epsilon), without the rounding error of the difference.
        edge = (0.5 * (jnp.log(2.0 - epsilon) - jnp.log(epsilon))).astype(middle.dtype)
        below, above = self._distribution.log_cdf(-edge), self._distribution.log_survival_function(edge)
        end_zone = jnp.where(squashed < 0.0, below, above) - jnp.log(epsilon)
        return jnp.where(inside, middle, end_zone) - jnp.log(width) + math.log(2.0)

    def _expectation(self, function: Callable[[Array], Array], rule: tuple[np.ndarray, np.ndarray]) -> Array:
        """Compute E[f(x)] for normal x by quadrature; the last axis of the argument of `function` holds the nodes."""
        if not self._is_normal:
            raise NotImplementedError(
                f"the moments of a squashed {self._distribution.name} are not implemented: squash a Normal, or average"
                " samples"
            )
        loc, scale = self._distribution.mean()[..., None], self._distribution.stddev()[..., None]
        nodes, weights = rule[0].astype(loc.dtype), (rule[1] / math.sqrt(2.0 * math.pi)).astype(loc.dtype)
        return function(loc + scale * prepend_dims(nodes, loc.ndim)) @ weights

    @property
    def _is_normal(self) -> bool:
        return self._distribution.name == "Normal"

    def entropy(self, seed: Seed | None = None) -> Float[Array, "*batch"]:
        """Estimate the differential entropy in nats, `H(y) = H(x) + E[log dy/dx]`.

        For normal x the expectation is a 6-node Gauss-Hermite rule, which has no noise. Its error is at most 0.003
        nats for standard deviations of x up to 1, 0.06 up to 2, 0.2 up to 3 and 0.5 up to 5, and more than 1 from 10
        on. For other distributions the expectation is a single sample.

        Args:
            seed: key of the sample; not used for normal x.

        Raises:
            ValueError: x is not normal and `seed` is None.
        """
        base_entropy = self._distribution.entropy()
        if self._is_normal:
            log_slope = self._expectation(_log_tanh_slope, _ENTROPY_RULE)
        elif seed is not None:
            log_slope = _log_tanh_slope(self._distribution.sample(seed=seed))
        else:
            raise ValueError(
                f"seed=None, but the entropy of a squashed {self._distribution.name} is estimated from a sample: pass a"
                " seed"
            )
        return base_entropy + log_slope + jnp.log(self._interval(base_entropy)[1]) - math.log(2.0)

    def mean(self) -> Float[Array, "*batch"]:
        """Compute the expectation by 32-node quadrature, for normal x."""
        mean = self._expectation(jnp.tanh, _MOMENT_RULE)
        return stretch(0.5 + 0.5 * mean, self._minimum, self._maximum)

    def variance(self) -> Float[Array, "*batch"]:
        """Compute the variance by 32-node quadrature, for normal x."""
        mean = self._expectation(jnp.tanh, _MOMENT_RULE)
        variance = self._expectation(lambda x: jnp.square(jnp.tanh(x) - mean[..., None]), _MOMENT_RULE)
        return 0.25 * variance * jnp.square(self._interval(mean)[1])
