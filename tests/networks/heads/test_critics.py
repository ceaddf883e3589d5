import math

import jax
import numpy as np
import pytest

from stoix_like.networks import heads
from stoix_like.utils.scales import symexp_atoms
from support.compiled import run
from support.every_head import HEADS, KEY


class TestAtoms:
    def test_values_are_means_over_atoms(self):
        head, _ = HEADS["c51"]
        x = np.random.default_rng(0).normal(size=(5, 6))
        pi, logits, atoms = jax.jit(head.init_with_output)(KEY, x)[0]
        np.testing.assert_allclose(atoms, np.tile(np.linspace(-1, 1, 5), (5, 1)), atol=1e-6)
        expected = np.asarray(jax.jit(jax.nn.softmax)(logits)) @ np.linspace(-1, 1, 5)
        np.testing.assert_allclose(pi.preferences, expected, rtol=1e-5, atol=1e-6)

    def test_categorical_critic_has_a_default_range(self):
        x = np.ones((2, 6))
        head = heads.CategoricalCriticHead(5)
        np.testing.assert_allclose(jax.jit(head.init_with_output)(KEY, x)[0].values, [[-2.0, -1.0, 0.0, 1.0, 2.0]] * 2)
        head = heads.CategoricalCriticHead(3, vmin=0.0, vmax=4.0)
        np.testing.assert_allclose(jax.jit(head.init_with_output)(KEY, x)[0].values, [[0.0, 2.0, 4.0]] * 2)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [({"vmax": -5.0}, "vmin=5 must be less than vmax=-5: set both"), ({"vmin": 3}, "vmin=3 must .* vmax=2: set")],
    )
    def test_a_default_end_may_not_lie_beyond_the_other_one(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            heads.CategoricalCriticHead(5, **arguments)


# By hand, atoms (1 - e, 0, e - 1): at zero weights the mean is exactly 0 in spite of atoms of 4.8e8, and with logits
# (0, 0, ln 3) it is (3/5 - 1/5) (e - 1).
def test_values_on_symexp_atoms_are_exactly_zero_at_first():
    x = jax.device_put(100.0 * np.random.default_rng(0).normal(size=(4, 3, 6)))
    pi, _ = jax.jit(heads.SymexpCriticHead().init_with_output)(KEY, x)
    np.testing.assert_array_equal(run(pi.mean), np.zeros((4, 3)))
    np.testing.assert_allclose(np.asarray(pi.values)[0, 0], symexp_atoms(255))
    params = {"Dense_0": {"kernel": np.zeros((6, 3)), "bias": np.array([0.0, 0.0, math.log(3.0)])}}
    pi = run(heads.SymexpCriticHead(3, limit=1.0).apply, jax.device_put({"params": params}), x)
    np.testing.assert_allclose(run(pi.mean), np.full((4, 3), 0.4 * (math.e - 1.0)), rtol=1e-6)
    with pytest.raises(ValueError, match="num_atoms=1 must be from 2 to 1,048,576: use 255"):
        heads.SymexpCriticHead(1)
