"""Outputs of the critics of on-policy systems: a value, or its distribution, learned from the same targets."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Metrics, PyTree
from stoix_like.networks.requirements import VALUE_ATOMS, VALUE_DISTRIBUTION, VALUE_QUANTILES, HeadRequirement
from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.loss import baseline_loss_per_example, hl_gauss_loss_per_example, quantile_regression_loss
from stoix_like.utils.loss.distributional import is_outside
from stoix_like.utils.scales import two_hot


class CriticOutput(NamedTuple):
    """Value, loss and metrics of the output of a critic."""

    value: Callable[[PyTree], jax.Array]  # `(output) -> values [...]`
    loss: Callable[[PyTree, jax.Array], jax.Array]  # `(output, target [...]) -> losses [...]`
    # `(output, target [...]) -> metrics`, each `[...]`.
    metrics: Callable[[PyTree, jax.Array], Metrics] = lambda output, target: {}


def _hl_gauss(output: PyTree, target: jax.Array) -> jax.Array:
    """Compute the cross-entropies of distributions over atoms and a normal distribution around each target."""
    logits, atoms = (x.reshape(-1, x.shape[-1]) for x in output[1:])
    return hl_gauss_loss_per_example(logits, atoms, target.reshape(-1)).reshape(target.shape)


def _clipped(atoms: jax.Array, target: jax.Array) -> Metrics:
    """Compute which targets lie outside of the atoms."""
    return {"clipped_targets": is_outside(target, atoms)}


def _quantiles(output: PyTree, target: jax.Array) -> jax.Array:
    """Compute the quantile regression losses of quantiles, each target one sample of the return; their mean."""
    quantiles, levels = (x.reshape(-1, x.shape[-1]) for x in output)
    losses = quantile_regression_loss(quantiles, levels, target.reshape(-1, 1), 1.0)
    return losses.reshape(target.shape) / quantiles.shape[-1]


def two_hot_loss(distribution: Any, *targets: jax.Array, weights: Sequence[Scalar] = (1.0,)) -> jax.Array:
    """Compute the weighted sum of the cross-entropies of value distributions and each of their targets.

    On a CPU, one sum of targets over one set of atoms is several times faster than `two_hot_loss_per_example`.

    `distribution`: a distribution `[...]` over the same atoms everywhere.
    `*targets`: `[...]` each.
    Returns the losses (nats), `[...]`.
    """
    logits, values = distribution.logits, distribution.values
    # A slice, which is free; indices would gather.
    atoms = values[(slice(1),) * (values.ndim - 1)].reshape(-1)
    pairs = zip(weights, targets, strict=True)
    probs = functools.reduce(operator.add, [weight * two_hot(target, atoms) for weight, target in pairs])
    return -jnp.sum(probs * logits, axis=-1)


SCALAR = CriticOutput(lambda output: output, baseline_loss_per_example)
"""A value, learned by half its squared error."""
_DISTRIBUTIONS = {
    VALUE_DISTRIBUTION: CriticOutput(
        lambda output: output.mean(), two_hot_loss, lambda output, target: _clipped(output.values, target)
    ),
    VALUE_ATOMS: CriticOutput(lambda output: output[0], _hl_gauss, lambda output, target: _clipped(output[2], target)),
    VALUE_QUANTILES: CriticOutput(lambda output: jnp.mean(output[0], axis=-1), _quantiles),
}


def critic_output(head: Any) -> CriticOutput:
    """Return how the output of a head is read and learned."""
    return _DISTRIBUTIONS.get(getattr(type(head), "outputs", ""), SCALAR)


def with_distributions(heads: Mapping[str, HeadRequirement]) -> dict[str, HeadRequirement]:
    """Allow a critic to compute a distribution, with the support that the network sets."""
    critic, support = "critic_network.critic_head", ("num_atoms", "vmin", "vmax", "num_quantiles")
    return {**heads, critic: heads[critic]._replace(alternatives=tuple(_DISTRIBUTIONS), optional=support)}
