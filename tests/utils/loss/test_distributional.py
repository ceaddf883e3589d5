import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st

from stoix_like.utils import loss as functions
from stoix_like.utils.loss import distributional
from support.compiled import Compiled, run
from support.every_loss import CASES, K, M, arrays_of

ls = Compiled(functions)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_distributional_losses_agree_with_rlax():
    case = CASES["categorical_double_q"]
    logits, atoms, r, d, logits_t, atoms_t, selector = arrays_of(case)
    a = jnp.asarray(case.integers[0][1])
    td = arrays_of(CASES["categorical_td"])
    dist, tau, *rest = arrays_of(CASES["quantile_q"])

    def pairs():
        double = jax.vmap(rlax.categorical_double_q_learning)(atoms, logits, a, r, d, atoms_t, logits_t, selector)
        yield functions.categorical_double_q_learning(logits, atoms, a, r, d, logits_t, atoms_t, selector), double
        td_loss = jax.vmap(rlax.categorical_td_learning)(td[1], td[0], td[2], td[3], td[5], td[4])
        yield functions.categorical_td_learning(*td), td_loss.mean()
        for huber in (0.0, 0.7):
            by_rlax = jax.vmap(functools.partial(rlax.quantile_q_learning, huber_param=huber))
            yield functions.quantile_q_learning(dist, tau, a, *rest, huber), by_rlax(dist, tau, a, *rest).mean()

    for (actual, expected), rtol in zip(run(lambda: [*pairs()]), (1e-4, 1e-4, 1e-5, 1e-5), strict=True):
        np.testing.assert_allclose(actual, expected, rtol=rtol)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("name", ["categorical_double_q", "quantile_q"])
def test_constants_of_numpy_are_accepted(name):
    """Of which a compiled program takes entries by numbers that it computes."""
    case = CASES[name]
    arrays = case.arrays
    ((position, actions),) = case.integers
    function = getattr(functions, f"{name}_learning")
    jax.eval_shape(lambda a: function(*arrays[:position], a, *arrays[position:]), np.asarray(actions))


_project = jax.jit(distributional._project)


# By hand, support (0, 1, 2), target atoms (0.5, 3) with probabilities (1/2, 1/2):
#   0.5 lies halfway: 1/4 each to 0 and 1; 3 is clipped to 2: 1/2. Uniform prediction: cross-entropy log 3.
def test_projection_matches_hand_computed_values():
    support, zeros = np.float32([[[0.0, 1.0, 2.0]], [[0.0, 0.0, 0.0]]])
    projected = _project(*np.float32([[[0.5, 3.0]], [[0.5, 0.5]]]), support)
    np.testing.assert_allclose(projected, [[0.25, 0.25, 0.5]])
    reward, discount = np.float32([[0.5], [1.0]])
    loss = jax.jit(functions.categorical_td_learning)(zeros, support, reward, discount, zeros, support)
    np.testing.assert_allclose(loss, math.log(3), rtol=1e-6)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_both_forms_of_the_projection_agree_with_rlax_on_even_atoms(monkeypatch):
    """Rewards of 2 clip at either end; a discount of 0 puts all mass on one atom or between two."""
    rng, size, atoms = np.random.default_rng(4), 64, np.linspace(-3.0, 5.0, 33, dtype=np.float32)
    online, logits = jax.device_put([*rng.normal(size=(2, size, 33, 2))])
    reward = jax.device_put(2.0 * rng.normal(size=size))
    discount = jax.device_put((rng.random(size) < 0.7) * np.linspace(0.5, 1.0, size))

    @jax.jit
    def by_rlax(online, reward, discount, logits):
        support = jnp.tile(atoms, (size, 1))
        z = reward[:, None] + discount[:, None] * support
        probs = jax.nn.softmax(logits, axis=1)
        project = jax.vmap(rlax.categorical_l2_project)
        expected = jnp.stack([project(z, probs[..., critic], support) for critic in range(2)], axis=-1)
        losses = -jnp.einsum("bkc,bkc->b", expected, jax.nn.log_softmax(online, axis=1))
        return support, z, probs[..., 0], expected[..., 0], losses

    support, z, probs, expected, losses = by_rlax(online, reward, discount, logits)
    for cpu in (True, False):
        monkeypatch.setattr(distributional, "on_cpu", lambda cpu=cpu: cpu)
        actual = ls.categorical_critics_loss_per_example(online, support, reward, discount, logits)
        np.testing.assert_allclose(actual, losses, rtol=1e-5)
    args = online, support, reward, discount
    gradient = jax.grad(lambda logits: functions.categorical_critics_loss_per_example(*args, logits).sum())
    # The target is fixed.
    slopes, scattered = run(lambda *x: (gradient(logits), distributional._scatter(*x)), z, probs, support)
    assert not np.any(slopes)
    np.testing.assert_allclose(scattered, expected, atol=2e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_projection_preserves_mass_and_mean(seed):
    rng = np.random.default_rng(seed)
    support = np.sort(rng.normal(size=(2, K)), axis=-1).astype(np.float32)  # uneven gaps
    low, high = support[:, :1], support[:, -1:]
    atoms = low + (high - low) * rng.random((2, M)).astype(np.float32)
    probs = rng.dirichlet(np.ones(M), 2).astype(np.float32)
    projected = np.asarray(_project(atoms, probs, support))
    np.testing.assert_allclose(projected.sum(-1), 1.0, rtol=1e-4)
    np.testing.assert_allclose((projected * support).sum(-1), (probs * atoms).sum(-1), rtol=1e-3, atol=1e-4)


# By hand, source 0 at tau 0.25, targets (1, -1): weights (0.25, 0.75), absolute loss 0.5; with Huber 2, half of it.
def test_quantile_regression_loss_matches_hand_computed_values():
    @jax.jit
    def losses(source, tau, target):
        regression = functools.partial(functions.quantile_regression_loss, source, tau, target)
        return regression(), regression(2.0)

    np.testing.assert_allclose(losses(*np.float32([[[0.0]], [[0.25]]]), np.float32([[1.0, -1.0]])), [[0.5], [0.25]])
    both = jax.jit(lambda *x: (functions.implicit_quantile_q_learning(*x), functions.quantile_q_learning(*x)))
    dist, tau, *rest = CASES["quantile_q"].arrays
    args = dist, tau, CASES["quantile_q"].integers[0][1], *rest
    implicit, explicit = both(*args, 0.5)
    np.testing.assert_allclose(implicit, 2 * np.asarray(explicit), rtol=1e-6)
    np.testing.assert_allclose(*both(*args, 0.0))


# By hand: both critics together have the quantiles 1, 2, 3, 4; without one each, 1 and 2 remain.
# With r = 1, gamma 1/2, temperature 4, log pi = -1/2: y = 1 + (1 + 2)/2 = 2.5, 1 + (2 + 2)/2 = 3. The first critic is
# at 2.5 with errors (0, 1/2), the second one at 4 with errors (-3/2, -1), all weighted by 1/2: 1/8 + 5/8 = 3/4.
def test_truncated_quantile_critics_match_hand_computed_values():
    target = ls.truncate_quantiles(jax.device_put(np.array([[[1.0, 4.0], [3.0, 2.0]]])), 1)
    np.testing.assert_array_equal(target, [[1.0, 2.0]])
    reward, half, log_prob = np.float32([[1.0], [0.5], [-0.5]])
    critic_loss, online = jax.jit(functions.quantile_critic_loss), np.float32([[[2.5, 4.0]]])
    loss = critic_loss(online, half[None], reward, half, target, log_prob, 4.0, 0.0)
    np.testing.assert_allclose(loss, 0.75)


# By hand, atoms -2, 0, 2 with edges -3, -1, 1, 3, and a deviation of 1, half of 2: the target 0 is N(0, 1), whose
# probabilities are P(-1 < z < 1) = 0.68269 in the middle and P(1 < z < 3) = 0.15731 on either side, 0.99730 in all.
# The target 6 is clipped to 2, whose probabilities are P(-5 < z < -3) = 0.00135, P(-3 < z < -1) = 0.15731 and
# P(-1 < z < 1) = 0.68269, 0.84134 in all.
def test_the_smoothed_target_matches_hand_computed_probabilities():
    atoms, target = np.float32([[-2.0, 0.0, 2.0]] * 2), np.float32([0.0, 6.0])
    probs = np.array([[0.15731, 0.68269, 0.15731], [0.00135, 0.15731, 0.68269]]) / [[0.99730], [0.84134]]
    logits = np.float32([[1.0, 0.0, -2.0], [0.5, 1.0, 0.0]])
    gradient = jax.grad(functions.hl_gauss_loss)
    # The gradient of a cross-entropy is softmax(logits) - p, divided by the batch size.
    found = jax.jit(lambda logits, *x: jax.nn.softmax(logits) - 2.0 * gradient(logits, *x, 0.5))(logits, atoms, target)
    np.testing.assert_allclose(found, probs, atol=2e-5)


# By hand: 0.25 lies a quarter of the way from 0 to 1, and 5 is clipped to 3, the last atom.
def test_the_two_hot_target_has_the_neighbours_of_the_target():
    atoms, target = np.float32([[-1.0, 0.0, 1.0, 3.0]] * 3), np.float32([0.25, 5.0, -0.5])
    probs = np.array([[0.0, 0.75, 0.25, 0.0], [0.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.0, 0.0]])
    logits = np.float32([[1.0, 0.0, -2.0, 0.5], [0.5, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    both = jax.jit(lambda logits, *x: (functions.two_hot_loss_per_example(logits, *x), jax.nn.log_softmax(logits)))
    losses, log_probs = both(logits, atoms, target)
    np.testing.assert_allclose(losses, -(probs * np.asarray(log_probs)).sum(-1), rtol=1e-6)


def test_truncated_quantiles_are_the_smallest_in_ascending_order():
    """Also of equal ones: values are multiples of 1/2."""
    quantiles = np.round(2.0 * np.random.default_rng(0).normal(size=(16, 9, 2))).astype(np.float32) / 2.0
    expected = np.sort(quantiles.reshape(16, -1), axis=-1)[:, :14]
    np.testing.assert_array_equal(ls.truncate_quantiles(jnp.asarray(quantiles), 2), expected)


def test_targets_outside_of_the_atoms_are_counted():
    atoms, targets = np.float32([[-1.0, 0.0, 2.0]] * 5), np.float32([-1.5, -1.0, 0.3, 2.0, 2.1])
    np.testing.assert_array_equal(jax.jit(functions.is_outside)(targets, atoms), [1.0, 0.0, 0.0, 0.0, 1.0])


@pytest.mark.usefixtures("without_type_checks")
def test_targets_that_would_broadcast_against_the_atoms_are_refused():
    with pytest.raises(ValueError, match=r"^atoms\.shape=\(5, 3\) must be \[\*B, K\], where \*B = \(5, 1\)"):
        functions.is_outside(np.zeros((5, 1)), np.zeros((5, 3)))


def test_the_clipped_probability_is_that_of_atoms_pushed_outside():
    """Atoms -1, 0, 1 with a discount of 1/2: a reward of 0.6 makes 0.1, 0.6, 1.1, one of -2 makes -2.5, -2 and -1.5.

    All mean targets of the first row lie inside. A reward of 0.5 makes 1 of the last atom, which rounding may exceed.
    """
    probs = np.float32([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    reward, discount = np.float32([[0.6, -2.0, 0.5 + 1e-7, 1.5], [0.5, 0.5, 0.5, 0.0]])
    clipped = jax.jit(functions.clipped_probability)(reward, discount, np.float32([[-1.0, 0.0, 1.0]] * 4), probs)
    np.testing.assert_allclose(clipped, [0.7, 1.0, 0.0, 1.0], rtol=1e-6)


def test_critics_learn_their_own_target_or_the_one_with_the_smallest_mean():
    """Two critics on the atoms 0, 1: means 0.2 and 0.6 in the first row, 0.9 and 0.5 in the second.

    Without reward, and discounted by one, targets are these distributions: H(p, q) = -p log q - (1 - p) log(1 - q).
    """
    p, q = np.array([[0.2, 0.6], [0.9, 0.5]]), np.array([[0.3, 0.7], [0.4, 0.8]])
    logits, online = (np.log(np.stack([1.0 - x, x], axis=1)) for x in (p, q))
    args = jax.device_put((online, np.array([[0.0, 1.0]] * 2), np.zeros(2), np.ones(2), logits))

    def cross_entropies(p):
        return (-p * np.log(q) - (1.0 - p) * np.log(1.0 - q)).sum(-1)

    np.testing.assert_allclose(ls.categorical_critics_loss_per_example(*args), cross_entropies(p), rtol=1e-5)
    smallest = ls.categorical_critics_loss_per_example(*args, clipped_double=True)
    np.testing.assert_allclose(smallest, cross_entropies(p.min(-1, keepdims=True)), rtol=1e-5)


def test_the_smallest_target_is_that_after_the_projection():
    """On the atoms 0, 1, a reward of 0.6 makes 0.6 and 1.6 of them, of which the latter counts as 1."""
    p = np.array([[0.5, 0.9]])
    online, logits = np.array([[[0.0, 0.0], [np.log(3.0)] * 2]]), np.log(np.stack([1.0 - p, p], axis=1))
    args = jax.device_put((online, np.array([[0.0, 1.0]]), np.array([0.6]), np.ones(1), logits))
    losses = ls.categorical_critics_loss_per_example(*args, True)
    upper = 0.5 * 0.6 + 0.5
    np.testing.assert_allclose(losses, [-2.0 * (upper * np.log(0.75) + (1.0 - upper) * np.log(0.25))], rtol=1e-5)
