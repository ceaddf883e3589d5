import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box
from stoix_like.networks import heads
from stoix_like.networks.distributions import MultivariateNormalDiag
from stoix_like.networks.requirements import STOCHASTIC_POLICY
from support.compiled import run
from support.every_head import HEADS, KEY, parts_of
from support.selections import select

TRACED = {
    "atoms": lambda x: heads.DiscreteValuedTfpHead(-x, x, 5),
    "two_atoms": lambda x: heads.DiscreteValuedTfpHead((-x, 0.0), (x, 1.0), 5, (2,)),
    "categorical_critic": lambda x: heads.CategoricalCriticHead(5, vmax=x),
    "d4pg": lambda x: heads.DistributionalContinuousQNetwork(5, -1.0, x),
    "gsde": lambda x: heads.StateDependentNoiseHead(2, init_scale=x),
    "normal": lambda x: heads.MultivariateNormalDiagHead(2, init_scale=x, min_scale=0.1 * x),
    "tanh_normal": lambda x: heads.NormalAffineTanhDistributionHead(2, -1.0, x),
    "beta": lambda x: heads.BetaDistributionHead(2, -x, 3.0),
    "dueling": lambda x: heads.DuelingQNetwork(3, 0.1 * x, (8,)),
}


@pytest.mark.parametrize("name", select(TRACED, quick=["two_atoms", "gsde", "tanh_normal"]))
def test_float_attributes_may_be_traced(name):
    make = TRACED[name]
    x = jax.device_put(np.random.default_rng(0).normal(size=(2, 6)))

    def results(number):
        head = make(number)
        first = parts_of(head.apply(head.init(KEY, x), x))[0]
        result = first if isinstance(first, jax.Array) else first.probs if hasattr(first, "probs") else first.mean()
        return result, getattr(first, "values", jnp.zeros(()))

    for found, expected in zip(*jax.jit(lambda number: (results(number), results(2.0)))(2.0), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


STOCHASTIC = {
    type(head): head
    for head, _ in HEADS.values()
    if getattr(head, "action_spaces", ()) == (Box,) and head.outputs == STOCHASTIC_POLICY
}


@pytest.mark.parametrize("head", STOCHASTIC.values(), ids=lambda head: type(head).__name__)
def test_heads_declare_whether_samples_stay_within_the_bounds(head):
    """Large embeddings bring locations and deviations far beyond them; those without bounds have [-1, 1] here."""
    low, high = (np.asarray(getattr(head, name, bound)) for name, bound in (("minimum", -1.0), ("maximum", 1.0)))
    x = 100.0 * np.random.default_rng(0).normal(size=(20, 6))
    sample = np.asarray(jax.jit(lambda x: head.init_with_output(KEY, x)[0].sample(seed=KEY, sample_shape=(20,)))(x))
    # Stretching rounds.
    assert head.within_bounds == bool(((low - 1e-6 <= sample) & (sample <= high + 1e-6)).all())


def test_initial_policies_are_near_the_middle_of_the_bounds():
    x = np.random.default_rng(0).normal(size=(5, 6))
    for name in ("tanh_normal", "deterministic", "beta"):
        head, _ = HEADS[name]
        mode = jax.jit(lambda x, head=head: head.apply(head.init(KEY, x), x).mean())(x)
        np.testing.assert_allclose(mode, [[0.0, 1.5]] * 5, atol=0.1)
    normal, _ = HEADS["normal"]
    np.testing.assert_allclose(jax.jit(normal.init_with_output)(KEY, x)[0].stddev(), 0.301, atol=0.02)
    gsde = heads.StateDependentNoiseHead(2)
    noise = jax.jit(lambda x: gsde.apply(gsde.init(KEY, x), jnp.ones((1, 6))).stddev())(x)
    np.testing.assert_allclose(noise, 0.3, rtol=1e-3)


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

    def scales(x):
        params = head.init(KEY, x)
        moved = {"params": params["params"] | {"log_scale": {"value": jnp.ones(2)}}}
        pis = [head.apply(variables, x) for variables in (params, moved)]
        pis = [pi if isinstance(pi, MultivariateNormalDiag) else pi.distribution.distribution for pi in pis]
        return [pi.stddev() for pi in pis]

    first, second = jax.jit(scales)(np.random.default_rng(0).normal(size=(3, 6)))
    np.testing.assert_allclose(first, np.full((3, 2), initial), rtol=1e-5)
    np.testing.assert_allclose(second, np.full((3, 2), np.e * (initial - 0.001) + 0.001), rtol=1e-5)


# By hand, bounds (-1, 3): the middle is 1, half the distance 2. Biases mu = (0, artanh(1/2)), s = (-2, 1e9):
# means 1 and 1 + 2 * 1/2 = 2, deviations 2 (0.1 + 0.9 / 2) = 1.1 and 2. Entropy: ln(1.1 * 2) + ln(2 pi e).
def test_a_bounded_normal_policy_has_a_bounded_mean_and_deviation():
    head, bias = heads.BoundedNormalHead(2, -1.0, (3.0, 3.0)), np.array([0.0, np.arctanh(0.5), -2.0, 1e9])
    params = {"params": {"Dense_0": {"kernel": np.zeros((6, 4)), "bias": bias}}}
    pi = run(head.apply, *jax.device_put((params, np.zeros((4, 6)))))
    np.testing.assert_allclose(pi.mode(), [[1.0, 2.0]] * 4, rtol=1e-6)
    np.testing.assert_allclose(pi.stddev(), [[1.1, 2.0]] * 4, rtol=1e-6)
    np.testing.assert_allclose(run(pi.entropy), np.log(2.2) + np.log(2.0 * np.pi * np.e), rtol=1e-6)
