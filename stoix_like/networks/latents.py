"""Categorical latents of world models: groups of one-hot vectors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float


def sample_straight_through(key: Array, logits: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
    """Draw one-hot vectors, float32, with the gradients of the probabilities.

        y = one_hot(k) + p - sg(p),  p = softmax(logits),  k ~ p

    One uniform number per vector is compared with the cumulative probabilities: random numbers for all K classes took
    nine times as long on a CPU.

    Source: Hafner et al. 2021 (DreamerV2), arXiv:2010.02193, algorithm 1.
    """
    probs = jax.nn.softmax(logits.astype(jnp.float32))
    num_classes = probs.shape[-1]
    # A product: cumulative sums are slower on CPUs, and several kernels on accelerators.
    upper = np.triu(np.ones((num_classes, num_classes), np.float32))
    below = jnp.dot(jax.lax.stop_gradient(probs), upper, precision="highest")
    drawn = jax.random.uniform(key, (*probs.shape[:-1], 1))
    # The sum of all probabilities may be rounded down to less than the number.
    index = jnp.minimum(jnp.sum(drawn >= below, axis=-1), num_classes - 1)
    return jax.nn.one_hot(index, num_classes, dtype=jnp.float32) + (probs - jax.lax.stop_gradient(probs))


def mode(logits: Float[Array, "*batch K"]) -> Float[Array, "*batch K"]:
    """Return the most likely one-hot vectors, `[..., K]` float32, without gradients."""
    return jax.nn.one_hot(jnp.argmax(logits, axis=-1), logits.shape[-1], dtype=jnp.float32)
