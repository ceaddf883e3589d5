import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rlax
from jax.sharding import AxisType, PartitionSpec

from stoix_like.utils import multistep as ms
from support.compiled import run

B, T, A = 3, 6, 2


class Batch(NamedTuple):
    """Random data `[B, T, ...]`, or `[T, B, ...]` once transposed."""

    r_t: np.ndarray
    discount_t: np.ndarray
    v_tm1: np.ndarray
    v_t: np.ndarray
    q_tm1: np.ndarray
    q_next: np.ndarray  # value of the action taken at the successor; the last entry is unused
    log_rho: np.ndarray  # of the action at tm1
    q_t: np.ndarray
    pi_t: np.ndarray
    truncation_t: np.ndarray


@functools.cache
def make_batch(seed=0, batch=B, time=T):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape).astype(np.float32)

    values = normal(batch, time + 1)
    discount = np.float32(0.9 * (rng.random((batch, time)) > 0.2))
    return Batch(
        r_t=normal(batch, time),
        discount_t=discount,
        v_tm1=values[:, :-1],
        v_t=values[:, 1:],
        q_tm1=normal(batch, time),
        q_next=normal(batch, time),
        log_rho=normal(batch, time),
        q_t=normal(batch, time, A),
        pi_t=rng.dirichlet(np.ones(A), (batch, time)).astype(np.float32),
        truncation_t=np.zeros((batch, time), bool),
    )


def _but_last(x, time_major):
    return x[:-1] if time_major else x[:, :-1]


def _but_first(x, time_major):
    return x[1:] if time_major else x[:, 1:]


# Every batch function, as f(batch, lambda_, **keywords) -> arrays [B, T].
def _gae(b, lambda_, **kw):
    return ms.batch_truncated_generalized_advantage_estimation(
        b.r_t, b.discount_t, lambda_, v_tm1=b.v_tm1, v_t=b.v_t, truncation_t=b.truncation_t, **kw
    )


def _n_step(b, lambda_, associative=False, **kw):
    return ms.batch_n_step_bootstrapped_returns(
        b.r_t, b.discount_t, b.v_t, 3, lambda_, truncation_t=b.truncation_t, **kw
    )


def _off_policy(b, lambda_, time_major=False, **kw):
    q = _but_last(b.q_next, time_major)
    c = jnp.exp(jnp.minimum(_but_first(b.log_rho, time_major), 0.0)) * lambda_
    return ms.batch_general_off_policy_returns_from_q_and_v(
        q, b.v_t, b.r_t, b.discount_t, c, truncation_t=b.truncation_t, time_major=time_major, **kw
    )


def _retrace(b, lambda_, time_major=False, **kw):
    q, log_rhos = _but_last(b.q_next, time_major), _but_first(b.log_rho, time_major)
    arrays = b.q_tm1, q, b.v_t, b.r_t, b.discount_t, log_rhos, lambda_
    return ms.batch_retrace_continuous(*arrays, truncation_t=b.truncation_t, time_major=time_major, **kw)


def _lambda_returns(b, lambda_, **kw):
    return ms.batch_lambda_returns(b.r_t, b.discount_t, b.v_t, lambda_, truncation_t=b.truncation_t, **kw)


def _discounted(b, lambda_, **kw):
    return ms.batch_discounted_returns(b.r_t, b.discount_t, b.v_t, truncation_t=b.truncation_t, **kw)


def _q_lambda(b, lambda_, **kw):
    return ms.batch_q_lambda(b.r_t, b.discount_t, b.q_t, lambda_, truncation_t=b.truncation_t, **kw)


def _peng(b, lambda_, **kw):
    return ms.batch_peng_q_lambda(b.r_t, b.discount_t, b.q_t, b.pi_t, lambda_, truncation_t=b.truncation_t, **kw)


def _vtrace(b, lambda_, **kw):
    return ms.batch_vtrace(
        b.v_tm1, b.v_t, b.r_t, b.discount_t, jnp.exp(b.log_rho), lambda_, truncation_t=b.truncation_t, **kw
    )


def _vtrace_full(b, lambda_, **kw):
    return tuple(
        ms.batch_vtrace_td_error_and_advantage(
            b.v_tm1, b.v_t, b.r_t, b.discount_t, jnp.exp(b.log_rho), lambda_, truncation_t=b.truncation_t, **kw
        )
    )


def _importance(b, lambda_, time_major=False, **kw):
    """Apply the function of one trajectory to a batch by vmap."""

    def one(r_t, discount_t, log_rho, v_tm1, v_t, truncation_t):
        # `v_t` holds the values of the successors, so the last entry of `values` is unused.
        values, rho = jnp.append(v_tm1, jnp.zeros_like(v_tm1[:1])), jnp.exp(log_rho)
        return ms.importance_corrected_td_errors(r_t, discount_t, rho, lambda_, values, truncation_t, v_t=v_t, **kw)

    axis = 1 if time_major else 0
    arrays = b.r_t, b.discount_t, b.log_rho, b.v_tm1, b.v_t, b.truncation_t
    return jax.vmap(one, in_axes=axis, out_axes=axis)(*arrays)


FUNCTIONS = [_gae, _n_step, _off_policy, _retrace, _lambda_returns, _discounted, _q_lambda, _peng, _vtrace]
FUNCTIONS += [_vtrace_full, _importance]
by_function = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__[1:])


@functools.cache
def alone(function, **kw):
    return jax.jit(functools.partial(function, **kw))


@functools.cache
def together(functions, **kw):
    """Return one program of several functions, which costs little more than that of one."""
    return jax.jit(lambda b, lambda_: [function(b, lambda_, **kw) for function in functions])


def compiled(function, functions=tuple(FUNCTIONS), **kw):
    """Return a function from a program that it shares with others."""
    return lambda b, lambda_: together(functions, **kw)(b, lambda_)[functions.index(function)]


def assert_close(actual, expected, **kw):
    jax.tree.map(lambda a, e: np.testing.assert_allclose(a, e, rtol=2e-5, atol=2e-5, **kw), actual, expected)


def with_truncations(b, seed=1):
    return b._replace(truncation_t=np.random.default_rng(seed).random(b.r_t.shape) < 0.4)


swapped = functools.partial(jax.tree.map, lambda x: np.swapaxes(x, 0, 1))
gae = jax.jit(ms.batch_truncated_generalized_advantage_estimation, static_argnames="time_major")


# By hand, gamma = lambda = 1/2, r = (1, 2, 3), v = (1, 2, 4, 8):
#   delta = r + v'/2 - v = (1, 2, 3);  A_3 = 3,  A_2 = 2 + 3/4 = 2.75,  A_1 = 1 + 2.75/4 = 1.6875
#   truncated after step 2: A_2 = delta_2 = 2, A_1 = 1 + 2/4 = 1.5, and A_3 as before
#   terminated after step 2: delta_2 = 2 - 2 = 0, A_2 = 0, A_1 = 1
@pytest.mark.parametrize(
    ("terminated", "truncated", "expected"),
    [(False, False, [1.6875, 2.75, 3.0]), (False, True, [1.5, 2.0, 3.0]), (True, False, [1.0, 0.0, 3.0])],
)
def test_gae_matches_hand_computed_values(terminated, truncated, expected):
    rewards, values = np.float32([[1.0, 2.0, 3.0]]), np.float32([[1.0, 2.0, 4.0, 8.0]])
    discount = np.float32([[0.5, 0.0 if terminated else 0.5, 0.5]])
    advantage, target = gae(rewards, discount, 0.5, values=values, truncation_t=np.array([[False, truncated, False]]))
    np.testing.assert_allclose(advantage, [expected])
    np.testing.assert_allclose(target, np.add([expected], values[:, :-1]))


# By hand, gamma = 1/2, r = (1, 2, 4), v = (2, 4, 8):
#   one step: (1 + 1, 2 + 2, 4 + 4) = (2, 4, 8); two steps: (1 + 4/2, 2 + 8/2, 8) = (3, 6, 8)
#   lambda = 1/2: G_3 = 8, G_2 = 2 + (4/2 + 8/2)/2 = 5, G_1 = 1 + (2/2 + 5/2)/2 = 2.75
#   discounted: G_3 = 8, G_2 = 6, G_1 = 4
def test_returns_match_hand_computed_values():
    @jax.jit
    def results(r, discount, v):
        n_step = [ms.batch_n_step_bootstrapped_returns(r, discount, v, n) for n in (1, 2)]
        discounted = [ms.batch_discounted_returns(r, discount, bootstrap) for bootstrap in (v, 8.0, v[:, -1])]
        q = jnp.stack([v, v - 1.0], axis=-1)
        by_lambda = ms.batch_lambda_returns(r, discount, v, 0.5), ms.batch_q_lambda(r, discount, q, 0.5)
        return *n_step, *discounted, *by_lambda, ms.batch_peng_q_lambda(r, discount, q, jnp.full_like(q, 0.5), 0.5)

    found = results(*np.float32([[[1, 2, 4]], [[0.5] * 3], [[2, 4, 8]]]))
    expected = [[2.0, 4.0, 8.0], [3.0, 6.0, 8.0], *[[4.0, 6.0, 8.0]] * 3, *[[2.75, 5.0, 8.0]] * 2]
    # A uniform policy has the mean value v - 1/2: G_3 = 7.75, G_2 = 2 + (3.5 + 7.75)/4, G_1 = 1 + (1.5 + G_2)/4.
    np.testing.assert_allclose(found, [[row] for row in (*expected, [2.578125, 4.8125, 7.75])])


# By hand, gamma = 1, r = (1, 1), v = (0, 0), q = 3, c = 1/2: G_2 = 1, G_1 = 1 + (0 - 3/2 + 1/2) = 0.
# Retrace with log rho = log 1/2 has that c; with a ratio above 1 it has c = 1: G_1 = 1 - 3 + 1 = -1.
def test_off_policy_returns_match_hand_computed_values():
    @jax.jit
    def results(ones, v, q_tm1, q, half):
        retrace = functools.partial(ms.batch_retrace_continuous, q_tm1, q, v, ones, ones, lambda_=1.0)
        returns = ms.batch_general_off_policy_returns_from_q_and_v(q, v, ones, ones, half)
        return returns, retrace(log_rhos=jnp.log(half)), retrace(log_rhos=q)

    found = results(*np.float32([[[1, 1]], [[0, 0]], [[1, 2]]]), *np.float32([[[3]], [[0.5]]]))
    np.testing.assert_allclose(found, [[[0.0, 1.0]], [[-1.0, -1.0]], [[-2.0, -1.0]]])


# By hand, gamma = 1, r = (1, 1), v = 0, rho = (1/2, 4):
#   delta = (1/2, 1) after clipping; error_2 = 1, error_1 = 1/2 + min(1, 1/2) * 1 = 1
#   q = (1 + error_2, 1) = (2, 1); A = (2/2, 1) = (1, 1), with a policy-gradient threshold of 2: (1, 2)
# Ratios of 4 are at most 2 in errors, 1 in traces and 3 in advantages: errors 2 + 2 and 2, advantages 3 x 3 and 3.
@pytest.mark.parametrize(
    ("rho", "thresholds", "expected"),
    [
        ([0.5, 4.0], {"clip_pg_rho_threshold": 2.0}, ([1.0, 1.0], [1.0, 2.0], [2.0, 1.0])),
        ([4.0, 4.0], {"clip_rho_threshold": 2.0, "clip_pg_rho_threshold": 3.0}, ([4.0, 2.0], [9.0, 3.0], [3.0, 1.0])),
    ],
)
def test_vtrace_matches_hand_computed_values(rho, thresholds, expected):
    zeros, ones, rho = np.float32([[[0.0, 0.0]], [[1.0, 1.0]], [rho]])
    vtrace = functools.partial(ms.batch_vtrace_td_error_and_advantage, **thresholds)
    found = jax.jit(vtrace)(zeros, zeros, ones, ones, rho)
    for leaf, row in zip((found.errors, found.pg_advantage, found.q_estimate), expected, strict=True):
        np.testing.assert_allclose(leaf, [row])


# By hand, gamma = 1, lambda = 1/2, r = (1, 1), values = 0, rho = (2, 3):
#   D_2 = 1, D_1 = 1 + 3/2 * 1 = 2.5; errors = (2 * 2.5, 3 * 1) = (5, 3); truncated after step 1: D_1 = 1, error 2
#   with v_t = (4, 0): D_1 = 5 when truncated, error 10
def test_importance_corrected_errors_match_hand_computed_values():
    @jax.jit
    def results(ones, rho, truncated, v_t):
        errors = functools.partial(ms.importance_corrected_td_errors, ones, ones, rho, 0.5, jnp.zeros(3))
        plain = errors(), errors(associative=True, stop_target_gradients=True)
        return *plain, errors(truncated), errors(truncated.astype(jnp.float32)), errors(truncated, v_t=v_t)

    found = results(*np.float32([[1, 1], [2, 3]]), np.array([True, False]), np.float32([4, 0]))
    np.testing.assert_allclose(found, [*[[5.0, 3.0]] * 2, *[[2.0, 3.0]] * 2, [10.0, 3.0]])


def _rlax(b, lambda_):
    """Compute the results of rlax for one sequence, by function."""
    rho, q, log_rhos = jnp.exp(b.log_rho), b.q_next[:-1], b.log_rho[1:]
    c = lambda_ * jnp.minimum(1.0, jnp.exp(log_rhos))
    values = jnp.append(b.v_tm1, b.v_t[-1])
    advantage = rlax.truncated_generalized_advantage_estimation(b.r_t, b.discount_t, lambda_, values)
    return {
        _gae: (advantage, advantage + b.v_tm1),
        _n_step: rlax.n_step_bootstrapped_returns(b.r_t, b.discount_t, b.v_t, 3, lambda_),
        _off_policy: rlax.general_off_policy_returns_from_q_and_v(q, b.v_t, b.r_t, b.discount_t, c),
        _retrace: rlax.retrace_continuous(b.q_tm1, q, b.v_t, b.r_t, b.discount_t, log_rhos, lambda_),
        _lambda_returns: rlax.lambda_returns(b.r_t, b.discount_t, b.v_t, lambda_),
        _discounted: rlax.discounted_returns(b.r_t, b.discount_t, b.v_t),
        _q_lambda: rlax.lambda_returns(b.r_t, b.discount_t, jnp.max(b.q_t, -1), lambda_),
        _peng: rlax.lambda_returns(b.r_t, b.discount_t, jnp.sum(b.pi_t * b.q_t, -1), lambda_),
        _vtrace: rlax.vtrace(b.v_tm1, b.v_t, b.r_t, b.discount_t, rho, lambda_),
        _importance: rho
        * (rlax.lambda_returns(b.r_t, b.discount_t, b.v_t, lambda_ * jnp.append(rho[1:], 1.0)) - values[:-1]),
        _vtrace_full: tuple(rlax.vtrace_td_error_and_advantage(b.v_tm1, b.v_t, b.r_t, b.discount_t, rho, lambda_)[:3]),
    }


@functools.cache
def rlax_results():
    names = {f.__name__: f for f in FUNCTIONS}
    batched = jax.jit(jax.vmap(lambda b: {name: _rlax(b, jnp.float32(0.7))[f] for name, f in names.items()}))
    return batched(make_batch())


@by_function
def test_results_agree_with_rlax(function):
    expected = rlax_results()[function.__name__]
    assert_close(compiled(function)(make_batch(), 0.7), expected)


@by_function
@pytest.mark.parametrize("associative", [False, True])
def test_time_major_transposes_the_result(function, associative):
    b = with_truncations(make_batch())
    actual = compiled(function, time_major=True, associative=associative)(swapped(b), 0.7)
    assert_close(actual, swapped(compiled(function)(b, 0.7)))


@by_function
def test_truncation_splits_a_sequence_into_two(function):
    last = 2
    b = make_batch()
    whole = compiled(function)(b._replace(truncation_t=b.truncation_t | (np.arange(T) == last)), 0.7)
    head, tail = (jax.tree.map(lambda x, p=part: x[:, p], b) for part in (slice(last + 1), slice(last + 1, None)))
    parts = (compiled(function)(part, 0.7) for part in (head, tail))
    assert_close(whole, jax.tree.map(lambda x, y: np.concatenate([x, y], axis=1), *parts))


@by_function
@pytest.mark.parametrize("discount", [0.0, 1.0])
def test_extreme_inputs_give_finite_results(function, discount):
    b = with_truncations(make_batch())
    b = b._replace(discount_t=np.full_like(b.discount_t, discount), log_rho=1e4 * np.sign(b.log_rho))
    for associative in (False, True):
        for lambda_ in (0.0, 1.0):
            for leaf in jax.tree.leaves(compiled(function, associative=associative)(b, lambda_)):
                assert np.isfinite(leaf).all()


# The products of these ratios overflow, before and after a step where the episode terminated.
@pytest.mark.parametrize("associative", [False, True])
def test_products_of_large_ratios_stay_finite(associative):
    errors = functools.partial(ms.importance_corrected_td_errors, associative=associative)
    returns = functools.partial(ms.batch_general_off_policy_returns_from_q_and_v, associative=associative)

    @jax.jit
    def results(ones, discount, huge):
        arrays = jnp.zeros((1, 7)), ones[None] * 0.0, ones[None], discount[None], huge[None, :7]
        return errors(ones, discount, huge, 1.0, jnp.zeros(9)), returns(*arrays)

    ones = np.ones(8, np.float32)
    for rho in np.float32([1e8, 1e30, np.inf]):
        result, products = map(np.asarray, results(ones, np.float32(np.arange(8) != 4), rho * ones))
        assert np.isfinite(np.append(result, products)).all()
        assert (result > 0).all()
    # Without overflow the results are exact: 1e8 at the end, 1e8 (1 + 1e8) before.
    result = jax.jit(errors)(ones[:2], ones[:2], 1e8 * ones[:2], 1.0, np.zeros(3, np.float32))
    np.testing.assert_allclose(result, [1e16, 1e8], rtol=1e-6)


LOW = ("r_t", "discount_t", "v_tm1", "v_t", "q_tm1", "q_next", "log_rho", "q_t", "pi_t")


# All arrays in bfloat16, or only the rewards and action values.
@by_function
@pytest.mark.parametrize(("fields", "associative"), [(LOW, False), (("r_t", "q_t"), True)], ids=["bfloat16", "mixed"])
def test_dtypes_may_be_low_precision_or_mixed(function, associative, fields):
    exact = with_truncations(make_batch())
    low = exact._replace(**{name: getattr(exact, name).astype(jnp.bfloat16) for name in fields})
    rounded = low._replace(**{name: getattr(low, name).astype(jnp.float32) for name in fields})
    # 0.75 is exact in bfloat16; the reference uses the rounded inputs.
    actual = compiled(function, associative=associative)(low, 0.75)
    expected = compiled(function)(rounded, 0.75)
    tolerance = 0.15 if fields == LOW else 0.05
    for leaf, reference in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        if fields == LOW:
            assert leaf.dtype == jnp.bfloat16
        np.testing.assert_allclose(np.asarray(leaf, np.float32), reference, rtol=tolerance, atol=tolerance)


def test_lambda_keeps_the_precision_of_the_values():
    b = make_batch()
    low = b._replace(r_t=np.zeros_like(b.r_t, jnp.bfloat16))
    expected = compiled(_lambda_returns)(b._replace(r_t=np.zeros_like(b.r_t)), 0.95)
    np.testing.assert_allclose(alone(_lambda_returns)(low, 0.95), expected, rtol=1e-6)


def test_n_step_returns_match_the_definition_for_every_n():
    b = with_truncations(make_batch(batch=2, time=7))

    @functools.partial(jax.jit, static_argnums=1)
    def returns(b, numbers):
        function = functools.partial(ms.batch_n_step_bootstrapped_returns, b.r_t, b.discount_t, b.v_t)
        return [function(n, 0.8, truncation_t=b.truncation_t) for n in numbers]

    with pytest.raises(ValueError, match="at least 1"):
        returns(b, (0,))
    trace = 0.8 * (1.0 - b.truncation_t)

    def by_definition(n):
        returns = np.zeros((2, 7))
        for t in range(7):
            last = min(t + n, 7) - 1
            value = b.v_t[:, last]
            for k in range(last, t - 1, -1):
                mixed = (1 - trace[:, k]) * b.v_t[:, k] + trace[:, k] * value
                value = b.r_t[:, k] + b.discount_t[:, k] * mixed
            returns[:, t] = value
        return returns

    numbers = (1, 2, 3, 5, 6, 7, 8, 100)
    for n, actual in zip(numbers, returns(b, numbers), strict=True):
        np.testing.assert_allclose(actual, by_definition(n), rtol=1e-4, atol=1e-5, err_msg=str(n))


def test_transformed_n_step_returns():
    """With h(x) = 2 x, n = 2 and gamma = 1/2: values 4, 6, 8 stand for 2, 3, 4, and the second step is truncated.

    G_3 = 4 + 4/2 = 6, G_2 = 2 + 3/2 = 3.5, G_1 = 1 + (2 + 3/2)/2 = 2.75, each times 2.
    """
    arrays = np.float32([[[1.0, 2.0, 4.0]], [[0.5] * 3], [[4.0, 6.0, 8.0]]])
    double, pair = rlax.TxPair(lambda x: 2.0 * x, lambda x: x / 2.0), rlax.SIGNED_HYPERBOLIC_PAIR
    ours, truncated = ms.batch_transformed_n_step_returns, np.array([[False, True, False]])
    returns = jax.jit(lambda truncated, *x: ours(*x, 2, double, truncation_t=truncated))(truncated, *arrays)
    np.testing.assert_allclose(returns, [[5.5, 7.0, 12.0]])
    reference = jax.vmap(lambda *arrays: rlax.transformed_n_step_returns(pair, *arrays, 3))
    assert_close(*jax.jit(lambda *x: (ours(*x, 3, pair), reference(*x)))(*make_batch()[:2], make_batch().v_t))


def test_n_step_returns_of_long_sequences_compile_to_a_small_program():
    b = make_batch(time=700)

    def returns(b, n):
        return ms.batch_n_step_bootstrapped_returns(b.r_t, b.discount_t, b.v_t, n)

    for n in (600, 10**9):
        assert len(jax.make_jaxpr(functools.partial(returns, n=n))(b).eqns) < 500
    assert_close(*jax.jit(lambda b: (returns(b, 10**9), ms.batch_lambda_returns(b.r_t, b.discount_t, b.v_t)))(b))


@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.parametrize("per_step", [False, True])
def test_retrace_accepts_one_lambda_per_action_or_per_step(time_major, per_step):
    b = with_truncations(make_batch(batch=T - 1))  # with B = T - 1, swapped axes would not change the shapes
    each = np.random.default_rng(2).random((T - 1, T - 1), np.float32)
    lambda_ = np.broadcast_to(each[0], each.shape) if per_step else each
    # Scaling the lambda scales the trace, and so does scaling the clipped ratio.
    logs = np.minimum(b.log_rho[:, 1:], 0.0) + np.log(lambda_)
    expected = alone(_retrace)(b._replace(log_rho=np.concatenate([b.log_rho[:, :1], logs], axis=1)), 1.0)
    given = each[0] if per_step else lambda_.T if time_major else lambda_
    actual = alone(_retrace, time_major=time_major)(swapped(b) if time_major else b, given)
    assert_close(actual, expected.T if time_major else expected)


def test_greedy_peng_is_q_lambda_and_ignores_impossible_actions():
    b = make_batch()
    greedy = np.eye(A, dtype=np.float32)[np.argmax(b.q_t, -1)]
    masked = np.where(greedy > 0, b.q_t, -np.float32(np.inf))
    assert_close(compiled(_peng)(b._replace(pi_t=greedy, q_t=masked), 0.7), compiled(_q_lambda)(b, 0.7))


MIXED_BY_STEP = (_gae, _n_step, _lambda_returns, _q_lambda, _vtrace)


@pytest.mark.parametrize("function", MIXED_BY_STEP, ids=lambda f: f.__name__[1:])
def test_lambda_may_vary_per_time_step_and_per_entry(function):
    b = make_batch(batch=T)  # with B = T, swapped axes would not change the shapes
    per_step = np.linspace(0.0, 1.0, T, dtype=np.float32)
    per_entry = np.broadcast_to(per_step, (T, T))
    expected = compiled(function, MIXED_BY_STEP)(b, per_entry)
    assert_close(compiled(function, MIXED_BY_STEP)(b, per_step), expected)
    actual = compiled(function, MIXED_BY_STEP, time_major=True)(swapped(b), per_step)
    assert_close(actual, swapped(expected))


def test_discounted_returns_accept_one_bootstrap_value_per_sequence():
    @jax.jit
    def in_three_ways(b, last):
        whole, single = (ms.batch_discounted_returns(b.r_t, b.discount_t, value) for value in (b.v_t, last))
        return whole, single, ms.batch_discounted_returns(b.r_t.T, b.discount_t.T, last, time_major=True).T

    expected, *others = in_three_ways(make_batch(), make_batch().v_t[:, -1])
    assert_close(others, [expected] * 2)


def test_a_constant_bootstrap_value_passes_through_shard_map_that_checks_what_varies():
    mesh = jax.make_mesh((1,), ("device",), axis_types=(AxisType.Auto,), devices=jax.devices()[:1])
    specs = PartitionSpec("device")
    returns = functools.partial(ms.batch_discounted_returns, v_t=0.0)
    for associative in (False, True):
        function = functools.partial(returns, associative=associative)
        sharded = jax.shard_map(function, mesh=mesh, in_specs=(specs, specs), out_specs=specs)
        jax.eval_shape(sharded, jnp.ones((2, 3)), jnp.ones((2, 3)))


@pytest.mark.parametrize("time_major", [False, True])
def test_gae_accepts_values_or_the_pair(time_major):
    b = with_truncations(make_batch())
    values = np.concatenate([b.v_tm1, b.v_t[:, -1:]], axis=1)
    arrays = (b.r_t, b.discount_t, values, b.v_tm1, b.v_t, b.truncation_t)
    r, d, values, v_tm1, v_t, truncation = (x.T for x in arrays) if time_major else arrays
    of_values = functools.partial(gae, r, d, 0.7, truncation_t=truncation, time_major=time_major)
    assert_close(of_values(values=values), of_values(v_tm1=v_tm1, v_t=v_t))
    pair = {"v_tm1": v_tm1, "v_t": v_t}
    for wrong in ({}, {"values": values, "v_t": v_t}, {"v_t": v_t}, {"v_tm1": v_tm1}, {"values": values, **pair}):
        with pytest.raises(ValueError, match="pass either"):
            of_values(**wrong)


def test_standardisation_uses_the_whole_mapped_batch():
    b = make_batch(batch=4)
    expected, targets = map(np.asarray, alone(_gae)(b, 0.7))
    mapped = jax.vmap(lambda p: _gae(p, 0.7, standardize_advantages=True, axis_names=("batch",)), axis_name="batch")
    advantage, target = map(np.asarray, jax.jit(mapped)(jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), b)))
    assert_close(advantage.reshape(4, T), (expected - expected.mean()) / expected.std())
    assert_close(target.reshape(4, T), targets)


@functools.cache
def reward_gradients():
    """Return the gradients of all functions, with stopped targets and without."""

    def total(r_t, b, function, stop):
        return sum(map(jnp.sum, jax.tree.leaves(function(b._replace(r_t=r_t), 0.7, stop_target_gradients=stop))))

    @jax.jit
    def gradients(b):
        return [[jax.grad(total)(b.r_t, b, function, stop) for stop in (True, False)] for function in FUNCTIONS]

    return gradients(make_batch())


@by_function
def test_stop_target_gradients_stops_reward_gradients(function):
    stopped, flowing = reward_gradients()[FUNCTIONS.index(function)]
    assert not np.any(stopped)
    assert np.any(flowing)


def test_sequences_of_one_step_are_supported():
    b = make_batch(time=1)
    for function in FUNCTIONS:
        for associative in (False, True):
            result = compiled(function, associative=associative)(b, 0.7)
            assert all(leaf.shape == (B, 1) and np.isfinite(leaf).all() for leaf in jax.tree.leaves(result))


def test_both_scans_agree_on_long_sequences():
    b = with_truncations(make_batch(time=513))._replace(discount_t=np.full((B, 513), 0.999, np.float32))
    scan, parallel = (alone(_gae, associative=flag)(b, 0.97) for flag in (False, True))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4), scan, parallel)


@pytest.mark.usefixtures("without_type_checks")
@pytest.mark.parametrize("associative", [False, True])
def test_numpy_arrays_are_accepted(associative):
    rng = np.random.default_rng(0)
    r, d, v, v_next = (rng.random((T, B)).astype(np.float32) for _ in range(4))
    # Constants of a program, which takes entries of them.
    n_step = functools.partial(ms.batch_n_step_bootstrapped_returns, n=2, time_major=True)
    jax.eval_shape(lambda: n_step(r, d, v_next))
    arguments = (r, d, 0.9, None, v, v_next), (r[:, 0], d[:, 0], v[:, 0], 0.9, np.append(v[:, 0], v_next[-1, 0]))

    def both(arguments, **options):
        advantages = ms.batch_truncated_generalized_advantage_estimation(*arguments[0], time_major=True, **options)
        return advantages, ms.importance_corrected_td_errors(*arguments[1], **options)

    actual = run(both, arguments, associative=associative)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5), actual, jax.jit(both)(arguments))


@pytest.mark.usefixtures("without_type_checks")
def test_float64_arrays_do_not_overflow_while_they_are_clipped():
    """By hand, one step of ratio 2, reward 1, discount 1/2 and values 1 and 4: 2 (1 + 4 / 2 - 1) = 4."""
    reward, discount, rho, values = (np.asarray(x, np.float64) for x in ([1.0], [0.5], [2.0], [1.0, 4.0]))
    errors = ms.importance_corrected_td_errors(reward, discount, rho, 0.9, values)
    np.testing.assert_allclose(errors, [4.0])


def _refuses(function, data):
    try:
        jax.eval_shape(function, data, 0.7)
    except ValueError as error:
        return "must be [" in str(error)
    return False


@by_function
@pytest.mark.parametrize("time_major", [False, True])
@pytest.mark.usefixtures("without_type_checks")
def test_arrays_that_would_broadcast_are_refused(function, time_major):
    b = make_batch()
    one_step = (lambda x: x[:1]) if time_major else (lambda x: x[:, :1])
    if time_major and function is _importance:
        pytest.skip("takes one trajectory")
    batch = swapped(b) if time_major else b
    keywords = {"time_major": True} if time_major else {}
    refused = {
        name
        for name in batch._fields
        if _refuses(functools.partial(function, **keywords), batch._replace(**{name: one_step(getattr(batch, name))}))
    }
    # All that the function above takes of a batch.
    assert refused == {*batch._fields} & {*function.__code__.co_names}
    with pytest.raises(ValueError, match=r"lambda_\.shape=.* must be"):
        ms.batch_lambda_returns(b.r_t, b.discount_t, b.v_t, np.full((B, 1), 0.9, np.float32))
