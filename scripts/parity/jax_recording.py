"""Networks of JAX with given noise and weights."""

import jax
import jax.numpy as jnp
import numpy as np
from recording import round32


class Noisy:
    """A policy that draws given noise."""

    def __init__(self, pi, noise):
        self.pi, self.noise = pi, noise

    def sample(self, seed):
        """Return the sample for this noise."""
        del seed
        normal = self.pi.distribution
        return self.pi.bijector.forward(normal.mean() + normal.stddev() * self.noise)

    def log_prob(self, action):
        """Return the log-density."""
        return self.pi.log_prob(action)


def draw(rng, params):
    """Draw parameters of the shapes of a tree: scales near one, matrices in units of 1 / sqrt(inputs)."""

    def one(path, leaf):
        name = path[-1].key
        if name == "kernel":
            return rng.normal(size=leaf.shape) / np.sqrt(leaf.shape[-2])
        return (name == "scale") + 0.1 * rng.normal(size=leaf.shape)

    return jax.tree.map(jnp.asarray, round32(jax.tree.map_with_path(one, params)))


def statistics(stats):
    """Return the running means and variances, in float64."""
    return jax.tree.map_with_path(
        lambda path, leaf: jnp.asarray(leaf, jnp.float64 if path[-1].key in ("mean", "var") else None), stats
    )
