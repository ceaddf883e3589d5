"""Contrastive losses of representations."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.shapes import check_shapes

Embeddings = Float[Array, "B D"]


def _products(x: Array, y: Array) -> Array:
    return jnp.matmul(x, y.T, precision="highest")


def _squared_distances(x: Array, y: Array) -> Array:
    """Compute squared distances without an array `[B, B, D]`; rounding may leave them negative."""
    sums = jnp.sum(jnp.square(x), axis=-1)[:, None] + jnp.sum(jnp.square(y), axis=-1)[None]
    return jnp.maximum(sums - 2.0 * _products(x, y), 0.0)


def _unit(x: Array) -> Array:
    return x / jnp.sqrt(jnp.sum(jnp.square(x), axis=-1, keepdims=True) + 1e-6)


ENERGIES: dict[str, Callable[[Embeddings, Embeddings], Float[Array, "B B"]]] = {
    "norm": lambda x, y: -jnp.sqrt(_squared_distances(x, y) + 1e-6),
    "l2": lambda x, y: -_squared_distances(x, y),
    "dot": _products,
    "cosine": lambda x, y: _products(_unit(x), _unit(y)),
}
"""Similarity of each row of one array with each row of another one, by name: the negative distance, the negative
squared distance, the product, and the cosine of the angle (Bortkiewicz et al. 2025, arXiv:2408.11052)."""


def info_nce_loss(
    logits: Float[Array, "B B"], symmetric: bool = True, logsumexp_coef: Scalar = 0.0
) -> Float[Array, ""]:
    """Compute the InfoNCE loss: the cross-entropy of finding the partner of each example in the batch.

        L = mean_i [ log sum_j exp f_ij - f_ii + c (log sum_j exp f_ij)^2 ]  (+ mean_i [ log sum_j exp f_ji - f_ii ])

    If pairs (x, y) are independent samples of p(x, y), its expectation without penalty is least where f(x, y) is
    log p(y | x) / p(y) plus any function of x; plus a constant, if symmetric. The penalty chooses one of them.

    Source: van den Oord et al. 2018, arXiv:1807.03748, equation 4; Eysenbach et al. 2022, arXiv:2206.07568, for the
    future of states and actions; Bortkiewicz et al. 2025, arXiv:2408.11052, for the symmetric loss and the penalty.

    Args:
        logits: `[B, B]`, f_ij of the i-th x and the j-th y; partners are on the diagonal.
        symmetric: whether the x of each y is to be found, too: the sum in parentheses.
        logsumexp_coef: weight c of the penalty.

    Returns:
        The mean loss, in nats.
    """
    check_shapes("logits[B,B]", (logits,))
    partner, rows = jnp.diagonal(logits), jax.nn.logsumexp(logits, axis=1)
    losses = rows - partner + logsumexp_coef * jnp.square(rows)
    if symmetric:
        losses += jax.nn.logsumexp(logits, axis=0) - partner
    return jnp.mean(losses)
