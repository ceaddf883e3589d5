"""Losses against hand-derived values, rlax, finite differences, reductions and extremes."""

import functools
import inspect
import math
from typing import Any, NamedTuple

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from jaxtyping import TypeCheckError

from stoix_like.networks import distributions
from stoix_like.utils import loss as ls
from stoix_like.utils.loss import distributional
from stoix_like.utils.loss.common import probability_ratio

B, A, C, S, K, M, T = 4, 3, 2, 5, 6, 5, 3
LOG2 = math.log(2.0)


class Case(NamedTuple):
    """A loss with random arguments: arrays, those with a gradient first, and numbers."""

    function: Any
    arrays: tuple
    num_with_gradient: int
    numbers: tuple = ()
    integers: tuple = ()  # actions and their positions among the arguments: (position, array)

    def __call__(self, *arrays_and_numbers):
        arguments = list(arrays_and_numbers)
        for position, array in self.integers:
            arguments.insert(position, jnp.asarray(array))
        return self.function(*arguments)


def _random(seed=0):
    rng = np.random.default_rng(seed)
    return lambda *shape: rng.normal(size=shape).astype(np.float32)


def _cases(seed=0):
    n = _random(seed)
    a = np.random.default_rng(seed).integers(0, A, B).astype(np.int32)
    d = np.array([0.9, 0.0, 1.0, 0.5], np.float32)
    tau = np.random.default_rng(seed).random((B, K)).astype(np.float32)
    atoms = np.tile(np.linspace(-2.0, 2.0, K, dtype=np.float32), (B, 1))
    atoms_t = np.tile(np.linspace(-3.0, 3.0, M, dtype=np.float32), (B, 1))
    weights = np.asarray(jax.nn.softmax(n(S, B), axis=0))

    def at(position):
        return ((position, a),)

    q = (n(B, A), n(B), d, n(B, A))
    dist = (n(B, K, A), tau, n(B), d, n(B, S, A), n(B, M, A))
    return {
        "ppo_clip": Case(ls.ppo_clip_loss, (n(B), n(B), n(B)), 1, (0.2,)),
        "ppo_penalty": Case(_ppo_penalty, (n(B), n(B), n(B)), 1, (0.5,)),
        "ppo_penalty_continuous": Case(_ppo_penalty_continuous, (n(B, A), n(B, A), n(B, A), n(B)), 1, (0.5,)),
        "dpo": Case(ls.dpo_loss, (n(B), n(B), n(B)), 1, (2.0, 0.6)),
        "clipped_value": Case(ls.clipped_value_loss, (n(B), n(B), n(B)), 1, (0.2,)),
        "q_learning": Case(ls.q_learning, q, 1, (1.0,), at(1)),
        "double_q": Case(ls.double_q_learning, (n(B, A), n(B, A), n(B), d, n(B, A)), 1, (1.0,), at(2)),
        "td": Case(ls.td_learning, (n(B), n(B), d, n(B)), 1, (0.0,)),
        "categorical_double_q": Case(
            ls.categorical_double_q_learning,
            (n(B, A, K), atoms, n(B), d, n(B, A, M), atoms_t, n(B, A)),
            1,
            (),
            at(2),
        ),
        "categorical_td": Case(ls.categorical_td_learning, (n(B, K), atoms, n(B), d, n(B, M), atoms_t), 1),
        "munchausen": Case(
            ls.munchausen_q_learning, (n(B, A), n(B, A), n(B), d, n(B, A)), 1, (0.3, 0.9, -1.0, 1.0), at(2)
        ),
        "quantile_regression": Case(ls.quantile_regression_loss, (n(B, K), tau, n(B, M)), 1, (0.7,)),
        "quantile_q": Case(ls.quantile_q_learning, dist, 1, (0.7,), at(2)),
        "implicit_quantile": Case(ls.implicit_quantile_q_learning, dist, 1, (0.7,), at(2)),
        "quantile_critic": Case(ls.quantile_critic_loss, (n(B, K, C), tau, n(B), d, n(B, M), n(B)), 1, (0.2, 0.7)),
        "dqn_reg": Case(ls.dqn_reg_loss, q, 1, (0.1,), at(1)),
        "cql": Case(ls.cql_penalty, (n(B, A),), 1, (), at(1)),
        "sampled_cql": Case(_sampled_cql, (n(S, B), n(B), n(S, B)), 2),
        "td3_critic": Case(ls.td3_critic_loss, (n(B, C), n(B), d, n(B, C)), 1),
        "dpg": Case(ls.dpg_loss, (n(B, A), n(B, A)), 0, (0.8,)),
        "sac_critic": Case(ls.sac_critic_loss, (n(B, C), n(B), d, n(B, C), n(B)), 1, (0.2,)),
        "sac_actor": Case(ls.sac_actor_loss, (n(B), n(B, C)), 2, (0.2,)),
        "sac_temperature": Case(ls.sac_temperature_loss, (n(), n(B)), 1, (-1.0,)),
        "policy_gradient": Case(ls.policy_gradient_loss, (n(B), n(B)), 1, (0.5,)),
        "reinforce": Case(ls.reinforce_loss, (n(B), n(B), n(B)), 1),
        "baseline": Case(ls.baseline_loss, (n(B), n(B)), 1),
        "impala": Case(ls.impala_loss, tuple(n(B, T) for _ in range(6)), 0, (0.9, 1.0, 1.0)),
        "awr": Case(ls.awr_loss, (n(B), n(B)), 1, (0.5, 20.0)),
        "mpo_temperature": Case(_mpo_temperature, (np.float32(0.7), n(S, B)), 1, (0.1,)),
        "mpo_policy": Case(ls.mpo_policy_loss, (n(S, B), weights), 1),
        "mpo_alpha": Case(
            lambda kl, alpha, eps: ls.mpo_alpha_loss(kl, alpha, eps)[0], (n(B), np.float32(0.7)), 1, (0.1,)
        ),
        "mpo_alpha_dual": Case(
            lambda alpha, kl, eps: ls.mpo_alpha_loss(kl, alpha, eps)[1], (np.float32(0.7), n(B)), 1, (0.1,)
        ),
        "vmpo_temperature": Case(
            lambda eta, adv, eps, top: ls.vmpo_temperature_loss(adv, eta, eps, top)[0],
            (np.float32(0.7), n(B)),
            1,
            (0.1, 0.5),
        ),
        "vmpo_policy": Case(ls.vmpo_policy_loss, (n(B), n(B)), 1),
        "hl_gauss": Case(ls.hl_gauss_loss, (n(B, K), atoms, n(B)), 1, (0.75,)),
    }


def _ppo_penalty(log_prob, b_log_prob, gae, beta):
    pi = distrax.Categorical(logits=jnp.stack([log_prob, -log_prob], axis=-1))
    b_pi = distrax.Categorical(logits=jnp.stack([b_log_prob, gae], axis=-1))
    return ls.ppo_penalty_loss(log_prob, b_log_prob, gae, beta, pi, b_pi)[0]


def _ppo_penalty_continuous(loc, b_loc, action, gae, beta):
    scale = jnp.full(A, 0.7)
    pi, b_pi = (distributions.MultivariateNormalDiag(x, scale.astype(x.dtype)) for x in (loc, b_loc))
    action = jax.lax.stop_gradient(action)
    return ls.ppo_penalty_loss(pi.log_prob(action), b_pi.log_prob(action), gae, beta, pi, b_pi)[0]


def _sampled_cql(q_samples, q, log_prob):
    return ls.sampled_cql_penalty(q_samples, log_prob, q)


def _mpo_temperature(temperature, q, epsilon):
    return ls.mpo_temperature_loss(q, temperature, epsilon)[0]


CASES = _cases()
by_case = pytest.mark.parametrize("name", CASES)


def _arrays(case, dtype=jnp.float32):
    return tuple(jnp.asarray(x, dtype) for x in case.arrays)


def _total(result):
    return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(result))


@by_case
def test_gradients_match_finite_differences(name):
    case = CASES[name]
    with jax.enable_x64(True):
        arrays = _arrays(case, jnp.float64)
        varied, fixed = arrays[: case.num_with_gradient], arrays[case.num_with_gradient :]
        if varied:
            function = jax.jit(lambda *x: _total(case(*x, *fixed, *case.numbers)))
            check_grads(function, varied, order=1, modes=["rev"], atol=1e-6, rtol=1e-6, eps=1e-6)


@by_case
def test_numbers_may_be_traced_and_target_gradients_are_zero(name):
    case = CASES[name]
    arrays = _arrays(case)
    actual, gradient = _value_and_grad(name)(arrays, _numbers(case))
    expected = sum(np.sum(leaf) for leaf in jax.tree.leaves(_loss(name)))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6)
    if name not in {"dpg", "impala"}:  # whose fixed arguments are not the last ones: tested separately
        assert all(not leaf.any() for leaf in gradient[case.num_with_gradient :])


def _numbers(case):
    return tuple(jnp.float32(x) for x in case.numbers)


@functools.cache
def _loss(name):
    """Return the loss of a case, whose numbers are constants of the program."""
    case = CASES[name]
    return jax.jit(lambda *arrays: case(*arrays, *case.numbers))(*_arrays(case))


@functools.cache
def _value_and_grad(name):
    case = CASES[name]
    return jax.jit(jax.value_and_grad(lambda arrays, numbers: _total(case(*arrays, *numbers))))


@by_case
@pytest.mark.parametrize("value", [-1e4, 1e4])
def test_extreme_inputs_give_finite_losses_and_gradients(name, value):
    case = CASES[name]
    fixed_inputs = {"categorical_double_q": (1, 5), "categorical_td": (1, 5), "hl_gauss": (1,)}.get(name, ())
    positive = name.startswith(("mpo", "vmpo"))  # temperatures and multipliers are not varied
    arrays = []
    for position, x in enumerate(_arrays(case)):
        extreme = jnp.where(x > 0, value, -value).astype(x.dtype)
        keep = position in fixed_inputs or (positive and x.ndim == 0) or (name == "sac_temperature" and x.ndim == 0)
        arrays.append(x if keep else extreme)
    result, gradient = _value_and_grad(name)(tuple(arrays), _numbers(case))
    assert np.isfinite(result)
    assert all(np.isfinite(leaf).all() for leaf in gradient)


@by_case
def test_wrong_shapes_raise(name):
    case = CASES[name]
    arrays = _arrays(case)
    widest = max(range(len(arrays)), key=lambda i: arrays[i].ndim)
    shortened = [x[..., :-1] if i == widest and x.ndim else x for i, x in enumerate(arrays)]
    if len(arrays) == 1:
        shortened = [arrays[0][0]]
    if name in {"mpo_temperature", "mpo_alpha", "mpo_alpha_dual", "vmpo_temperature", "sac_temperature"}:
        shortened = [jnp.stack([x, x]) if x.ndim == 0 else x for x in arrays]
    elif name == "sac_actor":
        shortened = [arrays[0][:-1], arrays[1]]
    elif name in {"quantile_regression", "quantile_critic", "quantile_q", "implicit_quantile"}:
        shortened = [arrays[0], arrays[1][:, :-1], *arrays[2:]]
    with pytest.raises((TypeCheckError, TypeError, ValueError)):
        case(*shortened, *case.numbers)


# Losses that are means over the batch, or one value per example: the batch axis of every array, None for arrays that
# all examples share.
BATCH_AXES = {
    **dict.fromkeys(("ppo_clip", "ppo_penalty_continuous", "dpo", "clipped_value", "q_learning", "double_q"), 0),
    **dict.fromkeys(
        ("td", "categorical_double_q", "categorical_td", "munchausen", "quantile_regression", "quantile_critic"), 0
    ),
    **dict.fromkeys(("quantile_q", "implicit_quantile", "dqn_reg", "cql", "td3_critic", "dpg", "sac_critic"), 0),
    **dict.fromkeys(("hl_gauss", "sac_actor", "policy_gradient", "reinforce", "baseline", "impala", "awr"), 0),
    **{"sampled_cql": (1, 0, 1), "mpo_policy": 1, "mpo_temperature": (None, 1), "sac_temperature": (None, 0)},
    **{"mpo_alpha": (0, None), "mpo_alpha_dual": (None, 0)},
}


@pytest.mark.parametrize("name", BATCH_AXES)
def test_batching_equals_vmap(name):
    case, axes = CASES[name], BATCH_AXES[name]
    axes = axes if isinstance(axes, tuple) else (axes,) * len(case.arrays)
    # Every example becomes a batch of one.
    ones = [
        x if axis is None else np.expand_dims(np.moveaxis(x, axis, 0), axis + 1)
        for x, axis in zip(case.arrays, axes, strict=True)
    ]
    actions = [(position, array[:, None]) for position, array in case.integers]

    @jax.jit
    @functools.partial(jax.vmap, in_axes=([None if axis is None else 0 for axis in axes], [0] * len(actions)))
    def one_by_one(arrays, actions):
        integers = tuple((position, a) for (position, _), a in zip(case.integers, actions, strict=True))
        return case._replace(integers=integers)(*arrays, *case.numbers)

    each = one_by_one([jnp.asarray(x) for x in ones], [jnp.asarray(a) for _, a in actions])
    for part, expected in zip(jax.tree.leaves(each), map(np.asarray, jax.tree.leaves(_loss(name))), strict=True):
        part = np.asarray(part)
        expected_parts = part[:, 0].mean() if expected.ndim else part.mean()
        np.testing.assert_allclose(expected.mean(), expected_parts, rtol=1e-4, atol=1e-5)


def test_fixed_arguments_of_impala_and_dpg_get_no_gradient():
    gradient = _value_and_grad("impala")(_arrays(CASES["impala"]), _numbers(CASES["impala"]))[1]
    assert all(not gradient[i].any() for i in (1, 3, 4, 5))
    assert gradient[0].any()
    assert gradient[2].any()
    assert not _value_and_grad("dpg")(_arrays(CASES["dpg"]), _numbers(CASES["dpg"]))[1][1].any()


def _finite_differences(function, x, eps=1e-6):
    """Compute the gradient of a function of one float64 array by central differences."""
    steps = eps * np.eye(x.size).reshape(x.size, *x.shape)
    return np.reshape([(function(x + step) - function(x - step)) / (2 * eps) for step in steps], x.shape)


# The gradient is that of a surrogate with fixed targets, advantages and ratios.
def test_impala_gradients_match_finite_differences():
    with jax.enable_x64(True):
        arrays = _arrays(CASES["impala"], jnp.float64)
        log_prob, b_log_prob, v_tm1, v_t, r_t, discount_t = arrays
        rho = jnp.minimum(jnp.exp(log_prob - b_log_prob), 1.0)
        errors, advantages = np.zeros((2, B, T))
        following = np.zeros(B)
        for t in reversed(range(T)):  # equation 1 as a recursion, with lambda 0.9
            delta = rho[:, t] * (r_t[:, t] + discount_t[:, t] * v_t[:, t] - v_tm1[:, t])
            q = r_t[:, t] + discount_t[:, t] * (v_t[:, t] + (0.9 * following if t + 1 < T else 0.0))
            advantages[:, t] = rho[:, t] * (q - v_tm1[:, t])
            following = errors[:, t] = delta + discount_t[:, t] * 0.9 * rho[:, t] * following
        targets = np.asarray(errors + v_tm1)
        gradient = jax.jit(jax.grad(lambda *x: _total(ls.impala_loss(*x, 0.9)), argnums=(0, 2)))(*arrays)
        by_policy = _finite_differences(lambda x: -np.mean(advantages * x), np.asarray(log_prob))
        by_value = _finite_differences(lambda x: 0.5 * np.mean((targets - x) ** 2), np.asarray(v_tm1))
        np.testing.assert_allclose(gradient[0], by_policy, rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(gradient[1], by_value, rtol=1e-5, atol=1e-9)


def test_dpg_gradient_matches_finite_differences():
    action, centre = (x.astype(np.float64) for x in CASES["dpg"].arrays)

    def value(action):  # mean over the batch of a critic
        return np.mean(np.sum(np.sin(action) * centre, axis=-1))

    with jax.enable_x64(True):
        dqda = jnp.asarray(np.cos(action) * centre)
        gradient = jax.grad(ls.dpg_loss)(jnp.asarray(action), dqda)
    np.testing.assert_allclose(gradient, -_finite_differences(value, action), rtol=1e-5, atol=1e-9)


def _batched(function, *axes):
    return jax.jit(jax.vmap(function, axes))


def test_value_losses_agree_with_rlax():
    q, q_t, selector, r, d, a = (
        *(CASES["double_q"].arrays[i] for i in (0, 1, 4, 2, 3)),
        CASES["double_q"].integers[0][1],
    )
    q, q_t, selector, r, d, a = map(jnp.asarray, (q, q_t, selector, r, d, a))

    @jax.vmap
    def rlax_losses(q, a, r, d, q_t, selector):
        q_error, double_error = rlax.q_learning(q, a, r, d, q_t), rlax.double_q_learning(q, a, r, d, q_t, selector)
        huber = functools.partial(rlax.huber_loss, delta=0.4)
        return rlax.l2_loss(q_error), huber(q_error), rlax.l2_loss(double_error), huber(double_error)

    expected = [jnp.mean(x) for x in jax.jit(rlax_losses)(q, a, r, d, q_t, selector)]
    actual = [
        ls.q_learning(q, a, r, d, q_t, 0.0),
        ls.q_learning(q, a, r, d, q_t, 0.4),
        ls.double_q_learning(q, q_t, a, r, d, selector, 0.0),
        ls.double_q_learning(q, q_t, a, r, d, selector, 0.4),
    ]
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_distributional_losses_agree_with_rlax():
    case = CASES["categorical_double_q"]
    logits, atoms, r, d, logits_t, atoms_t, selector = _arrays(case)
    a = jnp.asarray(case.integers[0][1])
    expected = _batched(rlax.categorical_double_q_learning, 0, 0, 0, 0, 0, 0, 0, 0)(
        atoms, logits, a, r, d, atoms_t, logits_t, selector
    )
    actual = ls.categorical_double_q_learning(logits, atoms, a, r, d, logits_t, atoms_t, selector)
    np.testing.assert_allclose(actual, expected, rtol=1e-4)
    td = _arrays(CASES["categorical_td"])
    expected = _batched(rlax.categorical_td_learning, 0, 0, 0, 0, 0, 0)(td[1], td[0], td[2], td[3], td[5], td[4])
    np.testing.assert_allclose(ls.categorical_td_learning(*td), expected.mean(), rtol=1e-4)
    dist, tau, r, d, dist_selector, dist_t = _arrays(CASES["quantile_q"])
    for huber in (0.0, 0.7):
        rlax_loss = _batched(functools.partial(rlax.quantile_q_learning, huber_param=huber), 0, 0, 0, 0, 0, 0, 0)
        expected = rlax_loss(dist, tau, a, r, d, dist_selector, dist_t)
        actual = ls.quantile_q_learning(dist, tau, a, r, d, dist_selector, dist_t, huber)
        np.testing.assert_allclose(actual, expected.mean(), rtol=1e-5)


@pytest.mark.filterwarnings("ignore:Rlax:PendingDeprecationWarning")
def test_policy_losses_agree_with_rlax():
    logits, adv = jnp.asarray(_random(3)(B, A)), jnp.asarray(_random(4)(B))
    a, w = jnp.array([0, 2, 1, 1]), jnp.array([1.0, 0.5, 0.0, 2.0])
    log_prob = jax.nn.log_softmax(logits)[jnp.arange(B), a]
    expected = rlax.policy_gradient_loss(logits, a, adv, w)
    np.testing.assert_allclose(ls.policy_gradient_loss(log_prob, adv, w), expected, rtol=1e-5)
    old = log_prob - 0.3 * adv
    expected = rlax.clipped_surrogate_pg_loss(jnp.exp(log_prob - old), adv, 0.2)
    np.testing.assert_allclose(ls.ppo_clip_loss(log_prob, old, adv, 0.2), expected, rtol=1e-5)
    action, dqda = _arrays(CASES["dpg"])
    for clip in (None, 0.5):
        expected = jnp.mean(jnp.sum(jax.vmap(lambda x, g, c=clip: rlax.dpg_loss(x, g, c))(action, dqda), axis=-1))
        np.testing.assert_allclose(ls.dpg_loss(action, dqda, clip), expected, rtol=1e-4)


def test_mpo_agrees_with_rlax():
    q, adv = jnp.asarray(_random(5)(S, B)), jnp.asarray(_random(6)(B))
    temperature, project = jnp.float32(0.7), functools.partial(jnp.clip, min=1e-8)
    penalty = rlax.LagrangePenalty(temperature, jnp.float32(0.1))
    loss, weights, _ = jax.jit(lambda q: rlax.mpo_compute_weights_and_temperature_loss(q, penalty, project))(q)
    actual, actual_weights = jax.jit(ls.mpo_temperature_loss)(q, temperature, 0.1)
    np.testing.assert_allclose(actual, np.mean(loss), rtol=1e-5)
    np.testing.assert_allclose(actual_weights, weights, rtol=1e-5)
    # In most of these sizes the fraction is not a whole number of samples.
    for size, fraction in ((B, 0.5), (7, 0.5), (5, 0.3), (9, 0.9)):
        adv = jnp.asarray(_random(6)(size))
        ones = jnp.ones(size)
        weigh = functools.partial(rlax.vmpo_compute_weights_and_temperature_loss, top_k_fraction=fraction)
        expected = jax.jit(lambda x, ones, weigh=weigh: weigh(x, ones, ones, penalty, project))(adv, ones)
        actual, actual_weights = jax.jit(ls.vmpo_temperature_loss)(adv, temperature, 0.1, fraction)
        np.testing.assert_allclose(actual, expected[0], rtol=1e-5)
        np.testing.assert_allclose(actual_weights, expected[1], rtol=1e-5)
    kl = jnp.abs(adv)
    losses = jax.jit(lambda kl: rlax.compute_parametric_kl_penalty_and_dual_loss([(kl, penalty)], project))(kl)
    actual = jax.jit(ls.mpo_alpha_loss)(kl, temperature, 0.1)
    np.testing.assert_allclose(actual, [np.mean(loss) for loss in losses], rtol=1e-5)


# By hand, ratio 2, epsilon 0.2: A = 1 gives min(2, 1.2), A = -1 gives min(-2, -1.2); mean -(1.2 - 2)/2 = 0.4.
def test_ppo_clip_loss_matches_hand_computed_values():
    log_prob, old = jnp.full(2, LOG2), jnp.zeros(2)
    gae = jnp.array([1.0, -1.0])
    loss, gradient = jax.value_and_grad(ls.ppo_clip_loss)(log_prob, old, gae, 0.2)
    np.testing.assert_allclose(loss, 0.4, rtol=1e-6)
    # Clipping stops the gradient of the gain but not of the loss: d/dlogp of -(-2)/2 is 1.
    np.testing.assert_allclose(gradient, [0.0, 1.0], rtol=1e-6)


# By hand, b = (1/2, 1/2), pi = (1/4, 3/4), action 0: the ratio is 1/2, and
#   KL(b || pi) = (log(2) + log(2/3)) / 2 = log(4/3) / 2;  L = beta KL - A / 2
def test_ppo_penalty_loss_matches_hand_computed_values():
    b_pi, pi = (distrax.Categorical(probs=jnp.array([p])) for p in ([0.5, 0.5], [0.25, 0.75]))
    action = jnp.zeros(1, jnp.int32)
    loss, kl = ls.ppo_penalty_loss(pi.log_prob(action), b_pi.log_prob(action), jnp.ones(1), 3.0, pi, b_pi)
    np.testing.assert_allclose(kl, math.log(4 / 3) / 2, rtol=1e-5)
    np.testing.assert_allclose(loss, 3.0 * math.log(4 / 3) / 2 - 0.5, rtol=1e-5)


# By hand, alpha = 2, beta = 0.6, ratio 3:
#   A = 1: gain 2, drift 2 - 2 tanh(1), L = -(3 - drift) = -(1 + 2 tanh 1)
#   A = -1: log gain -log 3 < 0, no drift, L = 3;  ratio 1/3: log gain log 3, drift log 3 - 0.6 tanh(log 3 / 0.6)
def test_dpo_loss_matches_hand_computed_values():
    def loss(ratio, gae):
        return ls.dpo_loss(jnp.log(jnp.full(1, ratio)), jnp.zeros(1), jnp.full(1, gae), 2.0, 0.6)

    np.testing.assert_allclose(loss(3.0, 1.0), -(1 + 2 * math.tanh(1.0)), rtol=1e-5)
    np.testing.assert_allclose(loss(3.0, -1.0), 3.0, rtol=1e-5)
    drift = math.log(3) - 0.6 * math.tanh(math.log(3) / 0.6)
    np.testing.assert_allclose(loss(1 / 3, -1.0), 1 / 3 + drift, rtol=1e-5)


# By hand, v_old = 0, v = 1, epsilon = 0.2: G = 2 gives max(1, 1.8^2), G = 0.5 gives max(0.25, 0.09); half the mean.
def test_clipped_value_loss_matches_hand_computed_values():
    loss = ls.clipped_value_loss(jnp.ones(2), jnp.zeros(2), jnp.array([2.0, 0.5]), 0.2)
    np.testing.assert_allclose(loss, (3.24 + 0.25) / 4, rtol=1e-6)


# By hand, gamma 1/2, q = (1, 2), a = 0, r = 1, q' = (4, 6): delta = 1 + 3 - 1 = 3: 4.5 squared, 1 * (3 - 1/2) Huber;
# a selector that prefers the first action: delta = 1 + 2 - 1 = 2: 2 squared. Regularised: 9 + 0.1 * 1.
def test_value_losses_match_hand_computed_values():
    q, a, r, d, q_t = (
        jnp.array([[1.0, 2.0]]),
        jnp.zeros(1, jnp.int32),
        jnp.ones(1),
        jnp.full(1, 0.5),
        jnp.array([[4.0, 6.0]]),
    )
    np.testing.assert_allclose(ls.q_learning(q, a, r, d, q_t, 0.0), 4.5)
    np.testing.assert_allclose(ls.q_learning(q, a, r, d, q_t, 1.0), 2.5)
    np.testing.assert_allclose(ls.double_q_learning(q, q_t, a, r, d, jnp.array([[1.0, 0.0]]), 0), 2.0)
    np.testing.assert_allclose(ls.td_learning(q[:, 0], r, d, q_t[:, 1], 0.0), 4.5)
    np.testing.assert_allclose(ls.dqn_reg_loss(q, a, r, d, q_t), 9.1, rtol=1e-6)
    np.testing.assert_allclose(ls.cql_penalty(q, a), math.log(math.e + math.e**2) - 1.0, rtol=1e-6)


# By hand, tau = 1, q_target = (0, 0): tau log pi = -log 2; soft value of (0, 0) is log 2.
#   delta = 1 - log 2 / 2 + log 2 - 0 with alpha = 1/2 and gamma = 1; clipped at -0.5: 1 - 0.25 + log 2
def test_munchausen_loss_matches_hand_computed_values():
    zeros, a, one = jnp.zeros((1, 2)), jnp.zeros(1, jnp.int32), jnp.ones(1)
    loss = functools.partial(ls.munchausen_q_learning, zeros, zeros, a, one, one, zeros, 1.0, 0.5)
    np.testing.assert_allclose(loss(-1.0, 0.0), (1 + LOG2 / 2) ** 2 / 2, rtol=1e-6)
    np.testing.assert_allclose(loss(-0.5, 0.0), (0.75 + LOG2) ** 2 / 2, rtol=1e-6)
    # Without the bonus, a temperature near zero gives Q-learning.
    q, r, d, q_t = (jnp.asarray(x) for x in CASES["q_learning"].arrays)
    a = jnp.asarray(CASES["q_learning"].integers[0][1])
    soft = ls.munchausen_q_learning(q, q, a, r, d, q_t, 1e-4, 0.0, -1.0, 0.0)
    np.testing.assert_allclose(soft, ls.q_learning(q, a, r, d, q_t, 0.0), rtol=1e-3)


# By hand, support (0, 1, 2), target atoms (0.5, 3) with probabilities (1/2, 1/2):
#   0.5 lies halfway: 1/4 each to 0 and 1; 3 is clipped to 2: 1/2. Uniform prediction: cross-entropy log 3.
def test_projection_matches_hand_computed_values():
    projected = distributional._project(jnp.array([[0.5, 3.0]]), jnp.full((1, 2), 0.5), jnp.array([[0.0, 1.0, 2.0]]))
    np.testing.assert_allclose(projected, [[0.25, 0.25, 0.5]])
    support = jnp.array([[0.0, 1.0, 2.0]])
    zeros = jnp.zeros((1, 3))
    loss = ls.categorical_td_learning(zeros, support, jnp.full(1, 0.5), jnp.ones(1), zeros, support)
    np.testing.assert_allclose(loss, math.log(3), rtol=1e-6)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000))
def test_projection_preserves_mass_and_mean(seed):
    rng = np.random.default_rng(seed)
    support = jnp.asarray(np.sort(rng.normal(size=(2, K)), axis=-1), jnp.float32)  # uneven gaps
    low, high = support[:, :1], support[:, -1:]
    atoms = low + (high - low) * jnp.asarray(rng.random((2, M)), jnp.float32)
    probs = jax.nn.softmax(jnp.asarray(rng.normal(size=(2, M)), jnp.float32))
    projected = jax.jit(distributional._project)(atoms, probs, support)
    np.testing.assert_allclose(projected.sum(-1), 1.0, rtol=1e-4)
    np.testing.assert_allclose((projected * support).sum(-1), (probs * atoms).sum(-1), rtol=1e-3, atol=1e-4)


def test_a_single_atom_has_zero_loss_and_gradient():
    one = jnp.ones((B, 1))
    loss, gradient = jax.value_and_grad(ls.categorical_td_learning)(one, one, jnp.ones(B), jnp.ones(B), one, one)
    assert loss == 0.0
    assert not gradient.any()


# With two distant atoms the softmax has one free parameter, the probability p of the upper atom. The loss is minimal,
# and its gradient zero, where the mean of the prediction is the TD target.
def test_the_gradient_of_two_atoms_vanishes_at_the_td_target():
    atoms = jnp.array([[-10.0, 10.0]])
    p_t, r, d = 0.7, 1.0, 0.9
    target_mean = r + d * (10.0 * p_t - 10.0 * (1 - p_t))
    p = (target_mean + 10.0) / 20.0
    logits, logits_t = (jnp.log(jnp.array([[1 - x, x]])) for x in (p, p_t))
    gradient = jax.grad(ls.categorical_td_learning)(logits, atoms, jnp.full(1, r), jnp.full(1, d), logits_t, atoms)
    np.testing.assert_allclose(gradient, 0.0, atol=1e-6)


# By hand, source 0 at tau 0.25, targets (1, -1): weights (0.25, 0.75), absolute loss 0.5; with Huber 2, half of it.
def test_quantile_regression_loss_matches_hand_computed_values():
    loss = functools.partial(
        ls.quantile_regression_loss, jnp.zeros((1, 1)), jnp.full((1, 1), 0.25), jnp.array([[1.0, -1.0]])
    )
    np.testing.assert_allclose(loss(), [0.5])
    np.testing.assert_allclose(loss(2.0), [0.25])
    dist, tau, r, d, selector, dist_t = _arrays(CASES["quantile_q"])
    a = jnp.asarray(CASES["quantile_q"].integers[0][1])
    args = (dist, tau, a, r, d, selector, dist_t)
    np.testing.assert_allclose(
        ls.implicit_quantile_q_learning(*args, 0.5), 2.0 * ls.quantile_q_learning(*args, 0.5), rtol=1e-6
    )
    np.testing.assert_allclose(ls.implicit_quantile_q_learning(*args, 0.0), ls.quantile_q_learning(*args, 0.0))


# By hand: both critics together have the quantiles 1, 2, 3, 4; without one each, 1 and 2 remain.
# With r = 1, gamma 1/2, temperature 2 and log pi = -1, y = 1 + (1 + 2)/2 = 2.5 and 1 + (2 + 2)/2 = 3. The first critic
# is at 2.5 with errors (0, 1/2), the second one at 4 with errors (-3/2, -1), all weighted by 1/2: 1/8 + 5/8 = 3/4.
def test_truncated_quantile_critics_match_hand_computed_values():
    target = ls.truncate_quantiles(jnp.array([[[1.0, 4.0], [3.0, 2.0]]]), 1)
    np.testing.assert_array_equal(target, [[1.0, 2.0]])
    online, tau = jnp.array([[[2.5, 4.0]]]), jnp.full((1, 1), 0.5)
    loss = ls.quantile_critic_loss(online, tau, jnp.ones(1), jnp.full(1, 0.5), target, -jnp.ones(1), 2.0, 0.0)
    np.testing.assert_allclose(loss, 0.75)


# By hand, atoms -1, 0, 1 with edges -1.5, -0.5, 0.5, 1.5, and a deviation of 0.5: the target 0 is N(0, 0.5), whose
# probabilities are P(-1 < z < 1) = 0.68269 in the middle and P(1 < z < 3) = 0.15731 on either side, 0.99730 in all.
# The target 3 is clipped to 1, whose probabilities are P(-5 < z < -3) = 0.00135, P(-3 < z < -1) = 0.15731 and
# P(-1 < z < 1) = 0.68269, 0.84134 in all.
def test_the_smoothed_target_matches_hand_computed_probabilities():
    atoms, target = jnp.tile(jnp.array([-1.0, 0.0, 1.0]), (2, 1)), jnp.array([0.0, 3.0])
    probs = np.array([[0.15731, 0.68269, 0.15731], [0.00135, 0.15731, 0.68269]]) / [[0.99730], [0.84134]]
    logits = jnp.array([[1.0, 0.0, -2.0], [0.5, 1.0, 0.0]])
    gradient = jax.grad(ls.hl_gauss_loss)(logits, atoms, target, 0.5)
    # The gradient of a cross-entropy is softmax(logits) - p, divided by the batch size.
    np.testing.assert_allclose(jax.nn.softmax(logits) - 2.0 * gradient, probs, atol=2e-5)


def test_truncated_quantiles_are_the_smallest_in_ascending_order():
    """Also of equal ones: values are multiples of 1/2."""
    quantiles = jnp.round(2.0 * jax.random.normal(jax.random.key(0), (16, 9, 2))) / 2.0
    expected = np.sort(np.asarray(quantiles).reshape(16, -1), axis=-1)[:, :14]
    np.testing.assert_array_equal(ls.truncate_quantiles(quantiles, 2), expected)


@pytest.mark.parametrize("name", ["q_learning", "quantile_q"])
@pytest.mark.parametrize("parameter", [0.0, 0.4])
def test_the_huber_parameter_may_vary_over_a_population(name, parameter):
    case = CASES[name]
    arrays = _arrays(case)
    members = jax.jit(jax.vmap(lambda p: case(*arrays, p)))(jnp.array([0.0, 0.4]))
    np.testing.assert_allclose(members[int(parameter > 0)], case(*arrays, parameter), rtol=1e-6)


# By hand, critics (1, 3) with targets min(4, 2) = 2, gamma 1/2, r = 1: y = 2, errors (1, -1): L = (1 + 1)/2 = 1.
# With temperature 2 and log pi = -1: y = 1 + (2 + 2)/2 = 3, errors (2, 0): L = 2.
def test_actor_critic_losses_match_hand_computed_values():
    q, r, d, q_t = jnp.array([[1.0, 3.0]]), jnp.ones(1), jnp.full(1, 0.5), jnp.array([[4.0, 2.0]])
    np.testing.assert_allclose(ls.td3_critic_loss(q, r, d, q_t), 1.0)
    np.testing.assert_allclose(ls.sac_critic_loss(q, r, d, q_t, -jnp.ones(1), 2.0), 2.0)
    np.testing.assert_allclose(ls.sac_critic_loss(q, r, d, q_t, -jnp.ones(1), 0.0), 1.0)
    np.testing.assert_allclose(ls.sac_actor_loss(-jnp.ones(1), q_t, 2.0), -4.0)
    # Entropy 1 is below the target 3: L = -2 * (-1 + 3), and gradient descent raises the temperature.
    loss, gradient = jax.value_and_grad(ls.sac_temperature_loss)(jnp.float32(LOG2), -jnp.ones(1), 3.0)
    np.testing.assert_allclose((loss, gradient), (-4.0, -4.0), rtol=1e-6)
    single = ls.td3_critic_loss(q[:, :1], r, d, q_t[:, :1])
    np.testing.assert_allclose(single, ls.td_learning(q[:, 0], r, d, q_t[:, 0], 0.0))


def test_target_policy_smoothing_clips_noise_and_actions():
    action, key = jnp.array([[0.0, 0.95], [-1.0, 0.3]]), jax.random.key(0)
    noiseless = ls.target_policy_smoothing(key, action, 0.0, 0.5, -1.0, 1.0)
    np.testing.assert_array_equal(noiseless, action)
    noisy = ls.target_policy_smoothing(key, action, 10.0, 0.5, jnp.array([-1.0, -0.9]), jnp.array([1.0, 0.9]))
    assert (jnp.abs(noisy - action) <= 0.5 + 1e-6).all()
    assert (noisy[:, 1] <= 0.9).all()
    assert (noisy >= -1.0).all()
    assert not jnp.array_equal(noisy, action)


# By hand, gradients (3, 4) of norm 5: L = 25/2 and dL/da = -(3, 4); clipped to norm 1: L = 1/2, -(0.6, 0.8).
def test_dpg_loss_matches_hand_computed_values():
    action, dqda = jnp.ones((1, 2)), jnp.array([[3.0, 4.0]])
    loss, gradient = jax.value_and_grad(ls.dpg_loss)(action, dqda)
    np.testing.assert_allclose(loss, 12.5)
    np.testing.assert_allclose(gradient, -dqda)
    loss, gradient = jax.value_and_grad(ls.dpg_loss)(action, dqda, 1.0)
    np.testing.assert_allclose(loss, 0.5, rtol=1e-5)
    np.testing.assert_allclose(gradient, -dqda / 5.0, rtol=1e-5)
    assert ls.dpg_loss(action, jnp.zeros((1, 2)), 1.0) == 0.0


# By hand: log pi = (-1, -2), G - b = (2, -1): L = -(-2 + 2)/2 = 0, gradient -(2, -1)/2.
# AWR with beta = 1, weights (exp 0, min(exp 9, 20)): L = (1 + 40)/2.
def test_policy_gradient_losses_match_hand_computed_values():
    log_prob = jnp.array([-1.0, -2.0])
    loss, gradient = jax.value_and_grad(ls.reinforce_loss)(log_prob, jnp.array([3.0, 0.0]), jnp.ones(2))
    np.testing.assert_allclose(loss, 0.0)
    np.testing.assert_allclose(gradient, [-1.0, 0.5])
    np.testing.assert_allclose(ls.awr_loss(log_prob, jnp.array([0.0, 9.0]), 1.0), 20.5, rtol=1e-6)
    np.testing.assert_allclose(ls.baseline_loss(jnp.zeros(2), jnp.array([1.0, 3.0])), 2.5)


# By hand, one step, gamma = 1, on policy: advantage = error = r + v' - v = 1 + 2 - 1 = 2.
def test_impala_loss_matches_hand_computed_values_in_both_layouts():
    one = jnp.ones((1, 1))
    policy, value = ls.impala_loss(-3.0 * one, -3.0 * one, one, 2.0 * one, one, one)
    np.testing.assert_allclose((policy, value), (6.0, 2.0))
    arrays = _arrays(CASES["impala"])
    truncation = jnp.arange(B * T).reshape(B, T) % 2 == 0
    expected = ls.impala_loss(*arrays, truncation_t=truncation)
    actual = ls.impala_loss(*(x.T for x in arrays), truncation_t=truncation.T, time_major=True)
    np.testing.assert_allclose(actual, expected, rtol=1e-5)


# By hand, eta = 1, q = (log 1, log 3): weights (1/4, 3/4), L = eps + log 2. V-MPO keeps the larger half: weight
# 1, L = eps + log 3. With a prior proportional to (3, 1), p = (3/4, 1/4): weights (1/2, 1/2), L = eps + log(3/2).
def test_mpo_losses_match_hand_computed_values():
    q, eta = jnp.log(jnp.array([1.0, 3.0])), jnp.float32(1.0)
    loss, weights = ls.mpo_temperature_loss(q[:, None], eta, 0.5)
    np.testing.assert_allclose(loss, 0.5 + LOG2, rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.25], [0.75]], rtol=1e-6)
    np.testing.assert_allclose(ls.mpo_policy_loss(jnp.array([[-4.0], [-8.0]]), weights), 7.0, rtol=1e-6)
    loss, weights = ls.mpo_temperature_loss(q[:, None], eta, 0.5, jnp.log(jnp.array([[3.0], [1.0]])))
    np.testing.assert_allclose(loss, 0.5 + math.log(1.5), rtol=1e-6)
    np.testing.assert_allclose(weights, [[0.5], [0.5]], rtol=1e-6)
    loss, weights = ls.vmpo_temperature_loss(q, eta, 0.5)
    np.testing.assert_allclose(loss, 0.5 + math.log(3), rtol=1e-6)
    np.testing.assert_allclose(weights, [0.0, 1.0], rtol=1e-6)
    np.testing.assert_allclose(ls.vmpo_policy_loss(jnp.array([-4.0, -8.0]), weights), 8.0, rtol=1e-6)
    # With the whole batch, V-MPO equals MPO with the batch as samples.
    whole = ls.vmpo_temperature_loss(q, eta, 0.5, 1.0)
    np.testing.assert_allclose(whole[0], 0.5 + LOG2, rtol=1e-6)
    penalty, dual = ls.mpo_alpha_loss(jnp.array([1.0, 3.0]), jnp.float32(0.5), 0.1)
    np.testing.assert_allclose((penalty, dual), (1.0, 0.5 * (0.1 - 2.0)), rtol=1e-6)


def test_vmpo_uses_the_whole_mapped_batch():
    adv, eta = jnp.asarray(_random(7)(2, 4)), jnp.float32(0.7)
    loss, weights = ls.vmpo_temperature_loss(adv.reshape(-1), eta, 0.1)
    mapped = jax.vmap(lambda x: ls.vmpo_temperature_loss(x, eta, 0.1, axis_names=("batch",)), axis_name="batch")(adv)
    np.testing.assert_allclose(mapped[0], jnp.stack([loss, loss]), rtol=1e-6)
    np.testing.assert_allclose(mapped[1].reshape(-1), weights, rtol=1e-5)


def test_the_mapped_mean_of_the_vmpo_policy_loss_is_the_unmapped_loss():
    adv, x = (jnp.asarray(_random(seed)(2, 3, 4)) for seed in (7, 8))

    def policy_loss(parameter, x, adv, axis_names=()):
        weights = ls.vmpo_temperature_loss(adv, jnp.float32(0.7), 0.1, axis_names=axis_names)[1]
        return ls.vmpo_policy_loss(-jnp.square(x - parameter), weights, axis_names)

    axes = ("device", "batch")

    def shard_loss(x, adv):
        return jax.lax.pmean(jax.value_and_grad(policy_loss)(jnp.float32(0.3), x, adv, axes), axes)

    mapped = jax.jit(jax.vmap(jax.vmap(shard_loss, axis_name="batch"), axis_name="device"))(x, adv)
    expected = jax.value_and_grad(policy_loss)(jnp.float32(0.3), x.reshape(-1), adv.reshape(-1))
    for actual, one in zip(mapped, expected, strict=True):
        np.testing.assert_allclose(actual, jnp.full((2, 3), one), rtol=1e-5)


# Uniform samples in [0, 2] have density 1/2: log(mean exp(q + log 2)) - q = log 2 for constant q.
def test_sampled_cql_penalty_matches_hand_computed_values():
    penalty = ls.sampled_cql_penalty(jnp.full((S, 1), 3.0), jnp.full((S, 1), -LOG2), jnp.full(1, 3.0))
    np.testing.assert_allclose(penalty, LOG2, rtol=1e-5)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), scale=st.floats(0.125, 8.0, width=32))
def test_losses_scale_with_the_unit_of_reward(seed, scale):
    new, old, gae = (jnp.asarray(_random(seed)(B)) for _ in range(3))
    # The surrogate loss is linear in the unit of reward, the squared loss quadratic.
    np.testing.assert_allclose(
        ls.ppo_clip_loss(new, old, scale * gae, 0.2), scale * ls.ppo_clip_loss(new, old, gae, 0.2), rtol=1e-4, atol=1e-5
    )
    values = ls.clipped_value_loss(scale * new, scale * old, scale * gae, scale * 0.2)
    np.testing.assert_allclose(values, scale**2 * ls.clipped_value_loss(new, old, gae, 0.2), rtol=1e-4)
    reshaped = ls.ppo_clip_loss(new.reshape(2, 2), old.reshape(2, 2), gae.reshape(2, 2), 0.2)
    np.testing.assert_allclose(reshaped, ls.ppo_clip_loss(new, old, gae, 0.2), rtol=1e-5, atol=1e-6)


def test_surrogate_losses_have_the_policy_gradient_at_the_behaviour_policy():
    log_prob, gae = jnp.asarray(_random(8)(B)), jnp.asarray(_random(9)(B))
    expected = jax.grad(ls.policy_gradient_loss)(log_prob, gae)
    for loss in (ls.ppo_clip_loss, lambda *x: ls.dpo_loss(*x, 0.6)):
        np.testing.assert_allclose(jax.grad(loss)(log_prob, log_prob, gae, 0.2), expected, rtol=1e-5)


def test_the_probability_ratio_is_linear_where_it_would_overflow():
    ratio = jax.vmap(jax.value_and_grad(probability_ratio), (0, None))
    values, slopes = ratio(jnp.array([0.0, 19.9, 20.1, 100.0, 1e4]), jnp.float32(0.0))
    assert np.isfinite(values).all()
    assert (jnp.diff(values) > 0).all()
    np.testing.assert_allclose(slopes[:2], values[:2], rtol=1e-5)
    np.testing.assert_allclose(slopes[2:], math.exp(20.0), rtol=1e-5)


def test_losses_per_example_match_hand_computed_values():
    # Errors 1 and 3: half their squares are 1/2 and 9/2.
    v_tm1, target, zeros = jnp.array([0.0, 1.0]), jnp.array([1.0, 4.0]), jnp.zeros(2)
    arguments = (v_tm1, target, zeros, zeros, 0.0)
    np.testing.assert_allclose(ls.td_learning_per_example(*arguments), [0.5, 4.5])
    assert ls.td_learning(*arguments) == 2.5


PER_EXAMPLE = [name.removesuffix("_per_example") for name in ls.__all__ if name.endswith("_per_example")]


@pytest.mark.parametrize("name", PER_EXAMPLE)
def test_the_loss_of_an_example_equals_that_of_a_batch_of_one(name):
    # Arguments are random arrays of the annotated shapes.
    mean, per_example = jax.jit(getattr(ls, name)), jax.jit(getattr(ls, f"{name}_per_example"))
    shapes = {"*B": (B,), "B": (B,), "B A": (B, A), "B C": (B, C), "B atoms": (B, K), "B atoms_t": (B, K)}
    shapes |= {"B quantiles": (B, K), "B quantiles A": (B, K, A), "B quantiles_t A": (B, K, A)}
    shapes |= {"B quantiles_selector A": (B, K, A), "B quantiles C": (B, K, C), "B quantiles_t": (B, K)}
    batched, others = {}, {}
    for seed, (argument, hint) in enumerate(inspect.get_annotations(mean, eval_str=True).items()):
        if argument == "return":
            continue
        dims = getattr(hint, "dim_str", None)
        if dims is None:
            others[argument] = 0.7
        elif argument == "a_tm1":
            batched[argument] = np.arange(B, dtype=np.int32) % A
        elif "atoms_tm1" in argument or "atoms_t" in argument:
            batched[argument] = np.tile(np.linspace(-2.0, 2.0, K, dtype=np.float32), (B, 1))
        else:
            batched[argument] = _random(seed)(*shapes[dims])
    losses = np.asarray(per_example(**batched, **others))
    assert losses.shape == (B,)
    np.testing.assert_allclose(mean(**batched, **others), losses.mean(), rtol=1e-6)
    for index in range(B):
        alone = {argument: values[index : index + 1] for argument, values in batched.items()}
        np.testing.assert_allclose(mean(**alone, **others), losses[index], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [(0.53, 53), (0.29, 29), (0.58, 58), (0.535, 53), (1 / 3, 33), (0.999, 99), (0.0, 1), (1.0, 100)],
)
def test_vmpo_keeps_the_fraction_of_decimal_arithmetic(fraction, kept):
    """In float32, 0.53 * 100 is 52.999996."""
    adv = jnp.asarray(np.random.default_rng(0).permutation(100), jnp.float32)
    weights = jax.jit(ls.vmpo_temperature_loss)(adv, jnp.float32(1e3), 0.1, fraction)[1]
    assert int((weights > 0).sum()) == kept


def test_the_divergence_estimate_is_bounded_like_the_ratio():
    """By hand, r - 1 - log r: 1 - log 2 for r = 2; exp(88.8) overflows; a log-ratio of -50 gives 49."""
    zeros = jnp.zeros(1)
    np.testing.assert_allclose(ls.approximate_kl(jnp.full(1, LOG2), zeros), 1 - LOG2, rtol=1e-6)
    np.testing.assert_allclose(ls.approximate_kl(jnp.full(1, -50.0), zeros), 49.0, rtol=1e-6)
    for log_ratio in (89.0, 1e4, 3e38, -3e38):
        assert jnp.isfinite(ls.approximate_kl(jnp.full(8, log_ratio), jnp.zeros(8))), log_ratio


# The others have a single array with a batch.
SEVERAL_ARRAYS = [
    name
    for name, case in CASES.items()
    if not name.startswith(("mpo_temp", "mpo_alpha", "vmpo_temp", "sac_temp", "ppo_penalty"))
]


@pytest.mark.parametrize("name", SEVERAL_ARRAYS)
@pytest.mark.usefixtures("without_type_checks")
def test_arrays_that_would_broadcast_are_refused(name):
    """`[B, 1]` in place of `[B]`, one column in place of several, one example in place of a batch."""
    case, arrays = CASES[name], _arrays(CASES[name])
    for position, x in enumerate(arrays):
        # The last axis of these may have any size, one included.
        any_size = name in {"quantile_regression", "quantile_critic", "cql", "sac_actor"}
        for wrong in (x[..., None],) if any_size else (x[..., None], x[..., :1]):
            with pytest.raises(ValueError, match=r"\.shape=.* must be \["):
                case(*arrays[:position], wrong, *arrays[position + 1 :], *case.numbers)


@pytest.mark.usefixtures("without_type_checks")
def test_shapes_are_checked_while_tracing():
    loss = jax.jit(functools.partial(ls.ppo_clip_loss, epsilon=0.2))
    with pytest.raises(ValueError, match=r"gae_t\.shape=\(4, 1\) must be \[\*B\], where \*B = \(4,\)"):
        loss.lower(jnp.zeros(4), jnp.zeros(4), jnp.zeros((4, 1)))
