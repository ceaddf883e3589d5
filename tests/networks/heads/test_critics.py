"""Heads of values over atoms."""

import jax
import jax.numpy as jnp
import numpy as np
from every_head import HEADS, KEY

from stoix_like.networks import heads


class TestAtoms:
    def test_values_are_means_over_atoms(self):
        head, _ = HEADS["c51"]
        x = jax.random.normal(KEY, (5, 6))
        pi, logits, atoms = jax.jit(head.init_with_output)(KEY, x)[0]
        np.testing.assert_allclose(atoms, np.tile(np.linspace(-1, 1, 5), (5, 1)), atol=1e-6)
        expected = (jax.nn.softmax(logits) * np.linspace(-1, 1, 5)[None, None]).sum(-1)
        np.testing.assert_allclose(pi.preferences, expected, rtol=1e-5, atol=1e-6)

    def test_categorical_critic_has_a_default_range(self):
        x = jnp.ones((2, 6))
        head = heads.CategoricalCriticHead(5)
        np.testing.assert_allclose(jax.jit(head.init_with_output)(KEY, x)[0].values, [[-2.0, -1.0, 0.0, 1.0, 2.0]] * 2)
        head = heads.CategoricalCriticHead(3, vmin=0.0, vmax=4.0)
        np.testing.assert_allclose(jax.jit(head.init_with_output)(KEY, x)[0].values, [[0.0, 2.0, 4.0]] * 2)
