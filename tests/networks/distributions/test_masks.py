import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.distributions import Categorical, EpsilonGreedy, legal_actions, mask_logits, mix_uniform
from support.compiled import run

KEY = jax.random.key(0)
LOGITS = jax.device_put(np.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]], np.float32))


class TestMask:
    MASK = np.asarray([[True, False, True], [False, True, True]])

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    @pytest.mark.parametrize(
        "make", [lambda x, m: Categorical(logits=mask_logits(x, m)), lambda x, m: EpsilonGreedy(x, 1.0, m)]
    )
    def test_illegal_actions_have_probability_zero(self, make, dtype):
        def results(logits, mask):
            pi = make(logits.astype(dtype), mask)
            return pi.probs, pi.sample(seed=KEY, sample_shape=2_000), pi.mode(), pi.entropy()

        probs, samples, mode, entropy = jax.device_get(run(results, LOGITS, jax.device_put(self.MASK)))
        np.testing.assert_array_equal(probs[~self.MASK], 0.0)
        np.testing.assert_allclose(probs.astype(np.float32).sum(-1), 1.0, rtol=1e-2)
        assert set(samples[:, 0]) == {0, 2}
        assert set(samples[:, 1]) <= {1, 2}
        assert np.take_along_axis(self.MASK, mode[:, None], -1).all()
        assert np.isfinite(entropy).all()

    def test_illegal_actions_have_gradient_zero(self):
        def loss(logits):
            pi, other = (Categorical(logits=mask_logits(x, jnp.asarray(self.MASK))) for x in (logits, 2.0 * logits))
            return (pi.log_prob(jnp.asarray([2, 1])) + pi.entropy() + pi.kl_divergence(other)).sum()

        gradient = np.asarray(run(jax.grad(loss), LOGITS))
        np.testing.assert_array_equal(gradient[~self.MASK], 0.0)
        assert (gradient[self.MASK] != 0).all()

    def test_masked_distribution_equals_distribution_over_legal_actions(self):
        def results(logits, mask):
            masked, alone = Categorical(logits=mask_logits(logits[0], mask[0])), Categorical(logits=logits[0, ::2])
            return (masked.entropy(), masked.log_prob(2)), (alone.entropy(), alone.log_prob(1))

        np.testing.assert_allclose(*run(results, LOGITS, jax.device_put(self.MASK)), rtol=1e-6)

    EMPTY = jnp.asarray([[True, False, True], [False, False, False]])

    def test_empty_masks_are_refused(self):
        for make in (lambda m: mask_logits(LOGITS, m), lambda m: EpsilonGreedy(LOGITS, 0.1, m), legal_actions):
            with pytest.raises(ValueError, match=r"^action_mask has 1 row\(s\) without a legal action"):
                make(self.EMPTY)
        with pytest.raises(ValueError, match="without a legal action"):
            # The row has a legal action, but none for the second sub-action.
            legal_actions(jnp.asarray([[True, False, False]]), (2, 1))

    @pytest.mark.slow
    @pytest.mark.usefixtures("without_type_checks")
    def test_masks_that_would_broadcast_are_refused(self):
        """Logits [2, 3] with a mask [2, 1, 3] would give [2, 2, 3]."""
        for make in (mask_logits, lambda x, m: mix_uniform(x, 0.1, m), lambda x, m: EpsilonGreedy(x, 0.1, m).probs):
            for shape in ((2, 1, 3), (1, 3), (2, 1)):
                with pytest.raises(ValueError, match=r"^action_mask\.shape=.* must end with .* the logits \(2, 3\)"):
                    make(LOGITS, jnp.asarray(np.ones(shape, bool)))
            for shape in ((3,), (2, 3)):
                assert make(LOGITS, jnp.asarray(np.ones(shape, bool))).shape == (2, 3)
            assert make(jnp.stack([LOGITS] * 4), jnp.asarray(self.MASK)).shape == (4, 2, 3)

    def test_traced_empty_rows_are_unmasked(self):
        @jax.jit
        def results(logits, mask):
            greedy = EpsilonGreedy(logits, 0.3, mask)
            return Categorical(logits=mask_logits(logits, mask)).probs, greedy.probs, greedy.mode()

        masked, whole = (jax.device_get(results(LOGITS, mask)) for mask in (self.EMPTY, np.ones((2, 3), bool)))
        for x, y in zip(masked, whole, strict=True):
            np.testing.assert_allclose(x[1], y[1], rtol=1e-6)
        assert masked[0][0, 1] == masked[1][0, 1] == 0.0

    def test_masked_values_have_finite_gradients(self):
        gradient = run(jax.grad(lambda q: (EpsilonGreedy(q, 0.1, jnp.asarray(self.MASK)).probs * q).sum()), LOGITS)
        assert np.isfinite(gradient).all()
