import jax
import numpy as np

from stoix_like.networks.heads.quantiles import ImplicitQuantileCriticHead
from support.every_head import HEADS, KEY


class TestImplicitQuantiles:
    def test_levels_are_even_or_passed(self):
        head, _ = HEADS["iqn"]

        def results(x):
            (_, values, even), params = head.init_with_output({"params": KEY}, x)
            return values, even, *head.apply(params, x, even[:, :4])[1:]

        values, even, some, tau = jax.device_get(jax.jit(results)(np.ones((2, 6))))
        np.testing.assert_allclose(even, np.tile((np.arange(7) + 0.5) / 7, (2, 1)), rtol=1e-6)
        np.testing.assert_allclose(some, values[:, :4], rtol=1e-5)
        assert tau.shape == (2, 4)

    def test_quantiles_match_hand_computed_values(self):
        # One feature with value 2, all weights 1. The cosines of tau = 1/4 are 1, sqrt(1/2), 0, -sqrt(1/2), with sum 1;
        # those of tau = 1/2 are 1, 0, -1, 0, with sum 0. Hence z = 2 relu(1) = 2 and z = 2 relu(0) = 0.
        head = ImplicitQuantileCriticHead(2, num_values=1, num_cosines=4, kernel_init="ones")
        inputs = np.full((1, 1), 2.0), np.asarray([[0.25, 0.5]])
        np.testing.assert_allclose(jax.jit(head.init_with_output)(KEY, *inputs)[0][0], [[[2.0], [0.0]]], atol=1e-5)
