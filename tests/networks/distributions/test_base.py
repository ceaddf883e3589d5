import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, Tuple
from stoix_like.networks.distributions import (
    Categorical,
    Deterministic,
    DiscreteValuedTfpDistribution,
    EpsilonGreedy,
    Independent,
    MixedActionDistribution,
    MultiDiscreteActionDistribution,
    MultivariateNormalDiag,
    StateDependentNoise,
)
from support.bounded_policies import beta, tanh_normal
from support.compiled import run
from support.selections import select

KEY = jax.random.key(0)
MIXED = Mixed(Tuple([Discrete(3), Box(-np.inf, np.inf, (2,))]))


def _makers(rows, positive):
    low, high = (-2.0, -1.0, 0.0), (2.0, 1.0, 5.0)
    return {
        "categorical": lambda: Categorical(logits=rows),
        "epsilon_greedy": lambda: EpsilonGreedy(rows, 0.2),
        "discrete_valued": lambda: DiscreteValuedTfpDistribution(np.linspace(-1.0, 1.0, 3), logits=rows),
        "multi_discrete": lambda: MultiDiscreteActionDistribution(jnp.concatenate([rows, rows[:, :2]], -1), (3, 2)),
        "mixed": lambda: MixedActionDistribution(
            [Categorical(logits=rows), MultivariateNormalDiag(rows[:, :2], positive[:, :2])], MIXED
        ),
        "tanh_normal": lambda: Independent(tanh_normal(rows, positive, low, high), 1),
        "beta": lambda: Independent(beta(1 + positive, 2 + positive, low, high), 1),
        "normal": lambda: MultivariateNormalDiag(rows, positive),
        "gsde": lambda: StateDependentNoise(rows, rows[:, :2], positive),
        "deterministic": lambda: Independent(Deterministic(rows), 1),
    }


NAMES = tuple(_makers(None, None))


@jax.jit
def _distributions(rows):
    return {name: make() for name, make in _makers(rows, jnp.exp(rows)).items()}


def distribution(name, dtype=jnp.float32):
    """Return a distribution of a class, with a batch of two and events of three entries."""
    return _distributions(np.asarray([[0.1, -0.4, 0.7], [0.9, 0.2, -1.5]], dtype))[name]


# Discrete, of several choices, and transformed.
KINDS = ("categorical", "multi_discrete", "tanh_normal")


@pytest.mark.parametrize("dtype", [jnp.float32, pytest.param(jnp.bfloat16, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", select(NAMES, quick=KINDS))
def test_methods_support_jit_grad_and_dtypes(name, dtype):
    pi = distribution(name, dtype)

    def everything(pi, key):
        sample, log_prob = pi.sample_and_log_prob(seed=key)
        again = pi.sample(seed=key)
        many = pi.sample(seed=key, sample_shape=(4, 5))
        scalars = log_prob, pi.log_prob(sample), pi.log_prob(pi.mode()), pi.entropy(seed=key)

        def loss(pi):
            return (pi.log_prob(sample) + pi.entropy(seed=key)).sum().astype(jnp.float32)

        gradients = jax.tree.leaves(jax.grad(loss, allow_int=True)(pi))
        gradients = [gradient for gradient in gradients if jnp.issubdtype(gradient.dtype, jnp.floating)]
        return sample, again, pi.mode(), scalars, many, pi.log_prob(many), gradients

    sample, again, mode, scalars, many, many_log_probs, gradients = jax.device_get(run(everything, pi, KEY))
    event = () if sample.ndim == 1 else sample.shape[1:]
    assert sample.shape == mode.shape == (2, *event)
    np.testing.assert_array_equal(sample, again)
    assert many.shape == (4, 5, 2, *event)
    assert many_log_probs.shape == (4, 5, 2)
    for scalar in scalars:
        assert scalar.shape == (2,)
        assert np.isfinite(scalar).all()
    # Vectors of a mixed space and atoms are float32, which holds every index of a choice.
    floats = jnp.float32 if name in ("mixed", "discrete_valued") else dtype
    assert sample.dtype == mode.dtype == (jnp.int32 if jnp.issubdtype(sample.dtype, jnp.integer) else floats)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def _drawn(pi, key):
    sample, log_prob = pi.sample_and_log_prob(seed=key)
    many = pi.sample(seed=key, sample_shape=4)
    return sample, pi.sample(seed=key), log_prob, pi.log_prob(sample), many, pi.log_prob(many), pi.mode()


@pytest.mark.parametrize("name", NAMES)
def test_shapes_under_vmap_are_those_of_an_entry(name):
    pi = distribution(name)
    mapped = jax.eval_shape(lambda pi, key: jax.vmap(_drawn)(pi, jax.random.split(key, 2)), pi, KEY)
    for found, expected in zip(mapped, jax.eval_shape(lambda pi, key: _drawn(pi[0], key), pi, KEY), strict=True):
        assert (found.shape, found.dtype) == ((2, *expected.shape), expected.dtype)


@pytest.mark.parametrize("name", [name for name in NAMES if distribution(name).event_shape])
def test_values_that_are_no_events_are_refused(name):
    pi = distribution(name)
    for shape in ((), (4,), (2, 1), (2, 4)):
        with pytest.raises(ValueError, match=r"value\.shape=.* must end with .*, the last axes of .* the event shape"):
            jax.eval_shape(pi.log_prob, np.zeros(shape))
    with pytest.raises(ValueError, match="event shape"):
        jax.eval_shape(jax.vmap(lambda pi, value: pi.log_prob(value)), pi, np.zeros(2))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.usefixtures("without_type_checks")
def test_values_of_another_batch_are_refused(name):
    """A batch of two with values [2, 1] or [4, 1] would give [2, 2] or [4, 2]; sample axes come before the batch."""
    pi = distribution(name)
    event, dtype = pi.event_shape, jax.eval_shape(pi.mode).dtype

    def shape_of(pi, shape):
        return jax.eval_shape(pi.log_prob, jax.ShapeDtypeStruct((*shape, *event), dtype)).shape

    for shape, result in (((), (2,)), ((2,), (2,)), ((1, 2), (1, 2)), ((5, 4, 2), (5, 4, 2))):
        assert shape_of(pi, shape) == result
    message = r"value\.shape=.* must end with .*, the last axes of the batch shape \(2,\)"
    for shape in ((1,), (3,), (2, 1), (4, 1)):
        with pytest.raises(ValueError, match=message):
            shape_of(pi, shape)

    # With a mapped axis of six, an entry has a batch of two.
    members = jax.tree.map(lambda x: np.stack([x] * 6), pi)
    function = jax.vmap(lambda pi, value: pi.log_prob(value))
    assert jax.eval_shape(function, members, np.zeros((6, 4, 2, *event), dtype)).shape == (6, 4, 2)
    with pytest.raises(ValueError, match="the batch shape"):
        jax.eval_shape(function, members, np.zeros((6, 2, 1, *event), dtype))


@pytest.mark.parametrize("name", select(NAMES, quick=KINDS))
def test_indexing_selects_from_the_batch(name):
    pi = distribution(name)
    indices = (1, slice(0, 1), Ellipsis)

    def results(pi, value):
        return pi.log_prob(value), pi.mode(), pi.entropy(seed=KEY)

    def everything(pi):
        parts, value = [pi[index] for index in indices], pi.sample(seed=KEY)
        picked = [results(part, value[index]) for part, index in zip(parts, indices, strict=True)]
        return parts, picked, results(pi, value)

    parts, picked, whole = jax.device_get(run(everything, pi))
    for index, part, results in zip(indices, parts, picked, strict=True):
        assert type(part) is type(pi) or isinstance(pi, MultiDiscreteActionDistribution)
        assert part.batch_shape == np.zeros(2)[index].shape
        assert part.event_shape == pi.event_shape
        for x, y in zip(results, whole, strict=True):
            np.testing.assert_allclose(x, y[index], rtol=1e-5, atol=1e-6)
    with pytest.raises(IndexError):
        pi[2]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("deterministic", "discrete_valued")])
def test_kl_divergence_is_zero_to_itself_and_positive_to_another(name):
    def both(pi):
        other = jax.tree.map(lambda x: x[::-1] if jnp.issubdtype(x.dtype, jnp.floating) else x, pi)
        return pi.kl_divergence(pi), pi.kl_divergence(other)

    same, different = jax.device_get(run(both, distribution(name)))
    np.testing.assert_allclose(same, 0.0, atol=1e-5)
    assert (different > 1e-3).all()


@pytest.mark.parametrize("seed", [None, 0])
def test_independent_takes_distributions_whose_entropy_has_no_seed(seed):
    normal = distrax.Normal(*jax.device_put((np.zeros((2, 3)), np.ones((2, 3)))))
    key = None if seed is None else jax.random.key(seed)
    expected = np.full(2, 1.5 * np.log(2 * np.pi * np.e))
    nested = Independent(distrax.Independent(normal, 1), 1)
    np.testing.assert_allclose(run(Independent(normal, 1).entropy, seed=key), expected, rtol=1e-6)
    np.testing.assert_allclose(run(nested.entropy, seed=key), expected.sum(), rtol=1e-6)


SPACE = Mixed(Dict({"choice": Discrete(2), "push": Box(-np.inf, np.inf, (2,))}))


def mixed(probability, mean):
    choice = Categorical(probs=jnp.array([[1 - probability, probability]]))
    push = MultivariateNormalDiag(jnp.array([[mean, 0.0]]), jnp.ones((1, 2)))
    return MixedActionDistribution([choice, push], SPACE)


def test_parts_are_independent():
    pi, other = run(lambda: (mixed(0.25, 1.0), mixed(0.5, 0.0)))
    # log 0.25 + log N(2; 1, 1) + log N(0; 0, 1) = -1.3863 - (0.5 + 0.9189) - 0.9189.
    np.testing.assert_allclose(run(pi.log_prob, jnp.array([[1.0, 2.0, 0.0]])), [-3.7242], atol=1e-4)
    # H = -(0.75 log 0.75 + 0.25 log 0.25) + 2 (0.5 + 0.9189) = 0.5623 + 2.8379.
    np.testing.assert_allclose(run(pi.entropy), [3.4002], atol=1e-4)
    np.testing.assert_array_equal(run(pi.mode), [[0.0, 1.0, 0.0]])
    # KL = 0.75 log(0.75 / 0.5) + 0.25 log(0.25 / 0.5) + 1 / 2 = 0.1308 + 0.5.
    np.testing.assert_allclose(run(pi.kl_divergence, other), [0.6308], atol=1e-4)


def test_samples_have_the_frequencies_of_the_parts():
    pi = run(mixed, 0.25, 1.0)
    samples, log_probs = run(pi.sample_and_log_prob, seed=KEY, sample_shape=(4000,))
    assert samples.shape == (4000, 1, 3)
    np.testing.assert_allclose(log_probs, run(pi.log_prob, samples), rtol=1e-5)
    # Standard errors: 0.007 for the choice, 0.016 for the mean.
    np.testing.assert_allclose(np.asarray(samples).mean((0, 1)), [0.25, 1.0, 0.0], atol=0.06)
    assert set(np.asarray(samples)[..., 0].ravel()) == {0.0, 1.0}
