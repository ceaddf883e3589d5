import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.networks import heads
from stoix_like.networks.layers import NoisyLinear

KEY = jax.random.key(0)
BOUNDS = {"minimum": (-1.0, 0.0), "maximum": (1.0, 3.0)}
ATOMS = {"num_atoms": 5, "vmin": -1.0, "vmax": 1.0}
Q = {"action_dim": 3, "epsilon": 0.1}

# Each head with the shape of what it makes for one embedding: of a sample, or of each array.
HEADS = {
    "categorical": (heads.CategoricalHead(3), [()]),
    "categorical_grid": (heads.CategoricalHead((2, 3)), [(2,)]),
    "multi_discrete": (heads.MultiDiscreteHead(2, (2, 3)), [(2,)]),
    "tanh_normal": (heads.NormalAffineTanhDistributionHead(2, **BOUNDS), [(2,)]),
    "tanh_normal_grid": (heads.NormalAffineTanhDistributionHead((3, 2), -1.0, 1.0), [(3, 2)]),
    "beta": (heads.BetaDistributionHead(2, **BOUNDS), [(2,)]),
    "normal": (heads.MultivariateNormalDiagHead(2), [(2,)]),
    "gsde": (heads.StateDependentNoiseHead(2), [(2,)]),
    "deterministic": (heads.DeterministicHead(2, **BOUNDS), [(2,)]),
    "scalar": (heads.ScalarCriticHead(), [()]),
    "categorical_critic": (heads.CategoricalCriticHead(5), [()]),
    "discrete_valued": (heads.DiscreteValuedTfpHead(-1.0, 1.0, 5, (2,)), [(2,)]),
    "quantile_critic": (heads.QuantileCriticHead(7), [(7,), (7,)]),
    "implicit_quantile_critic": (heads.ImplicitQuantileCriticHead(7), [(7,), (7,)]),
    "q": (heads.DiscreteQNetworkHead(3), [()]),
    "dueling": (heads.DuelingQNetwork(**Q, layer_sizes=(8,)), [()]),
    "c51": (heads.DistributionalDiscreteQNetwork(**Q, **ATOMS), [(), (3, 5), (5,)]),
    "dueling_c51": (heads.DistributionalDuelingQNetwork(**Q, **ATOMS, layer_sizes=(8,)), [(), (3, 5), (5,)]),
    "rainbow": (heads.NoisyDistributionalDuelingQNetwork(**Q, **ATOMS, layer_sizes=(8,)), [(), (3, 5), (5,)]),
    "d4pg": (heads.DistributionalContinuousQNetwork(**ATOMS), [(), (5,), (5,)]),
    "qr_dqn": (heads.QuantileDiscreteQNetwork(**Q, num_quantiles=7), [(), (7, 3)]),
    "iqn": (heads.ImplicitQuantileDiscreteQNetwork(**Q, num_quantiles=7), [(), (7, 3), (7,)]),
    "policy_value": (heads.PolicyValueHead(heads.CategoricalHead(3), heads.ScalarCriticHead()), [(), ()]),
    "linear": (heads.LinearHead(4, pre_shape=(2, 3)), [(2, 3, 4)]),
}
MASKED = ("categorical", "q", "dueling", "c51", "dueling_c51", "rainbow", "qr_dqn", "iqn", "policy_value")


def parts_of(output):
    return output if isinstance(output, tuple) else (output,)


def value_of(part):
    """The one value of what a head makes: an array, or the mode of a distribution."""
    return part.mode() if isinstance(part, distrax.Distribution) else part


@pytest.mark.parametrize("name", HEADS)
def test_any_number_of_leading_axes(name):
    head, events = HEADS[name]
    x = jax.random.normal(KEY, (2, 3, 6))

    @jax.jit
    def many_and_one(x):
        params = head.init(KEY, x[0, 0])
        many, one = (parts_of(head.apply(params, y)) for y in (x, x[1, 2]))
        pis = [part for part in many if isinstance(part, distrax.Distribution)]
        scalars = [(pi.log_prob(pi.mode()), pi.entropy(seed=KEY)) for pi in pis]
        samples = [pi.sample(seed=KEY) for pi in pis]
        return [value_of(part) for part in many], [value_of(part) for part in one], samples, scalars

    many, one, samples, scalars = many_and_one(x)
    for event, full, single in zip(events, many, one, strict=True):
        assert full.shape == (2, 3, *event)
        np.testing.assert_allclose(full[1, 2], single, rtol=1e-5, atol=1e-5)
    for sample, scalar in zip(samples, scalars, strict=True):
        assert sample.shape == (2, 3, *events[0])
        # Of independent values there are as many log-probabilities.
        assert scalar[0].shape == scalar[1].shape == ((2, 3, 2) if name == "discrete_valued" else (2, 3))


@pytest.mark.parametrize("name", MASKED)
def test_action_mask(name):
    head, _ = HEADS[name]
    x = jax.random.normal(KEY, (4, 6))
    mask = jnp.asarray([[True, False, True]] * 3 + [[False, False, True]])

    @jax.jit
    def policy(x):
        pi = head.apply(head.init(KEY, x), x, action_mask=mask)
        pi = pi[0] if isinstance(pi, tuple) else pi
        return pi.probs, pi.mode(), pi.sample(seed=KEY, sample_shape=200)

    probs, mode, samples = policy(x)
    np.testing.assert_array_equal(probs[~mask], 0.0)
    assert (samples != 1).all()
    assert (samples[:, 3] == 2).all()
    assert (mode != 1).all()


def test_multi_discrete_mask():
    head, _ = HEADS["multi_discrete"]
    x, mask = jnp.ones((1, 6)), jnp.asarray([[False, True, True, False, True]])

    @jax.jit
    def sample(x):
        return head.apply(head.init(KEY, x), x, action_mask=mask).sample(seed=KEY, sample_shape=100)

    samples = sample(x)
    assert (samples[..., 0] == 1).all()
    assert (samples[..., 1] != 1).all()


def test_policies_start_near_the_middle_of_their_range():
    x = jax.random.normal(KEY, (5, 6))
    for name in ("tanh_normal", "deterministic", "beta"):
        head, _ = HEADS[name]
        mode = jax.jit(lambda x, head=head: head.apply(head.init(KEY, x), x).mean())(x)
        np.testing.assert_allclose(mode, [[0.0, 1.5]] * 5, atol=0.1)
    normal, _ = HEADS["normal"]
    np.testing.assert_allclose(normal.apply(normal.init(KEY, x), x).stddev(), 0.301, atol=0.02)
    gsde = heads.StateDependentNoiseHead(2)
    np.testing.assert_allclose(gsde.apply(gsde.init(KEY, x), jnp.ones((1, 6))).stddev(), 0.3, rtol=1e-3)


def test_bfloat16_embeddings():
    x = jax.random.normal(KEY, (4, 6), jnp.bfloat16)
    for name in ("categorical", "tanh_normal", "normal"):
        head, _ = HEADS[name]
        pi = jax.jit(lambda x, head=head: head.apply(head.init(KEY, x), x))(x)
        assert pi.log_prob(pi.mode()).dtype == jnp.float32


class TestDueling:
    def test_advantages_are_relative(self):
        # q = v + a - mean a: the mean over actions is the state value alone, whatever the advantages.
        head = heads.DuelingQNetwork(3, 0.0, (4,))
        x = jax.random.normal(KEY, (5, 6))
        params = head.init(KEY, x)
        q = head.apply(params, x).preferences
        value = params["params"]["Dense_0"], params["params"]["MLPTorso_0"]["Dense_0"]
        hidden = jax.nn.relu(x @ value[1]["kernel"])
        np.testing.assert_allclose(q.mean(-1), (hidden @ value[0]["kernel"])[:, 0], rtol=1e-4, atol=1e-5)


class TestAtoms:
    def test_values_are_means_over_atoms(self):
        head, _ = HEADS["c51"]
        x = jax.random.normal(KEY, (5, 6))
        pi, logits, atoms = head.apply(head.init(KEY, x), x)
        np.testing.assert_allclose(atoms, np.tile(np.linspace(-1, 1, 5), (5, 1)), atol=1e-6)
        expected = (jax.nn.softmax(logits) * np.linspace(-1, 1, 5)[None, None]).sum(-1)
        np.testing.assert_allclose(pi.preferences, expected, rtol=1e-5, atol=1e-6)

    def test_default_range_of_the_critic(self):
        x = jnp.ones((2, 6))
        head = heads.CategoricalCriticHead(5)
        np.testing.assert_allclose(head.apply(head.init(KEY, x), x).values, [[-2.0, -1.0, 0.0, 1.0, 2.0]] * 2)
        head = heads.CategoricalCriticHead(3, vmin=0.0, vmax=4.0)
        np.testing.assert_allclose(head.apply(head.init(KEY, x), x).values, [[0.0, 2.0, 4.0]] * 2)


class TestImplicitQuantiles:
    def test_levels_come_from_the_rng_or_evenly_or_as_given(self):
        head, _ = HEADS["implicit_quantile_critic"]
        x = jnp.ones((2, 6))
        params = head.init(KEY, x)
        even = head.apply(params, x)[1]
        np.testing.assert_allclose(even, np.tile((np.arange(7) + 0.5) / 7, (2, 1)), rtol=1e-6)
        drawn = head.apply(params, x, rngs={"tau": KEY})[1]
        assert len(np.unique(drawn)) == 14
        values, tau = head.apply(params, x, even[:, :4])
        np.testing.assert_allclose(values, head.apply(params, x)[0][:, :4], rtol=1e-5)
        assert tau.shape == (2, 4)

    def test_quantile_levels(self):
        np.testing.assert_allclose(heads.quantile_levels(2), [0.25, 0.75])


class TestNoisyLinear:
    def test_noise_comes_from_its_collection(self):
        layer = NoisyLinear(3)
        x = jax.random.normal(KEY, (4, 2, 5))
        params = layer.init(KEY, x)
        mean = layer.apply(params, x)
        np.testing.assert_allclose(mean, x @ params["params"]["kernel"], rtol=1e-5, atol=1e-6)
        first, again = (layer.apply(params, x, rngs={"noise": KEY}) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (first != layer.apply(params, x, rngs={"noise": jax.random.key(1)})).all()

    def test_variance_of_the_noise(self):
        # f(e)^2 = |e|, whose mean is sqrt(2/pi): Var y = s^2 (2/pi sum x^2 + sqrt(2/pi)), with s = 1/2 / sqrt(2).
        layer = NoisyLinear(1)
        x = jnp.asarray([1.0, 2.0])
        params = layer.init(KEY, x)
        noisy = jax.jit(jax.vmap(lambda key: layer.apply(params, x, rngs={"noise": key})))
        variance = noisy(jax.random.split(KEY, 20_000)).var()
        np.testing.assert_allclose(variance, (2 / np.pi * 5 + np.sqrt(2 / np.pi)) / 8, rtol=0.05)

    def test_without_bias(self):
        layer = NoisyLinear(3, use_bias=False)
        assert set(layer.init(KEY, jnp.ones(2))["params"]) == {"kernel", "sigma_kernel"}


class TestPolicyHead:
    @pytest.mark.parametrize(
        ("space", "kind"),
        [
            (Discrete(3), heads.CategoricalHead),
            (MultiDiscrete((2, 3)), heads.MultiDiscreteHead),
            (Box(-1.0, np.asarray([1.0, 2.0]), (2,)), heads.NormalAffineTanhDistributionHead),
            (Box(-np.inf, np.inf, (2,)), heads.MultivariateNormalDiagHead),
            (Box(0.0, np.inf, (2,)), heads.MultivariateNormalDiagHead),
        ],
    )
    def test_follows_the_action_space(self, space, kind):
        head = heads.policy_head(space)
        assert type(head) is kind
        sample = jax.jit(lambda x: head.apply(head.init(KEY, x), x).sample(seed=KEY))(jnp.ones(4))
        assert sample.shape == space.shape

    def test_bounds_are_those_of_the_space(self):
        head = heads.policy_head(Box(-1.0, np.asarray([1.0, 2.0]), (2,)))
        assert (head.minimum, head.maximum) == ((-1.0, -1.0), (1.0, 2.0))

    def test_other_spaces(self):
        with pytest.raises(Exception, match="policy_head|no policy head"):
            heads.policy_head("everything")
