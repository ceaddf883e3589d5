import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import TypeCheckError
from selections import select

from stoix_like.envs.spaces import Box, Discrete, MultiDiscrete
from stoix_like.networks import heads
from stoix_like.networks.distributions import MultivariateNormalDiag
from stoix_like.networks.layers import NoisyLinear

KEY = jax.random.key(0)
BOUNDS = {"minimum": (-1.0, 0.0), "maximum": (1.0, 3.0)}
ATOMS = {"num_atoms": 5, "vmin": -1.0, "vmax": 1.0}
Q = {"action_dim": 3, "epsilon": 0.1}

# Each head with the shapes of its outputs for one embedding: of a sample of a distribution, or of an array.
HEADS = {
    "categorical": (heads.CategoricalHead(3), [()]),
    "categorical_grid": (heads.CategoricalHead((2, 3)), [(2,)]),
    "multi_discrete": (heads.MultiDiscreteHead(2, (2, 3)), [(2,)]),
    "tanh_normal": (heads.NormalAffineTanhDistributionHead(2, **BOUNDS), [(2,)]),
    "tanh_normal_grid": (heads.NormalAffineTanhDistributionHead((3, 2), -1.0, 1.0), [(3, 2)]),
    "beta": (heads.BetaDistributionHead(2, **BOUNDS), [(2,)]),
    "normal": (heads.MultivariateNormalDiagHead(2), [(2,)]),
    "normal_scalar": (heads.MultivariateNormalDiagHead(()), [()]),
    "normal_grid": (heads.MultivariateNormalDiagHead((3, 2)), [(3, 2)]),
    "gsde": (heads.StateDependentNoiseHead(2), [(2,)]),
    "gsde_scalar": (heads.StateDependentNoiseHead(()), [()]),
    "gsde_grid": (heads.StateDependentNoiseHead((3, 2)), [(3, 2)]),
    "deterministic": (heads.DeterministicHead(2, **BOUNDS), [(2,)]),
    "scalar": (heads.ScalarCriticHead(), [()]),
    "categorical_critic": (heads.CategoricalCriticHead(5), [()]),
    "discrete_valued": (heads.DiscreteValuedTfpHead(-1.0, 1.0, 5, (2,)), [(2,)]),
    "quantile_critic": (heads.QuantileCriticHead(7), [(7,), (7,)]),
    "implicit_quantile_critic": (heads.ImplicitQuantileCriticHead(7, layer_sizes=(8,)), [(7,), (7,)]),
    "q": (heads.DiscreteQNetworkHead(3), [()]),
    "noisy": (heads.NoisyDiscreteQNetworkHead(**Q), [()]),
    "noisy_dueling": (heads.NoisyDuelingQNetwork(**Q, layer_sizes=(8,)), [()]),
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
GREEDY = ("q", "noisy", "dueling", "c51", "dueling_c51", "rainbow", "qr_dqn", "iqn")
MASKED = ("categorical", "q", "noisy", "dueling", "c51", "dueling_c51", "rainbow", "qr_dqn", "iqn", "policy_value")


def parts_of(output):
    return output if isinstance(output, tuple) else (output,)


def value_of(part):
    """Return an array for a head's output: the mode of a distribution, or the array itself."""
    return part.mode() if isinstance(part, distrax.Distribution) else part


@pytest.mark.slow
@pytest.mark.parametrize("name", HEADS)
def test_heads_accept_any_number_of_leading_axes(name):
    head, events = HEADS[name]
    x = jax.random.normal(KEY, (2, 3, 6))

    @jax.jit
    def many_and_one(x):
        params = jax.jit(head.init)(KEY, x[0, 0])
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
        # An array of values has one log-probability per value.
        assert scalar[0].shape == scalar[1].shape == ((2, 3, 2) if name == "discrete_valued" else (2, 3))


@pytest.mark.parametrize("name", select(MASKED, quick=("categorical", "q", "rainbow", "iqn")))
def test_heads_mask_illegal_actions(name):
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


def test_multi_discrete_head_masks_illegal_choices():
    head, _ = HEADS["multi_discrete"]
    x, mask = jnp.ones((1, 6)), jnp.asarray([[False, True, True, False, True]])

    @jax.jit
    def sample(x):
        return head.apply(head.init(KEY, x), x, action_mask=mask).sample(seed=KEY, sample_shape=100)

    samples = sample(x)
    assert (samples[..., 0] == 1).all()
    assert (samples[..., 1] != 1).all()


def test_multi_discrete_head_refuses_empty_masks_or_ignores_traced_ones():
    head, _ = HEADS["multi_discrete"]
    x = jnp.ones((1, 6))
    params = jax.jit(head.init)(KEY, x)
    # None of the two choices of the first sub-action is legal, and only the last of the second one.
    mask = jnp.asarray([[False, False, False, False, True]])
    with pytest.raises(ValueError, match="without a legal action"):
        head.apply(params, x, action_mask=mask)
    samples = jax.jit(lambda mask: head.apply(params, x, action_mask=mask).sample(seed=KEY, sample_shape=200))(mask)
    assert set(np.asarray(samples[..., 0]).ravel()) == {0, 1}
    assert (samples[..., 1] == 2).all()


@pytest.mark.parametrize("name", select(GREEDY, quick=("q", "rainbow", "iqn")))
def test_epsilon_argument_overrides_attribute(name):
    head, _ = HEADS[name]
    x = jax.random.normal(KEY, (4, 3, 6))

    @jax.jit
    def probs(x, epsilon):
        params = jax.jit(head.init)(KEY, x)
        each, usual, one = (head.apply(params, x, epsilon=e) for e in (epsilon, None, 0.25))
        return [parts_of(policy)[0].probs for policy in (each, usual, one)]

    each, usual, one = probs(x, jnp.asarray([0.0, 0.5, 1.0]))
    # The best of three actions has probability 1 - 2/3 epsilon.
    np.testing.assert_allclose(each.max(-1), [[1.0, 2 / 3, 1 / 3]] * 4, rtol=1e-5)
    np.testing.assert_allclose(usual.max(-1), 1 - 0.2 / 3, rtol=1e-5)
    np.testing.assert_allclose(one.max(-1), 1 - 0.5 / 3, rtol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: heads.DiscreteValuedTfpHead(-x, x, 5),
        lambda x: heads.DiscreteValuedTfpHead((-x, 0.0), (x, 1.0), 5, (2,)),
        lambda x: heads.CategoricalCriticHead(5, vmax=x),
        lambda x: heads.DistributionalContinuousQNetwork(5, -1.0, x),
        lambda x: heads.StateDependentNoiseHead(2, init_scale=x),
        lambda x: heads.MultivariateNormalDiagHead(2, init_scale=x, min_scale=0.1 * x),
        lambda x: heads.NormalAffineTanhDistributionHead(2, -1.0, x),
        lambda x: heads.BetaDistributionHead(2, -x, 3.0),
        lambda x: heads.DuelingQNetwork(3, 0.1 * x, (8,)),
    ],
    ids=["atoms", "two_atoms", "categorical_critic", "d4pg", "gsde", "normal", "tanh_normal", "beta", "dueling"],
)
def test_float_attributes_may_be_traced(make):
    x = jax.random.normal(KEY, (2, 6))

    def result(number):
        head = make(number)
        first = parts_of(head.apply(head.init(KEY, x), x))[0]
        return first if isinstance(first, jax.Array) else first.probs if hasattr(first, "probs") else first.mean()

    def range_of(number):
        head = make(number)
        first = parts_of(head.apply(head.init(KEY, x), x))[0]
        return first.values if hasattr(first, "values") else jnp.zeros(())

    for function in (result, range_of):
        expected = jax.jit(lambda function=function: function(2.0))()
        np.testing.assert_allclose(jax.jit(function)(jnp.float32(2.0)), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("categorical", {"action_mask": jnp.ones((4, 2), bool)}),
        ("multi_discrete", {"action_mask": jnp.ones((4, 4), bool)}),
        ("dueling", {"action_mask": jnp.ones((3, 3), bool)}),
        ("q", {"epsilon": jnp.full(3, 0.1)}),
        ("iqn", {"tau": jnp.full((3, 7), 0.5)}),
    ],
)
def test_wrong_shapes_are_refused(name, wrong):
    head, _ = HEADS[name]
    x = jnp.ones((4, 6))
    with pytest.raises((TypeCheckError, TypeError, ValueError)):
        head.init(KEY, x, **wrong)


def test_initial_policies_are_near_the_middle_of_the_bounds():
    x = jax.random.normal(KEY, (5, 6))
    for name in ("tanh_normal", "deterministic", "beta"):
        head, _ = HEADS[name]
        mode = jax.jit(lambda x, head=head: head.apply(head.init(KEY, x), x).mean())(x)
        np.testing.assert_allclose(mode, [[0.0, 1.5]] * 5, atol=0.1)
    normal, _ = HEADS["normal"]
    np.testing.assert_allclose(jax.jit(normal.init_with_output)(KEY, x)[0].stddev(), 0.301, atol=0.02)
    gsde = heads.StateDependentNoiseHead(2)
    np.testing.assert_allclose(gsde.apply(jax.jit(gsde.init)(KEY, x), jnp.ones((1, 6))).stddev(), 0.3, rtol=1e-3)


@pytest.mark.parametrize(
    ("head", "initial"),
    [
        # 0.3 and log 2, each with the lower limit of 0.001.
        (heads.MultivariateNormalDiagHead(2, state_dependent_scale=False), 0.301),
        (heads.NormalAffineTanhDistributionHead(2, -1.0, 1.0, state_dependent_scale=False), np.log(2.0) + 0.001),
    ],
)
def test_a_deviation_may_be_the_same_in_all_states(head, initial):
    """Its logarithm is a parameter: 1 more multiplies the deviation by e, except for the lower limit."""
    x = jax.random.normal(KEY, (3, 6))
    params = jax.jit(head.init)(KEY, x)

    def scale(params):
        pi = head.apply(params, x)
        return pi.stddev() if isinstance(pi, MultivariateNormalDiag) else pi.distribution.distribution.stddev()

    np.testing.assert_allclose(scale(params), np.full((3, 2), initial), rtol=1e-5)
    params["params"]["log_scale"]["value"] = jnp.ones(2)
    np.testing.assert_allclose(scale(params), np.full((3, 2), np.e * (initial - 0.001) + 0.001), rtol=1e-5)


def test_bfloat16_embeddings_give_float32_log_probs():
    x = jax.random.normal(KEY, (4, 6), jnp.bfloat16)
    for name in ("categorical", "tanh_normal", "normal"):
        head, _ = HEADS[name]

        def log_prob(x, head=head):
            pi = head.apply(head.init(KEY, x), x)
            return pi.log_prob(pi.mode())

        assert jax.eval_shape(log_prob, x).dtype == jnp.float32


class TestDueling:
    def test_mean_action_value_equals_state_value(self):
        # q = v + a - mean a, whose mean over actions is v.
        head = heads.DuelingQNetwork(3, 0.0, (4,))
        x = jax.random.normal(KEY, (5, 6))
        params = jax.jit(head.init)(KEY, x)
        q = head.apply(params, x).preferences
        value = params["params"]["Dense_0"], params["params"]["MLPTorso_0"]["Dense_0"]
        hidden = jax.nn.relu(x @ value[1]["kernel"])
        np.testing.assert_allclose(q.mean(-1), (hidden @ value[0]["kernel"])[:, 0], rtol=1e-4, atol=1e-5)


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


class TestImplicitQuantiles:
    def test_levels_are_even_or_drawn_or_passed(self):
        head, _ = HEADS["implicit_quantile_critic"]
        x = jnp.ones((2, 6))
        params = jax.jit(head.init)(KEY, x)
        even = head.apply(params, x)[1]
        np.testing.assert_allclose(even, np.tile((np.arange(7) + 0.5) / 7, (2, 1)), rtol=1e-6)
        drawn = head.apply(params, x, rngs={"tau": KEY})[1]
        assert len(np.unique(drawn)) == 14
        values, tau = head.apply(params, x, even[:, :4])
        np.testing.assert_allclose(values, head.apply(params, x)[0][:, :4], rtol=1e-5)
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
        values, tau = head.apply(params, low, rngs={"tau": KEY})
        assert tau.dtype == jnp.float32
        assert len(np.unique(tau)) == tau.size
        exact = head.apply(params, low.astype(jnp.float32), tau)[0]
        np.testing.assert_allclose(values.astype(jnp.float32), exact, atol=0.02)

    def test_quantile_levels_are_midpoints(self):
        np.testing.assert_allclose(heads.quantile_levels(2), [0.25, 0.75])


class TestNoisyLinear:
    def test_noise_comes_from_the_noise_rng(self):
        layer = NoisyLinear(3)
        x = jax.random.normal(KEY, (4, 2, 5))
        params = jax.jit(layer.init)(KEY, x)
        mean = layer.apply(params, x)
        np.testing.assert_allclose(mean, x @ params["params"]["kernel"], rtol=1e-5, atol=1e-6)
        first, again = (layer.apply(params, x, rngs={"noise": KEY}) for _ in range(2))
        np.testing.assert_array_equal(first, again)
        assert (first != layer.apply(params, x, rngs={"noise": jax.random.key(1)})).all()

    def test_noise_has_the_expected_variance(self):
        # E[f(e)^2] = E|e| = sqrt(2/pi): Var y = s^2 (2/pi sum x^2 + sqrt(2/pi)), with s = 1/2 / sqrt(2).
        layer = NoisyLinear(1)
        x = jnp.asarray([1.0, 2.0])
        params = jax.jit(layer.init)(KEY, x)
        noisy = jax.jit(jax.vmap(lambda key: layer.apply(params, x, rngs={"noise": key})))
        variance = noisy(jax.random.split(KEY, 20_000)).var()
        np.testing.assert_allclose(variance, (2 / np.pi * 5 + np.sqrt(2 / np.pi)) / 8, rtol=0.05)

    def test_initialisers_are_found_by_name(self):
        layer = NoisyLinear(3, kernel_init="orthogonal", bias_init="ones")
        params = jax.jit(layer.init)(KEY, jnp.ones(3))["params"]
        np.testing.assert_allclose(params["kernel"] @ params["kernel"].T, np.eye(3), atol=1e-5)
        np.testing.assert_array_equal(params["bias"], 1.0)

    def test_use_bias_false_creates_no_bias(self):
        layer = NoisyLinear(3, use_bias=False)
        assert set(jax.jit(layer.init)(KEY, jnp.ones(2))["params"]) == {"kernel", "sigma_kernel"}


class TestDefaultPolicyHead:
    @pytest.mark.parametrize(
        ("space", "kind"),
        [
            (Discrete(3), heads.CategoricalHead),
            (MultiDiscrete((2, 3)), heads.MultiDiscreteHead),
            (Box(-1.0, np.asarray([1.0, 2.0]), (2,)), heads.NormalAffineTanhDistributionHead),
            (Box(-np.inf, np.inf, (2,)), heads.MultivariateNormalDiagHead),
            (Box(0.0, np.inf, (2,)), heads.MultivariateNormalDiagHead),
            (Box(-np.inf, np.inf, ()), heads.MultivariateNormalDiagHead),
            (Box(-np.inf, np.inf, (3, 2)), heads.MultivariateNormalDiagHead),
        ],
    )
    def test_head_supports_the_action_space(self, space, kind):
        head = heads.policy_head(space)
        assert type(head) is kind

        def act(x):
            pi = jax.jit(head.init_with_output)(KEY, x)[0]
            sample = pi.sample(seed=KEY)
            return sample, pi.log_prob(sample)

        sample, log_prob = jax.eval_shape(act, jnp.ones((5, 4)))
        assert sample.shape == (5, *space.shape)
        assert log_prob.shape == (5,)

    def test_bounds_come_from_the_action_space(self):
        head = heads.policy_head(Box(-1.0, np.asarray([1.0, 2.0]), (2,)))
        assert (head.minimum, head.maximum) == ((-1.0, -1.0), (1.0, 2.0))

    def test_other_spaces_are_refused(self):
        with pytest.raises(Exception, match="policy_head|no policy head"):
            heads.policy_head("everything")
