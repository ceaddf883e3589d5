import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.distributions import (
    Categorical,
    DiscreteValuedTfpDistribution,
    EpsilonGreedy,
    MultiDiscreteActionDistribution,
)
from support.compiled import run

KEY = jax.random.key(0)
LOGITS = jax.device_put(np.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]], np.float32))


class TestCategorical:
    def test_agrees_with_distrax(self):
        def results(kind, logits):
            pi, other, actions = kind(logits=logits), kind(logits=-logits), jnp.asarray([2, 1])
            values = pi.entropy(), pi.mode(), pi.probs, pi.logits, pi.log_prob(actions), pi.prob(actions)
            return (*values, pi.kl_divergence(other), pi[0].entropy()), pi.sample(seed=KEY)

        (ours, sample), (theirs, expected) = (run(results, kind, LOGITS) for kind in (Categorical, distrax.Categorical))
        for value, reference in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(value, reference, rtol=1e-6)
        np.testing.assert_array_equal(sample, expected)

    def test_sample_frequencies_match_probabilities(self):
        probs = jax.device_put(np.asarray([0.1, 0.0, 0.6, 0.3], jnp.bfloat16))
        samples = run(lambda probs: Categorical(probs=probs).sample(seed=KEY, sample_shape=20_000), probs)
        # Standard errors are at most 0.0035.
        np.testing.assert_allclose(np.bincount(samples, minlength=4) / 20_000, [0.1, 0.0, 0.6, 0.3], atol=0.015)

    def test_gradients_of_probabilities_are_finite_where_one_is_zero(self):
        """That of the entropy by p, normalised, is -log p - H: both log 2 and 0 where p is a half."""
        gradient = run(jax.grad(lambda probs: Categorical(probs=probs).entropy()), jnp.asarray([0.5, 0.5, 0.0]))
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)

    def test_what_is_no_probability_is_not_hidden(self):
        assert np.isnan(run(lambda probs: Categorical(probs=probs).log_prob(1), jnp.asarray([np.nan, 1.0])))

    def test_log_prob_outside_of_the_support_is_minus_infinity(self):
        np.testing.assert_array_equal(run(Categorical(logits=LOGITS).log_prob, jnp.asarray([-1, 3])), -np.inf)

    def test_sampling_does_not_normalise(self):
        jaxpr = str(jax.make_jaxpr(lambda logits, key: Categorical(logits=logits).sample(seed=key))(LOGITS, KEY))
        assert "exp" not in jaxpr.replace("expand", "")
        assert "is_finite" not in jaxpr


class TestEpsilonGreedy:
    def test_matches_hand_computed_values(self):
        # Three legal actions: 0.3 / 3 each, and 0.7 more for the best, action 2. Two legal actions: 0.15 and 0.85.
        def results(logits):
            masked = EpsilonGreedy(logits[0], 0.3, jnp.asarray([True, True, False]))
            return EpsilonGreedy(logits[0], 0.3).probs, masked.probs, masked.mode()

        probs, masked, mode = run(results, LOGITS)
        np.testing.assert_allclose(probs, [0.1, 0.1, 0.8], rtol=1e-5)
        np.testing.assert_allclose(masked, [0.85, 0.15, 0.0], rtol=1e-5)
        assert mode == 0

    def test_epsilon_zero_is_greedy_and_one_is_uniform(self):
        greedy, random = (run(EpsilonGreedy, LOGITS, epsilon) for epsilon in (0.0, 1.0))
        assert (np.asarray(run(greedy.sample, seed=KEY, sample_shape=100)) == [2, 0]).all()
        np.testing.assert_allclose(run(greedy.entropy), 0.0, atol=1e-6)
        np.testing.assert_allclose(run(random.entropy), np.log(3.0), rtol=1e-6)
        np.testing.assert_array_equal(run(random.mode), [2, 0])

    def test_epsilon_may_differ_between_environments(self):
        # As many environments as actions, so that shapes do not reveal a wrong axis; the first axis is time.
        preferences = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
        mask = np.ones((4, 3, 3), bool)
        mask[:, 1, 0] = False
        probs_of = jax.jit(lambda *arguments: EpsilonGreedy(*arguments).probs)
        probs = np.asarray(probs_of(preferences, jnp.asarray([0.0, 0.3, 1.0]), mask))
        for environment, one in enumerate((0.0, 0.3, 1.0)):
            alone = probs_of(preferences[:, environment], one, mask[:, environment])
            np.testing.assert_allclose(probs[:, environment], alone, rtol=1e-6)

    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8])
    def test_integers_do_not_round_epsilon(self, dtype):
        probs = run(lambda x: EpsilonGreedy(x, 0.3).probs, jax.device_put(np.asarray([1, 0, 7], dtype)))
        np.testing.assert_allclose(probs, [0.1, 0.1, 0.8], rtol=1e-5)


class TestDiscreteValued:
    def test_matches_hand_computed_values(self):
        # Values 0, 1, 4 with probabilities 1/2, 1/4, 1/4: mean 5/4, second moment 17/4, variance 17/4 - 25/16 = 43/16.
        values, cdf = jnp.asarray([-1.0, 0.0, 0.5, 1.0, 4.0, 9.0]), [0.0, 0.5, 0.5, 0.75, 1.0, 1.0]

        def results(values):
            pi = DiscreteValuedTfpDistribution(jnp.asarray([0.0, 1.0, 4.0]), probs=jnp.asarray([0.5, 0.25, 0.25]))
            moments, log_probs = (pi.mean(), pi.variance(), pi.stddev()), pi.log_prob(jnp.asarray([4.0, 0.0, 0.5]))
            cdfs = pi.cdf(values), jnp.exp(pi.log_cdf(values))
            return moments, pi.mode(), log_probs, pi.prob(values), cdfs, pi.survival_function(values)

        moments, mode, log_probs, probs, cdfs, above = run(results, values)
        np.testing.assert_allclose(moments, [1.25, 43 / 16, np.sqrt(43 / 16)], rtol=1e-6)
        assert mode == 0.0
        np.testing.assert_allclose(log_probs, [np.log(0.25), np.log(0.5), -np.inf], rtol=1e-6)
        np.testing.assert_allclose(probs, [0.0, 0.5, 0.0, 0.25, 0.25, 0.0], rtol=1e-6)
        np.testing.assert_allclose(cdfs, [cdf] * 2, rtol=1e-6)
        np.testing.assert_allclose(above, 1.0 - np.asarray(cdf), atol=1e-6)

    def test_atoms_are_not_rounded_to_the_precision_of_the_logits(self):
        # Numbers between 256 and 512 are 2 apart in bfloat16.
        logits = jax.device_put(np.asarray([0.0, 9.0], jnp.bfloat16))
        pi = run(DiscreteValuedTfpDistribution, np.asarray([257.0, 299.0]), logits)
        np.testing.assert_array_equal(pi.values, [257.0, 299.0])
        assert run(pi.mode) == 299.0

    def test_indexing_selects_the_values(self):
        pi = run(DiscreteValuedTfpDistribution, np.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]]), LOGITS)
        assert jax.eval_shape(pi.prob, np.asarray([[2.0, 10.0]] * 4)).shape == (4, 2)
        assert isinstance(jax.eval_shape(lambda: pi[1]), DiscreteValuedTfpDistribution)
        means, cdfs = run(lambda pi: ((pi[1].mean(), pi.mean()[1]), (pi[1].cdf(11.5), pi.cdf(11.5)[1])), pi)
        np.testing.assert_allclose(*means, rtol=1e-6)
        np.testing.assert_allclose(*cdfs, rtol=1e-6)

    @pytest.mark.parametrize("sample_shape", [(), (7,), (3, 5)])
    def test_samples_have_the_requested_shape(self, sample_shape):
        values = np.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])

        def drawn(logits):
            pis = DiscreteValuedTfpDistribution(jnp.asarray(values), logits=logits), Categorical(logits=logits)
            return [pi.sample(seed=KEY, sample_shape=sample_shape) for pi in pis]

        samples, indices = jax.device_get(run(drawn, LOGITS))
        assert samples.shape == (*sample_shape, 2)
        assert np.isin(samples[..., 0], values[0]).all()
        assert np.isin(samples[..., 1], values[1]).all()
        np.testing.assert_array_equal(samples, np.add(indices, [0, 10]))


class TestMultiDiscrete:
    @pytest.mark.parametrize("sizes", [(2, 4, 3), (3, 3, 3)])
    def test_log_prob_and_entropy_sum_over_sub_actions(self, sizes):
        def ours_and_parts(logits):
            pi = MultiDiscreteActionDistribution(logits, sizes)
            parts = [Categorical(logits=part) for part in jnp.split(logits, np.cumsum(sizes)[:-1], axis=-1)]
            actions = pi.sample(seed=KEY)
            log_probs = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
            expected = log_probs, sum(part.entropy() for part in parts), jnp.stack([part.mode() for part in parts], -1)
            return actions, (pi.log_prob(actions), pi.entropy(), pi.mode()), expected

        actions, ours, parts = jax.jit(ours_and_parts)(np.random.default_rng(0).normal(size=(5, 9)))
        assert actions.shape == (5, 3)
        assert (np.asarray(actions) < [sizes]).all()
        for mine, expected in zip(ours, parts, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5)

    def test_padding_has_probability_zero(self):
        # The logits of the first sub-action are as low as the padding.
        logits = jax.device_put(np.asarray([[np.finfo(np.float32).min] * 2 + [0.0] * 3], np.float32))
        pi = run(MultiDiscreteActionDistribution, logits, (2, 3))
        assert (np.asarray(run(pi.sample, seed=KEY, sample_shape=200))[..., 0] < 2).all()
        np.testing.assert_allclose(run(pi.entropy), np.log(2.0) + np.log(3.0), rtol=1e-5)

    def test_sizes_must_add_up_to_the_number_of_logits(self):
        with pytest.raises(ValueError, match="needs 5 logits, got 9"):
            MultiDiscreteActionDistribution(jax.device_put(np.zeros((2, 9), np.float32)), (2, 3))
