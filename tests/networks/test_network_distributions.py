import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from selections import select

from stoix_like.networks.distributions import (
    AffineBeta,
    AffineTanhTransformedDistribution,
    Categorical,
    ClippedBeta,
    Deterministic,
    DiscreteValuedTfpDistribution,
    EpsilonGreedy,
    Independent,
    MultiDiscreteActionDistribution,
    MultivariateNormalDiag,
    StateDependentNoise,
    decouple,
    kl_per_dimension,
    legal_actions,
    mask_logits,
    squash,
)

KEY = jax.random.key(0)
LOGITS = jnp.asarray([[0.3, -1.2, 2.0], [5.0, 0.0, 0.0]])


def tanh_normal(loc, scale, minimum=-1.0, maximum=1.0):
    normal = distrax.Normal(jnp.asarray(loc), jnp.asarray(scale))
    return AffineTanhTransformedDistribution(normal, minimum, maximum)


def beta(alpha, concentration, minimum=0.0, maximum=1.0):
    return AffineBeta(ClippedBeta(jnp.asarray(alpha), jnp.asarray(concentration)), minimum, maximum)


def every_distribution(dtype=jnp.float32):
    """Return one distribution of each class, with a batch of two and events of three entries."""
    rows = jnp.asarray([[0.1, -0.4, 0.7], [0.9, 0.2, -1.5]], dtype)
    positive = jnp.exp(rows)
    low, high = (-2.0, -1.0, 0.0), (2.0, 1.0, 5.0)
    return {
        "categorical": Categorical(logits=rows),
        "epsilon_greedy": EpsilonGreedy(rows, 0.2),
        "discrete_valued": DiscreteValuedTfpDistribution(np.linspace(-1.0, 1.0, 3), logits=rows),
        "multi_discrete": MultiDiscreteActionDistribution(jnp.concatenate([rows, rows[:, :2]], -1), (3, 2)),
        "tanh_normal": Independent(tanh_normal(rows, positive, low, high), 1),
        "beta": Independent(beta(1 + positive, 2 + positive, low, high), 1),
        "normal": MultivariateNormalDiag(rows, positive),
        "gsde": StateDependentNoise(rows, rows[:, :2], positive),
        "deterministic": Independent(Deterministic(rows), 1),
    }


NAMES = tuple(every_distribution())
# Discrete, of several choices, and transformed.
KINDS = ("categorical", "multi_discrete", "tanh_normal")


def integrate(function, low, high, points=200_001):
    x = np.linspace(low, high, points)
    return np.trapezoid(np.asarray(function(x), np.float64), x)


def expect_normal(function, loc, scale):
    """Compute E[f(x)] for x ~ N(loc, scale) by fine numerical integration in float64."""
    return integrate(lambda t: function(loc + scale * t) * np.exp(-0.5 * t**2) / np.sqrt(2 * np.pi), -12.0, 12.0)


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", NAMES)
def test_methods_support_jit_grad_and_dtypes(name, dtype):
    pi = every_distribution(dtype)[name]

    @jax.jit
    def everything(pi, key):
        sample, log_prob = pi.sample_and_log_prob(seed=key)
        again = pi.sample(seed=key)
        many = pi.sample(seed=key, sample_shape=(4, 5))
        scalars = log_prob, pi.log_prob(sample), pi.log_prob(pi.mode()), pi.entropy(seed=key)
        return sample, again, pi.mode(), scalars, many, pi.log_prob(many)

    sample, again, mode, scalars, many, many_log_probs = everything(pi, KEY)
    event = () if sample.ndim == 1 else sample.shape[1:]
    assert sample.shape == mode.shape == (2, *event)
    np.testing.assert_array_equal(sample, again)
    assert many.shape == (4, 5, 2, *event)
    assert many_log_probs.shape == (4, 5, 2)
    for scalar in scalars:
        assert scalar.shape == (2,)
        assert jnp.isfinite(scalar).all()
    assert sample.dtype == mode.dtype == (jnp.int32 if jnp.issubdtype(sample.dtype, jnp.integer) else dtype)

    def loss(pi):
        return (pi.log_prob(sample) + pi.entropy(seed=KEY)).sum().astype(jnp.float32)

    gradients = jax.tree.leaves(jax.jit(jax.grad(loss, allow_int=True))(pi))
    assert all(jnp.isfinite(g).all() for g in gradients if jnp.issubdtype(g.dtype, jnp.floating))


@pytest.mark.parametrize("name", select(NAMES, quick=KINDS))
def test_distributions_pass_through_vmap_and_scan(name):
    pi = every_distribution()[name]

    @jax.jit
    def three_ways(pi):
        sample = pi.sample(seed=KEY)
        mapped = jax.vmap(lambda pi, value: pi.log_prob(value))(pi, sample)
        scanned = jax.lax.scan(lambda carry, x: (carry, x[0].log_prob(x[1])), 0, (pi, sample))[1]
        return pi.log_prob(sample), mapped, scanned

    expected, mapped, scanned = three_ways(pi)
    np.testing.assert_allclose(mapped, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(scanned, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", select(NAMES, quick=KINDS))
def test_indexing_selects_from_the_batch(name):
    pi = every_distribution()[name]
    indices = (1, slice(0, 1), Ellipsis)

    @jax.jit
    def everything(pi):
        value = pi.sample(seed=KEY)
        parts = [pi[index] for index in indices]
        picked = [
            (part.log_prob(value[index]), part.mode(), part.entropy(seed=KEY))
            for part, index in zip(parts, indices, strict=True)
        ]
        return parts, picked, (pi.log_prob(value), pi.mode(), pi.entropy(seed=KEY))

    parts, picked, whole = everything(pi)
    for index, part, results in zip(indices, parts, picked, strict=True):
        assert type(part) is type(pi) or isinstance(pi, MultiDiscreteActionDistribution)
        assert part.batch_shape == np.zeros(2)[index].shape
        assert part.event_shape == pi.event_shape
        for x, y in zip(results, whole, strict=True):
            np.testing.assert_allclose(x, y[index], rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError):
        pi[2]


def test_indexing_selects_bounds_that_vary_along_the_axis():
    low, high = (-2.0, -1.0, 0.0), (2.0, 1.0, 5.0)
    value = jnp.asarray([1.0, 3.0])

    @jax.jit
    def both(pi):
        part = pi[:, 2]
        return part.mode(), part.log_prob(value), pi.mode()[:, 2], pi[1, 2].log_prob(value)

    ones = jnp.ones((2, 3))
    for pi in (tanh_normal(0.0 * ones, ones, low, high), beta(2.0 * ones, 2.0, low, high)):
        mode, log_prob, expected_mode, expected = both(pi)
        np.testing.assert_allclose(mode, expected_mode, rtol=1e-6)
        np.testing.assert_allclose(log_prob, expected, rtol=1e-5)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("deterministic", "discrete_valued")])
def test_kl_divergence_is_zero_to_itself_and_positive_to_another(name):
    pi = every_distribution()[name]
    other = jax.tree.map(lambda x: x[::-1] if jnp.issubdtype(x.dtype, jnp.floating) else x, pi)
    np.testing.assert_allclose(pi.kl_divergence(pi), 0.0, atol=1e-5)
    if name != "epsilon_greedy":
        assert (pi.kl_divergence(other) > 1e-3).all()


@pytest.mark.parametrize("squashed", [False, True])
def test_a_normal_policy_decouples_into_means_and_deviations(squashed):
    """KL(N(m, s) || N(m + d, s)) = d^2 / (2 s^2), and KL(N(m, s) || N(m, r s)) = log r + 1 / (2 r^2) - 1/2."""
    loc, shift = jnp.asarray([[0.1, -0.3]]), jnp.asarray([[0.5, 1.0]])
    scale, ratio = jnp.asarray([[0.5, 2.0]]), jnp.asarray([[2.0, 0.5]])

    def policy(loc, scale):
        return Independent(tanh_normal(loc, scale), 1) if squashed else MultivariateNormalDiag(loc, scale)

    b_pi, pi = policy(loc, scale), policy(loc + shift, ratio * scale)
    parts = decouple(pi, b_pi)
    kl = {name: kl_per_dimension(b_pi, part) for name, part in parts.items()}
    np.testing.assert_allclose(kl["mean"], shift**2 / (2 * scale**2), rtol=1e-5)
    np.testing.assert_allclose(kl["stddev"], jnp.log(ratio) + 1 / (2 * ratio**2) - 0.5, rtol=1e-5)
    np.testing.assert_allclose(kl_per_dimension(b_pi, pi).sum(-1), b_pi.kl_divergence(pi), rtol=1e-5)
    action = jnp.asarray([[0.2, 0.4]])
    np.testing.assert_allclose(parts["mean"].log_prob(action), policy(loc + shift, scale).log_prob(action), rtol=1e-5)
    np.testing.assert_allclose(parts["stddev"].log_prob(action), policy(loc, ratio * scale).log_prob(action), rtol=1e-5)
    # Each part has the gradient of its own parameters alone.
    for name, free in (("mean", [True, False]), ("stddev", [False, True])):
        grads = jax.grad(lambda *x, name=name: decouple(policy(*x), b_pi)[name].log_prob(action).sum(), (0, 1))(
            loc + shift, ratio * scale
        )
        assert [bool((grad != 0).all()) for grad in grads] == free


def test_other_policies_are_bounded_as_a_whole():
    pi = Categorical(logits=LOGITS)
    other = Categorical(logits=LOGITS[::-1])
    assert decouple(pi, other) == {"policy": pi}
    np.testing.assert_allclose(kl_per_dimension(pi, other)[:, 0], pi.kl_divergence(other))
    sizes = MultiDiscreteActionDistribution(LOGITS, (1, 2)), MultiDiscreteActionDistribution(LOGITS[::-1], (1, 2))
    assert kl_per_dimension(*sizes).shape == (2, 2)
    np.testing.assert_allclose(kl_per_dimension(*sizes).sum(-1), sizes[0].kl_divergence(sizes[1]), rtol=1e-5)


def test_kl_divergence_of_squashed_normals_equals_that_of_the_normals():
    first, second = tanh_normal(0.3, 0.5), tanh_normal(-0.2, 0.9)
    # log(s2/s1) + (s1^2 + (m1-m2)^2) / (2 s2^2) - 1/2
    expected = np.log(0.9 / 0.5) + (0.25 + 0.25) / (2 * 0.81) - 0.5
    np.testing.assert_allclose(first.kl_divergence(second), expected, rtol=1e-5)
    with pytest.raises(NotImplementedError, match="no KL divergence"):
        first.kl_divergence(distrax.Normal(0.0, 1.0))


class TestCategorical:
    def test_agrees_with_distrax(self):
        ours, theirs = Categorical(logits=LOGITS), distrax.Categorical(logits=LOGITS)
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
        np.testing.assert_allclose(ours[0].entropy(), theirs[0].entropy(), rtol=1e-6)

    def test_sample_frequencies_match_probabilities(self):
        samples = Categorical(probs=jnp.asarray([0.1, 0.0, 0.6, 0.3], jnp.bfloat16)).sample(
            seed=KEY, sample_shape=20_000
        )
        # Standard errors are at most 0.0035.
        np.testing.assert_allclose(np.bincount(samples, minlength=4) / 20_000, [0.1, 0.0, 0.6, 0.3], atol=0.015)

    def test_log_prob_outside_of_the_support_is_minus_infinity(self):
        np.testing.assert_array_equal(Categorical(logits=LOGITS).log_prob(jnp.asarray([-1, 3])), -jnp.inf)

    def test_exactly_one_of_logits_and_probs_is_required(self):
        with pytest.raises(ValueError, match="exactly one"):
            Categorical()
        with pytest.raises(ValueError, match="exactly one"):
            Categorical(logits=LOGITS, probs=LOGITS)

    def test_sampling_does_not_normalise(self):
        jaxpr = str(jax.make_jaxpr(lambda logits, key: Categorical(logits=logits).sample(seed=key))(LOGITS, KEY))
        assert "exp" not in jaxpr.replace("expand", "")
        assert "is_finite" not in jaxpr


class TestMask:
    MASK = jnp.asarray([[True, False, True], [False, True, True]])

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    @pytest.mark.parametrize(
        "make", [lambda x, m: Categorical(logits=mask_logits(x, m)), lambda x, m: EpsilonGreedy(x, 1.0, m)]
    )
    def test_illegal_actions_have_probability_zero(self, make, dtype):
        pi = make(LOGITS.astype(dtype), self.MASK)
        np.testing.assert_array_equal(pi.probs[~self.MASK], 0.0)
        np.testing.assert_allclose(pi.probs.astype(jnp.float32).sum(-1), 1.0, rtol=1e-2)
        samples = np.asarray(pi.sample(seed=KEY, sample_shape=2_000))
        assert set(samples[:, 0]) == {0, 2}
        assert set(samples[:, 1]) <= {1, 2}
        assert jnp.take_along_axis(self.MASK, pi.mode()[:, None], -1).all()
        assert jnp.isfinite(pi.entropy()).all()

    def test_illegal_actions_have_gradient_zero(self):
        def loss(logits):
            pi = Categorical(logits=mask_logits(logits, self.MASK))
            other = Categorical(logits=mask_logits(2.0 * logits, self.MASK))
            return (pi.log_prob(jnp.asarray([2, 1])) + pi.entropy() + pi.kl_divergence(other)).sum()

        gradient = jax.grad(loss)(LOGITS)
        np.testing.assert_array_equal(gradient[~self.MASK], 0.0)
        assert (gradient[self.MASK] != 0).all()

    def test_masked_distribution_equals_distribution_over_legal_actions(self):
        masked = Categorical(logits=mask_logits(LOGITS[0], self.MASK[0]))
        alone = Categorical(logits=LOGITS[0][jnp.asarray([0, 2])])
        np.testing.assert_allclose(masked.entropy(), alone.entropy(), rtol=1e-6)
        np.testing.assert_allclose(masked.log_prob(2), alone.log_prob(1), rtol=1e-6)

    EMPTY = jnp.asarray([[True, False, True], [False, False, False]])

    def test_empty_masks_are_refused(self):
        for make in (lambda m: mask_logits(LOGITS, m), lambda m: EpsilonGreedy(LOGITS, 0.1, m), legal_actions):
            with pytest.raises(ValueError, match=r"^action_mask has 1 row\(s\) without a legal action"):
                make(self.EMPTY)
        with pytest.raises(ValueError, match="without a legal action"):
            # The row has a legal action, but none for the second sub-action.
            legal_actions(jnp.asarray([[True, False, False]]), (2, 1))

    def test_traced_empty_rows_are_unmasked(self):
        @jax.jit
        def results(logits, mask):
            greedy = EpsilonGreedy(logits, 0.3, mask)
            return Categorical(logits=mask_logits(logits, mask)).probs, greedy.probs, greedy.mode()

        masked, whole = results(LOGITS, self.EMPTY), results(LOGITS, jnp.ones_like(self.EMPTY))
        for x, y in zip(masked, whole, strict=True):
            np.testing.assert_allclose(x[1], y[1], rtol=1e-6)
        assert masked[0][0, 1] == masked[1][0, 1] == 0.0

    def test_masked_values_have_finite_gradients(self):
        gradient = jax.grad(lambda q: (EpsilonGreedy(q, 0.1, self.MASK).probs * q).sum())(LOGITS)
        assert jnp.isfinite(gradient).all()


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
        assert (greedy.sample(seed=KEY, sample_shape=100) == 2).all()
        np.testing.assert_allclose(greedy.entropy(), 0.0, atol=1e-6)
        np.testing.assert_allclose(random.entropy(), np.log(3.0), rtol=1e-6)
        assert random.mode() == 2

    def test_epsilon_may_differ_between_environments(self):
        # As many environments as actions, so that shapes do not reveal a wrong axis; the first axis is time.
        preferences = jax.random.normal(KEY, (4, 3, 3))
        epsilon = jnp.asarray([0.0, 0.3, 1.0])
        mask = jnp.ones((4, 3, 3), bool).at[:, 1, 0].set(False)
        probs = EpsilonGreedy(preferences, epsilon, mask).probs
        for environment, one in enumerate((0.0, 0.3, 1.0)):
            alone = EpsilonGreedy(preferences[:, environment], one, mask[:, environment])
            np.testing.assert_allclose(probs[:, environment], alone.probs, rtol=1e-6)

    def test_ties_go_to_the_first_action(self):
        pi = EpsilonGreedy(jnp.asarray([1.0, 2.0, 2.0]), 0.0)
        np.testing.assert_allclose(pi.probs, [0.0, 1.0, 0.0])
        assert pi.mode() == 1

    def test_indexing_keeps_mode_and_preferences(self):
        pi = EpsilonGreedy(LOGITS, 1.0)[0]
        assert isinstance(pi, EpsilonGreedy)
        assert pi.mode() == 2
        np.testing.assert_array_equal(pi.preferences, LOGITS[0])

    def test_epsilon_may_be_traced(self):
        probs = jax.jit(lambda epsilon: EpsilonGreedy(LOGITS, epsilon).probs)(0.5)
        np.testing.assert_allclose(probs, EpsilonGreedy(LOGITS, 0.5).probs, rtol=1e-6)


class TestDiscreteValued:
    def test_matches_hand_computed_values(self):
        # Values 0, 1, 4 with probabilities 1/2, 1/4, 1/4: mean 5/4, second moment 17/4, variance 17/4 - 25/16 = 43/16.
        pi = DiscreteValuedTfpDistribution(jnp.asarray([0.0, 1.0, 4.0]), probs=jnp.asarray([0.5, 0.25, 0.25]))
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

    def test_indexing_selects_the_values(self):
        values = jnp.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
        pi = DiscreteValuedTfpDistribution(values, logits=LOGITS)
        assert pi.prob(jnp.asarray([[2.0, 10.0]] * 4)).shape == (4, 2)
        assert isinstance(pi[1], DiscreteValuedTfpDistribution)
        np.testing.assert_allclose(pi[1].mean(), pi.mean()[1], rtol=1e-6)
        np.testing.assert_allclose(pi[1].cdf(11.5), pi.cdf(11.5)[1], rtol=1e-6)

    @pytest.mark.parametrize("sample_shape", [(), (7,), (3, 5)])
    def test_samples_have_the_requested_shape(self, sample_shape):
        values = jnp.asarray([[0.0, 1.0, 2.0], [10.0, 11.0, 12.0]])
        pi = DiscreteValuedTfpDistribution(values, logits=LOGITS)
        samples = pi.sample(seed=KEY, sample_shape=sample_shape)
        assert samples.shape == (*sample_shape, 2)
        assert jnp.isin(samples[..., 0], values[0]).all()
        assert jnp.isin(samples[..., 1], values[1]).all()
        indices = Categorical(logits=LOGITS).sample(seed=KEY, sample_shape=sample_shape)
        np.testing.assert_array_equal(samples, indices + jnp.asarray([0, 10]).reshape((1,) * len(sample_shape) + (2,)))


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
        assert (pi.sample(seed=KEY, sample_shape=200)[..., 0] < 2).all()
        np.testing.assert_allclose(pi.entropy(), np.log(2.0) + np.log(3.0), rtol=1e-5)

    def test_sizes_must_add_up_to_the_number_of_logits(self):
        with pytest.raises(ValueError, match="needs 5 logits, got 9"):
            MultiDiscreteActionDistribution(jnp.zeros((2, 9)), (2, 3))


class TestTanhNormal:
    def test_density_integrates_to_one(self):
        locs, scales = jnp.asarray([0.0, 0.7, -2.0, 3.0]), jnp.asarray([0.5, 1.0, 0.3, 2.0])
        pi = tanh_normal(locs, scales, -2.0, 4.0)
        density = jax.jit(lambda y: jnp.exp(pi.log_prob(jnp.broadcast_to(y[:, None], (y.size, 4)))))
        # The density is discontinuous at the end zones (0.003 wide): integrate each piece separately.
        pieces = [(-2.0, -1.997 - 1e-6), (-1.997 + 1e-6, 3.997 - 1e-6), (3.997 + 1e-6, 4.0)]
        grids = [np.linspace(*piece, 100_001, dtype=np.float32) for piece in pieces]
        total = sum(np.trapezoid(density(y), np.asarray(y, np.float64), axis=0) for y in grids)
        np.testing.assert_allclose(total, 1.0, atol=2e-3)

    def test_log_prob_agrees_with_the_change_of_variables(self):
        pi = tanh_normal(0.4, 0.8, -2.0, 4.0)
        x = jnp.linspace(-3.5, 3.5, 41)

        @jax.jit
        def both(x):
            slope = jax.vmap(jax.grad(lambda x: squash(x, -2.0, 4.0)))(x)
            return pi.log_prob(squash(x, -2.0, 4.0)), distrax.Normal(0.4, 0.8).log_prob(x) - jnp.log(slope)

        np.testing.assert_allclose(*both(x), rtol=1e-3, atol=1e-3)

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    def test_log_prob_is_finite_at_and_beyond_the_ends(self, dtype):
        grid = jnp.meshgrid(
            jnp.asarray([-100.0, -3.0, 0.0, 50.0], dtype),
            jnp.asarray([1e-3, 0.5, 20.0], dtype),
            jnp.asarray([-5.0, -1.0, 0.0, 0.99999994, 1.0, 1.0001], dtype),
        )

        @jax.jit
        def log_prob_and_gradients(loc, scale, value):
            log_prob, vjp = jax.vjp(lambda *parameters: tanh_normal(*parameters).log_prob(value), loc, scale)
            return log_prob, *vjp(jnp.ones_like(log_prob))

        for result in log_prob_and_gradients(*grid):
            assert jnp.isfinite(result).all()

    def test_ratio_is_one_only_with_log_prob_on_both_sides(self):
        # With a scale of 6, half of the samples are in the end zones.
        pi = tanh_normal(jnp.zeros(1), jnp.full(1, 6.0))

        @jax.jit
        def act(pi):
            samples, exact = pi.sample_and_log_prob(seed=KEY, sample_shape=500)
            return samples, exact, pi.log_prob(samples)

        samples, exact, acted = act(pi)
        np.testing.assert_allclose(jax.jit(lambda pi: pi.log_prob(samples))(pi), acted, rtol=1e-6)
        in_end_zone = np.abs(samples) > 0.999
        assert in_end_zone.mean() > 0.3
        assert np.abs(exact - acted)[in_end_zone].max() > 0.5

    @pytest.mark.parametrize("traced", [(0,), (1, 2), (0, 1, 2)])
    def test_bounds_and_epsilon_may_be_traced(self, traced):
        numbers = (-1.5, 2.0, 1e-2)
        values = jnp.asarray([[-1.5, 0.3], [1.999, 2.0]])

        def results(*numbers):
            normal = distrax.Normal(jnp.asarray([0.3, -0.1]), jnp.ones(2))
            pi = AffineTanhTransformedDistribution(normal, *numbers)
            stepwise = jax.vmap(lambda pi, value: pi.log_prob(value))(pi, values[0])
            return pi.log_prob(values), pi.entropy(), pi.mean(), pi.sample(seed=KEY), stepwise

        def partly(given):
            return results(*(given[i] if i in traced else x for i, x in enumerate(numbers)))

        expected = jax.jit(lambda: results(*numbers))()
        for x, y in zip(jax.jit(partly)(jnp.asarray(numbers)), expected, strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)

    # No subnormal numbers: XLA flushes them to zero.
    @settings(max_examples=20, deadline=None)
    @given(low=st.floats(-1e3, 1e3, width=32, allow_subnormal=False), width=st.floats(0.125, 1e3, width=32))
    def test_results_stay_within_bounds_despite_rounding(self, low, width):
        low, high = np.float32(low), np.float32(low) + np.float32(width)
        x = jnp.asarray([-np.inf, -30.0, -9.0, -1.0, 0.0, 5.0, 8.5, 9.0, 30.0, np.inf], jnp.float32)
        squashed = squash(x, float(low), float(high))
        stretched = beta(jnp.full(10, 2.0), 2.0, float(low), float(high))._forward(jnp.linspace(0.0, 1.0, 10))
        for y in (squashed, stretched):
            assert (np.asarray(y) >= low).all()
            assert (np.asarray(y) <= high).all()

    def test_end_zone_density_is_its_probability_over_its_width(self):
        # P(y > 1 - eps) = P(x > atanh(1 - eps)), divided by the width eps of the zone.
        mass = distrax.Normal(3.0, 1.0).survival_function(np.arctanh(0.999))
        np.testing.assert_allclose(tanh_normal(3.0, 1.0).log_prob(1.0), np.log(mass / 1e-3), rtol=1e-4)

    def test_sample_and_log_prob_is_exact_and_finite(self):
        pi = tanh_normal(jnp.asarray([0.0, 2.0]), jnp.asarray([0.5, 6.0]), (-1.0, 0.0), (1.0, 9.0))
        samples, log_prob = jax.jit(lambda pi: pi.sample_and_log_prob(seed=KEY, sample_shape=2_000))(pi)
        inside = jnp.abs(samples[:, 0]) < 0.998
        np.testing.assert_allclose(log_prob[:, 0][inside], jax.jit(pi.log_prob)(samples)[:, 0][inside], atol=1e-3)
        assert jnp.isfinite(log_prob).all()
        assert (samples >= jnp.asarray([[-1.0, 0.0]])).all()
        assert (samples <= jnp.asarray([[1.0, 9.0]])).all()

    def test_entropy_and_moments_match_numerical_integration(self):
        low, high = -1.0, 3.0
        scales, tolerances = [0.1, 0.5, 1.0, 2.0], np.asarray([1e-5, 1e-4, 3e-3, 6e-2])
        locs = [0.0, 0.5, -2.0]
        pi = tanh_normal(*(g.astype(np.float32) for g in np.meshgrid(locs, scales, indexing="ij")), low, high)
        entropy, mean, variance = jax.jit(lambda pi: (pi.entropy(), pi.mean(), pi.variance()))(pi)

        def affine_tanh(x):
            return low + (high - low) * (1 + np.tanh(x)) / 2

        for i, loc in enumerate(locs):
            for j, scale in enumerate(scales):
                log_slope = expect_normal(lambda x: np.log((high - low) / 2 / np.cosh(x) ** 2), loc, scale)
                expected = 0.5 * np.log(2 * np.pi * np.e * scale**2) + log_slope
                np.testing.assert_allclose(entropy[i, j], expected, atol=tolerances[j])
                expected = expect_normal(affine_tanh, loc, scale)
                np.testing.assert_allclose(mean[i, j], expected, atol=2e-3)
                second = expect_normal(lambda x: affine_tanh(x) ** 2, loc, scale)
                np.testing.assert_allclose(variance[i, j], second - expected**2, atol=2e-2)

    def test_entropy_gradient_matches_the_slope(self):
        gradient = jax.grad(lambda loc: tanh_normal(loc, 1e-4).entropy())(0.6)
        # As the scale goes to zero, d/dloc E[log(1 - tanh^2)] = -2 tanh(loc).
        np.testing.assert_allclose(gradient, -2 * np.tanh(0.6), rtol=1e-4)

    def test_base_distributions_other_than_normal_need_a_seed_for_entropy(self):
        pi = AffineTanhTransformedDistribution(distrax.Logistic(0.0, 1.0), -1.0, 1.0)
        with pytest.raises(ValueError, match="pass a seed"):
            pi.entropy()
        with pytest.raises(NotImplementedError, match="moments"):
            pi.mean()
        assert jnp.isfinite(pi.entropy(seed=KEY))
        assert jnp.isfinite(pi.log_prob(1.0))

    def test_mode_is_the_squashed_mean(self):
        np.testing.assert_allclose(tanh_normal(0.5, 1.0, 0.0, 2.0).mode(), 1 + np.tanh(0.5), rtol=1e-6)


class TestBeta:
    def test_density_entropy_and_moments_match_closed_form(self):
        # Beta(2, 3): density 12 x (1 - x)^2, mean 2/5, variance 1/25, mode 1/3; stretched to [-1, 3].
        pi = beta(2.0, 3.0, -1.0, 3.0)
        np.testing.assert_allclose(pi.log_prob(1.0), np.log(12 * 0.5 * 0.25 / 4), rtol=1e-5)
        np.testing.assert_allclose(pi.mean(), -1 + 4 * 0.4, rtol=1e-5)
        np.testing.assert_allclose(pi.variance(), 16 / 25, rtol=1e-5)
        np.testing.assert_allclose(pi.mode(), -1 + 4 / 3, rtol=1e-5)
        x = np.linspace(1e-9, 1 - 1e-9, 100_001)
        density = 12 * x * (1 - x) ** 2
        entropy = -np.trapezoid(density * np.log(density), x) + np.log(4.0)
        np.testing.assert_allclose(pi.entropy(), entropy, rtol=1e-4)

    @pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
    def test_samples_stay_strictly_inside(self, dtype):
        pi = ClippedBeta(jnp.asarray([0.01, 5.0], dtype), jnp.asarray([0.01, 0.01], dtype))
        samples, log_probs = jax.jit(lambda pi: pi.sample_and_log_prob(seed=KEY, sample_shape=500))(pi)
        assert ((samples > 0) & (samples < 1)).all()
        assert jnp.isfinite(log_probs).all()

    def test_gradient_is_finite_at_the_ends(self):
        for value in (-2.0, 2.0):
            gradient = jax.grad(lambda alpha, value=value: beta(alpha, 3.0, -2.0, 2.0).log_prob(value))(1.5)
            assert jnp.isfinite(gradient)

    def test_mode_without_a_peak_is_the_mean(self):
        pi = ClippedBeta(jnp.asarray([1.0, 1.0, 3.0]), jnp.asarray([1.0, 3.0, 1.0]))
        np.testing.assert_allclose(pi.mode(), [0.5, 0.0, 1.0])


class TestNormal:
    def test_agrees_with_distrax(self):
        loc, scale = LOGITS, jnp.exp(LOGITS)
        ours, theirs = MultivariateNormalDiag(loc, scale), distrax.MultivariateNormalDiag(loc, scale)
        value = jnp.ones_like(loc)
        np.testing.assert_allclose(ours.log_prob(value), theirs.log_prob(value), rtol=1e-5)
        np.testing.assert_allclose(ours.entropy(), theirs.entropy(), rtol=1e-5)
        np.testing.assert_allclose(ours.mean(), loc)
        np.testing.assert_allclose(ours.stddev(), scale, rtol=1e-6)
        np.testing.assert_allclose(ours.kl_divergence(theirs), 0.0, atol=1e-5)

    def test_one_scale_is_broadcast_over_the_batch(self):
        pi = MultivariateNormalDiag(LOGITS, jnp.asarray([1.0, 2.0, 3.0]))
        assert pi.sample(seed=KEY, sample_shape=(4,)).shape == (4, 2, 3)
        assert pi.entropy().shape == (2,)


class TestStateDependentNoise:
    def test_noise_is_linear_in_the_features_for_one_key(self):
        noise_scale = jnp.exp(jax.random.normal(KEY, (4, 3)))
        first, second = jax.random.normal(jax.random.key(1), (2, 4))

        def noise(features):
            return StateDependentNoise(jnp.zeros(3), features, noise_scale, 0.0).sample(seed=KEY)

        np.testing.assert_allclose(noise(first + second), noise(first) + noise(second), rtol=1e-4, atol=1e-5)

    def test_samples_have_the_stated_standard_deviation(self):
        noise_scale = jnp.asarray([[0.5], [1.0]])
        pi = StateDependentNoise(jnp.zeros((1, 1)), jnp.asarray([[2.0, 1.0]]), noise_scale, 0.0)
        # Variance: 4 * 1/4 + 1 * 1 = 2.
        np.testing.assert_allclose(pi.stddev(), [[np.sqrt(2.0)]], rtol=1e-6)
        samples = pi.sample(seed=KEY, sample_shape=20_000)
        np.testing.assert_allclose(samples.std(), np.sqrt(2.0), rtol=0.02)

    def test_log_prob_is_that_of_the_marginal_normal_distribution(self):
        """Features (2, 1), deviations (0.5, 1), floor 0.7: the variance is 4 * 0.25 + 1 + 0.49 = 2.49."""
        pi = StateDependentNoise(jnp.asarray([0.3]), jnp.asarray([2.0, 1.0]), jnp.asarray([[0.5], [1.0]]), 0.7)
        expected = distrax.Normal(0.3, np.sqrt(2.49)).log_prob(jnp.asarray(1.1))
        np.testing.assert_allclose(pi.log_prob(jnp.asarray([1.1])), expected, rtol=1e-5)

    def test_min_scale_remains_for_zero_features(self):
        pi = StateDependentNoise(jnp.ones((1, 2)), jnp.zeros((1, 4)), jnp.ones((4, 2)), 0.5)
        np.testing.assert_allclose(pi.stddev(), 0.5, rtol=1e-6)
        np.testing.assert_allclose(pi.sample(seed=KEY, sample_shape=20_000).std((0, 1)), 0.5, rtol=0.02)

    def test_rows_of_a_batch_have_independent_noise(self):
        pi = StateDependentNoise(jnp.zeros((2, 3)), jnp.ones((2, 4)), jnp.ones((4, 3)))
        first, second = pi.sample(seed=KEY)
        assert (first != second).all()


@pytest.mark.parametrize("seed", [None, 0])
def test_independent_takes_distributions_whose_entropy_has_no_seed(seed):
    normal = distrax.Normal(jnp.zeros((2, 3)), jnp.ones((2, 3)))
    key = None if seed is None else jax.random.key(seed)
    expected = np.full(2, 1.5 * np.log(2 * np.pi * np.e))
    np.testing.assert_allclose(Independent(normal, 1).entropy(seed=key), expected, rtol=1e-6)
    nested = Independent(distrax.Independent(normal, 1), 1)
    np.testing.assert_allclose(nested.entropy(seed=key), expected.sum(), rtol=1e-6)
