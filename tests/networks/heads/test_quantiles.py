import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks import heads
from support.compiled import run
from support.every_head import HEADS, KEY


class TestImplicitQuantiles:
    def test_levels_are_even_or_drawn_or_passed(self):
        head, _ = HEADS["implicit_quantile_critic"]
        x = jnp.ones((2, 6))
        params = jax.jit(head.init)(KEY, x)
        even = run(head.apply, params, x)[1]
        np.testing.assert_allclose(even, np.tile((np.arange(7) + 0.5) / 7, (2, 1)), rtol=1e-6)
        drawn = run(head.apply, params, x, rngs={"tau": KEY})[1]
        assert len(np.unique(drawn)) == 14
        values, tau = run(head.apply, params, x, even[:, :4])
        np.testing.assert_allclose(values, run(head.apply, params, x)[0][:, :4], rtol=1e-5)
        assert tau.shape == (2, 4)

    def test_quantiles_match_hand_computed_values(self):
        # One feature with value 2, all weights 1. The cosines of tau = 1/4 are 1, sqrt(1/2), 0, -sqrt(1/2), with sum 1;
        # those of tau = 1/2 are 1, 0, -1, 0, with sum 0. Hence z = 2 relu(1) = 2 and z = 2 relu(0) = 0.
        head = heads.ImplicitQuantileCriticHead(2, num_cosines=4, kernel_init="ones")
        x, tau = jnp.full((1, 1), 2.0), jnp.asarray([[0.25, 0.5]])
        np.testing.assert_allclose(head.apply(jax.jit(head.init)(KEY, x), x, tau)[0], [[2.0, 0.0]], atol=1e-5)

    def test_levels_are_float32_for_bfloat16_embeddings(self):
        head = heads.ImplicitQuantileCriticHead(64)
        x = jax.random.normal(KEY, (2, 6))
        params = jax.jit(head.init)(KEY, x)
        low = x.astype(jnp.bfloat16)
        values, tau = run(head.apply, params, low, rngs={"tau": KEY})
        assert tau.dtype == jnp.float32
        assert len(np.unique(tau)) == tau.size
        exact = run(head.apply, params, low.astype(jnp.float32), tau)[0]
        np.testing.assert_allclose(values.astype(jnp.float32), exact, atol=0.02)
