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
from support.compiled import Compiled, run

KEY = jax.random.key(0)
LOGITS = jnp.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]])


class TestCategorical:
    def test_agrees_with_distrax(self):
        pair = Categorical(logits=LOGITS), distrax.Categorical(logits=LOGITS)
        ours, theirs = (Compiled(pi) for pi in pair)
        actions = jnp.asarray([2, 1])
        for method in ("entropy", "mode"):
            np.testing.assert_allclose(getattr(ours, method)(), getattr(theirs, method)(), rtol=1e-6)
        np.testing.assert_allclose(ours.probs, theirs.probs, rtol=1e-6)
        np.testing.assert_allclose(ours.logits, theirs.logits, rtol=1e-6)
        np.testing.assert_allclose(ours.log_prob(actions), theirs.log_prob(actions), rtol=1e-6)
        np.testing.assert_allclose(ours.prob(actions), theirs.prob(actions), rtol=1e-6)
        np.testing.assert_array_equal(ours.sample(seed=KEY), theirs.sample(seed=KEY))
        other = Categorical(logits=-LOGITS)
        np.testing.assert_allclose(ours.kl_divergence(other), theirs.kl_divergence(other), rtol=1e-6)
        first, theirs = (run(lambda pi: pi[0].entropy(), pi) for pi in pair)
        np.testing.assert_allclose(first, theirs, rtol=1e-6)

    def test_sample_frequencies_match_probabilities(self):
        pi = Categorical(probs=jnp.asarray([0.1, 0.0, 0.6, 0.3], jnp.bfloat16))
        samples = run(pi.sample, seed=KEY, sample_shape=20_000)
        # Standard errors are at most 0.0035.
        np.testing.assert_allclose(np.bincount(samples, minlength=4) / 20_000, [0.1, 0.0, 0.6, 0.3], atol=0.015)

    def test_gradients_of_probabilities_are_finite_where_one_is_zero(self):
        """That of the entropy by p, normalised, is -log p - H: both log 2 and 0 where p is a half."""
        gradient = jax.grad(lambda probs: Categorical(probs=probs).entropy())(jnp.asarray([0.5, 0.5, 0.0]))
        np.testing.assert_allclose(gradient, 0.0, atol=1e-6)

    def test_what_is_no_probability_is_not_hidden(self):
        assert np.isnan(Categorical(probs=jnp.asarray([np.nan, 1.0])).log_prob(jnp.asarray(1)))

    def test_log_prob_outside_of_the_support_is_minus_infinity(self):
        np.testing.assert_array_equal(Categorical(logits=LOGITS).log_prob(jnp.asarray([-1, 3])), -jnp.inf)

    def test_sampling_does_not_normalise(self):
        jaxpr = str(jax.make_jaxpr(lambda logits, key: Categorical(logits=logits).sample(seed=key))(LOGITS, KEY))
        assert "exp" not in jaxpr.replace("expand", "")
        assert "is_finite" not in jaxpr


class TestEpsilonGreedy:
    def test_matches_hand_computed_values(self):
        # Three legal actions: 0.3 / 3 each, and 0.7 more for the best, action 2. Two legal actions: 0.15 and 0.85.
        pi = EpsilonGreedy(LOGITS[0], 0.3)
        np.testing.assert_allclose(pi.probs, [0.1, 0.1, 0.8], rtol=1e-5)
        masked = EpsilonGreedy(LOGITS[0], 0.3, jnp.asarray([True, True, False]))
        np.testing.assert_allclose(masked.probs, [0.85, 0.15, 0.0], rtol=1e-5)
        assert masked.mode() == 0

    def test_epsilon_zero_is_greedy_and_one_is_uniform(self):
        greedy, random = EpsilonGreedy(LOGITS[0], 0.0), EpsilonGreedy(LOGITS[0], 1.0)
        assert (np.asarray(run(greedy.sample, seed=KEY, sample_shape=100)) == 2).all()
        np.testing.assert_allclose(run(greedy.entropy), 0.0, atol=1e-6)
        np.testing.assert_allclose(run(random.entropy), np.log(3.0), rtol=1e-6)
        assert run(random.mode) == 2

    def test_epsilon_may_differ_between_environments(self):
        # As many environments as actions, so that shapes do not reveal a wrong axis; the first axis is time.
        preferences = np.random.default_rng(0).normal(size=(4, 3, 3)).astype(np.float32)
        mask = np.ones((4, 3, 3), bool)
        mask[:, 1, 0] = False
        probs_of = jax.jit(lambda *arguments: EpsilonGreedy(*arguments).probs)
        probs = probs_of(preferences, jnp.asarray([0.0, 0.3, 1.0]), mask)
        for environment, one in enumerate((0.0, 0.3, 1.0)):
            alone = probs_of(preferences[:, environment], one, mask[:, environment])
            np.testing.assert_allclose(probs[:, environment], alone, rtol=1e-6)

    @pytest.mark.parametrize("dtype", [jnp.int32, jnp.uint8])
    def test_integers_do_not_round_epsilon(self, dtype):
        pi = EpsilonGreedy(jnp.asarray([1, 0, 7], dtype), 0.3)
        np.testing.assert_allclose(pi.probs, [0.1, 0.1, 0.8], rtol=1e-5)


class TestDiscreteValued:
    def test_matches_hand_computed_values(self):
        # Values 0, 1, 4 with probabilities 1/2, 1/4, 1/4: mean 5/4, second moment 17/4, variance 17/4 - 25/16 = 43/16.
        pi = Compiled(DiscreteValuedTfpDistribution(jnp.asarray([0.0, 1.0, 4.0]), probs=jnp.asarray([0.5, 0.25, 0.25])))
        np.testing.assert_allclose(pi.mean(), 1.25, rtol=1e-6)
        np.testing.assert_allclose(pi.variance(), 43 / 16, rtol=1e-6)
        np.testing.assert_allclose(pi.stddev(), np.sqrt(43 / 16), rtol=1e-6)
        assert pi.mode() == 0.0
        np.testing.assert_allclose(pi.log_prob(jnp.asarray([4.0, 0.0])), np.log([0.25, 0.5]), rtol=1e-6)
        assert pi.log_prob(0.5) == -jnp.inf
        values = jnp.asarray([-1.0, 0.0, 0.5, 1.0, 4.0, 9.0])
        np.testing.assert_allclose(pi.prob(values), [0.0, 0.5, 0.0, 0.25, 0.25, 0.0], rtol=1e-6)
        cdf = [0.0, 0.5, 0.5, 0.75, 1.0, 1.0]
        np.testing.assert_allclose(pi.cdf(values), cdf, rtol=1e-6)
        np.testing.assert_allclose(jnp.exp(pi.log_cdf(values)), cdf, rtol=1e-6)
        np.testing.assert_allclose(pi.survival_function(values), 1.0 - np.asarray(cdf), atol=1e-6)

    def test_atoms_are_not_rounded_to_the_precision_of_the_logits(self):
        # Numbers between 256 and 512 are 2 apart in bfloat16.
        pi = DiscreteValuedTfpDistribution(np.asarray([257.0, 299.0]), jnp.asarray([0.0, 9.0], jnp.bfloat16))
        np.testing.assert_array_equal(pi.values, [257.0, 299.0])
        assert pi.mode() == 299.0

    def test_indexing_selects_the_values(self):
        values = jnp.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
        pi = DiscreteValuedTfpDistribution(values, logits=LOGITS)
        assert run(pi.prob, jnp.asarray([[2.0, 10.0]] * 4)).shape == (4, 2)
        assert isinstance(pi[1], DiscreteValuedTfpDistribution)
        means, cdfs = run(lambda pi: ((pi[1].mean(), pi.mean()[1]), (pi[1].cdf(11.5), pi.cdf(11.5)[1])), pi)
        np.testing.assert_allclose(*means, rtol=1e-6)
        np.testing.assert_allclose(*cdfs, rtol=1e-6)

    @pytest.mark.parametrize("sample_shape", [(), (7,), (3, 5)])
    def test_samples_have_the_requested_shape(self, sample_shape):
        values = np.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
        pi = DiscreteValuedTfpDistribution(jnp.asarray(values), logits=LOGITS)
        samples = np.asarray(run(pi.sample, seed=KEY, sample_shape=sample_shape))
        assert samples.shape == (*sample_shape, 2)
        assert np.isin(samples[..., 0], values[0]).all()
        assert np.isin(samples[..., 1], values[1]).all()
        indices = run(Categorical(logits=LOGITS).sample, seed=KEY, sample_shape=sample_shape)
        np.testing.assert_array_equal(samples, np.add(indices, [0, 10]))


class TestMultiDiscrete:
    @pytest.mark.parametrize("sizes", [(2, 4, 3), (3, 3, 3)])
    def test_log_prob_and_entropy_sum_over_sub_actions(self, sizes):
        logits = jax.random.normal(KEY, (5, 9))

        @jax.jit
        def ours_and_parts(logits):
            pi = MultiDiscreteActionDistribution(logits, sizes)
            parts = [Categorical(logits=part) for part in jnp.split(logits, np.cumsum(sizes)[:-1], axis=-1)]
            actions = pi.sample(seed=KEY)
            log_probs = sum(part.log_prob(actions[:, i]) for i, part in enumerate(parts))
            entropies = sum(part.entropy() for part in parts)
            modes = jnp.stack([part.mode() for part in parts], -1)
            return actions, (pi.log_prob(actions), pi.entropy(), pi.mode()), (log_probs, entropies, modes)

        actions, ours, parts = ours_and_parts(logits)
        assert actions.shape == (5, 3)
        assert (actions < jnp.asarray([sizes])).all()
        for mine, expected in zip(ours, parts, strict=True):
            np.testing.assert_allclose(mine, expected, rtol=1e-5)

    def test_padding_has_probability_zero(self):
        # The logits of the first sub-action are as low as the padding.
        logits = jnp.full((1, 5), jnp.finfo(jnp.float32).min).at[:, 2:].set(0.0)
        pi = MultiDiscreteActionDistribution(logits, (2, 3))
        assert (np.asarray(run(pi.sample, seed=KEY, sample_shape=200))[..., 0] < 2).all()
        np.testing.assert_allclose(run(pi.entropy), np.log(2.0) + np.log(3.0), rtol=1e-5)

    def test_sizes_must_add_up_to_the_number_of_logits(self):
        with pytest.raises(ValueError, match="needs 5 logits, got 9"):
            MultiDiscreteActionDistribution(jnp.zeros((2, 9)), (2, 3))
