"""What the critics of on-policy systems compute: a value, or its distribution, learned from the same targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import Metrics
from stoix_like.networks.requirements import VALUE_ATOMS, VALUE_QUANTILES, HeadRequirement
from stoix_like.utils.loss import (
    baseline_loss_per_example,
    hl_gauss_loss_per_example,
    is_outside,
    quantile_regression_loss,
)


class CriticOutput(NamedTuple):
    """How the output of a critic is read and learned.

    Attributes:
        value: `(output) -> values [...]`.
        loss: `(output, target [...]) -> losses [...]`.
        metrics: `(output, target [...]) -> metrics`, each `[...]`.
    """

    value: Callable[[Any], jax.Array]
    loss: Callable[[Any, jax.Array], jax.Array]
    metrics: Callable[[Any, jax.Array], Metrics] = lambda output, target: {}


def _hl_gauss(output: Any, target: jax.Array) -> jax.Array:
    """Compute the cross-entropies of distributions over atoms and a normal distribution around each target."""
    logits, atoms = (x.reshape(-1, x.shape[-1]) for x in output[1:])
    return hl_gauss_loss_per_example(logits, atoms, target.reshape(-1)).reshape(target.shape)


def _clipped(output: Any, target: jax.Array) -> Metrics:
    """Compute which targets lie outside of the atoms."""
    return {"clipped_targets": is_outside(target, output[2])}


def _quantiles(output: Any, target: jax.Array) -> jax.Array:
    """Compute the quantile regression losses of quantiles, each target one sample of the return; their mean."""
    quantiles, levels = (x.reshape(-1, x.shape[-1]) for x in output)
    losses = quantile_regression_loss(quantiles, levels, target.reshape(-1, 1), 1.0)
    return losses.reshape(target.shape) / quantiles.shape[-1]


SCALAR = CriticOutput(lambda output: output, baseline_loss_per_example)
"""A value, learned by half its squared error."""
_DISTRIBUTIONS = {
    VALUE_ATOMS: CriticOutput(lambda output: output[0], _hl_gauss, _clipped),
    VALUE_QUANTILES: CriticOutput(lambda output: jnp.mean(output[0], axis=-1), _quantiles),
}


def critic_output(head: Any) -> CriticOutput:
    """Return how the output of a head is read and learned."""
    return _DISTRIBUTIONS.get(getattr(type(head), "outputs", ""), SCALAR)


def with_distributions(
    heads: Mapping[str, HeadRequirement], critic: str = "critic_network.critic_head"
) -> dict[str, HeadRequirement]:
    """Allow a critic to compute a distribution, with the support that the network sets."""
    support = ("num_atoms", "vmin", "vmax", "num_quantiles")
    return {**heads, critic: heads[critic]._replace(alternatives=tuple(_DISTRIBUTIONS), optional=support)}
