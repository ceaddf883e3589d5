"""Losses of world models with categorical latents."""

import jax
import jax.numpy as jnp
from jax.lax import stop_gradient
from jaxtyping import Array, Float

from stoix_like.utils.jax_utils import Scalar
from stoix_like.utils.shapes import check_shapes


def kl_balance_loss(
    posterior_logits: Float[Array, "*B G K"], prior_logits: Float[Array, "*B G K"], free_nats: Scalar = 1.0
) -> tuple[Float[Array, "*B"], Float[Array, "*B"]]:
    """Compute the divergences that train the prior and the posterior of a world model, each with its own weight.

        L_dyn = max(free_nats, sum_g KL(sg(posterior_g) || prior_g))
        L_rep = max(free_nats, sum_g KL(posterior_g || sg(prior_g)))

    Both have the same value; below `free_nats`, neither has a gradient.

    Source: Hafner et al. 2023 (DreamerV3), arXiv:2301.04104, equation 3.

    Args:
        posterior_logits: `[*B, G, K]` logits of G categorical latents of K classes, given the observation.
        prior_logits: `[*B, G, K]` logits of the prediction before the observation.
        free_nats: divergence that costs nothing, in nats, summed over the latents.

    Returns:
        `[*B]` the dynamics loss and the representation loss, in nats.
    """
    check_shapes("posterior_logits[*B] prior_logits[*B]", (posterior_logits, prior_logits))
    posterior, prior = jax.nn.log_softmax(posterior_logits), jax.nn.log_softmax(prior_logits)

    def divergence(p: Array, q: Array) -> Array:
        return jnp.maximum(free_nats, jnp.sum(jnp.exp(p) * (p - q), axis=(-2, -1)))

    return divergence(stop_gradient(posterior), prior), divergence(posterior, stop_gradient(prior))
