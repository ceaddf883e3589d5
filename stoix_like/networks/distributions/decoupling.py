"""Parts of a policy that are constrained separately, such as its means and its standard deviations."""

from __future__ import annotations

import copy
from typing import Any

import distrax
import jax
from jaxtyping import Array, Float

from stoix_like.networks.distributions.base import Independent
from stoix_like.networks.distributions.bounded import Bounded
from stoix_like.networks.distributions.normal import MultivariateNormalDiag


def decouple(pi: Any, b_pi: Any) -> dict[str, Any]:
    """Return for each part of a policy one with only this part, the others taken from another policy.

    Source: Abdolmaleki et al. 2018, "Relative entropy regularized policy iteration", section 4.2.2.

    `pi`: the policy to differentiate.
    `b_pi`: a policy of the same form; its gradient is stopped.
    Returns policies by name: with the `mean` and with the `stddev` of `pi` for a normal policy, squashed or not, and
    `pi` itself, the whole `policy`, for any other.
    """
    own, other = _normal(pi), jax.lax.stop_gradient(_normal(b_pi))
    if own is None or other is None:
        return {"policy": pi}
    return {"mean": _replace(pi, own[0], other[1]), "stddev": _replace(pi, other[0], own[1])}


def kl_per_dimension(p: Any, q: Any) -> Float[Array, "*batch A"]:
    """Compute KL(p || q) in nats, between policies of one form, for each independently drawn entry of an action.

    Returns `[..., A]`; A is 1 for a policy with a single draw as action.
    """
    own, other = _normal(p), _normal(q)
    if own is not None and other is not None:
        kl = distrax.Normal(*own).kl_divergence(distrax.Normal(*other))
    elif isinstance(p, distrax.Independent):
        kl = p.distribution.kl_divergence(q.distribution)
    else:
        kl = p.kl_divergence(q)
    return kl.reshape(*p.batch_shape, -1)


def _normal(pi: Any) -> tuple[Array, Array] | None:
    """Return means and standard deviations of the normal distribution in a policy, or None if there is none."""
    if isinstance(pi, distrax.Independent | Bounded):
        return _normal(pi.distribution)
    if isinstance(pi, distrax.Normal | MultivariateNormalDiag):
        return pi.mean(), pi.stddev()
    return None


def _replace(pi: Any, loc: Array, scale: Array) -> Any:
    """Return the same policy with other means and standard deviations."""
    if isinstance(pi, distrax.Independent):
        return Independent(_replace(pi.distribution, loc, scale), len(pi.event_shape))
    if isinstance(pi, MultivariateNormalDiag):
        return MultivariateNormalDiag(loc, scale, len(pi.event_shape))
    if isinstance(pi, Bounded):
        replaced = copy.copy(pi)
        replaced._distribution = distrax.Normal(loc, scale)
        return replaced
    return distrax.Normal(loc, scale)
