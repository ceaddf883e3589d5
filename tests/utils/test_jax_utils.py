import logging
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils import jax_utils
from stoix_like.utils.jax_utils import periodically
from support.compiled import run
from support.programs import branches


def test_scale_gradient_keeps_values_bit_identical():
    tree = jax.device_put({"a": np.array([0.1, -np.inf, 1e30]), "b": np.float32(0.3)})
    jax.tree.map(np.testing.assert_array_equal, run(jax_utils.scale_gradient, tree, 0.1), tree)

    def loss(x, scale):
        return jnp.sum(jnp.square(jax_utils.scale_gradient(x, scale)))

    def slopes(x, scale):
        _, tangent = jax.jvp(lambda x: jax_utils.scale_gradient(x, 3.0), (x,), (x,))
        return [jax.grad(loss)(x, each) for each in (0.5, scale, 0)], tangent

    gradients, tangent = jax.jit(slopes)(np.float32([1.0, 2.0]), np.float32(0.5))
    np.testing.assert_allclose(gradients, [[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    np.testing.assert_allclose(tangent, [3.0, 6.0])


def test_shape_utilities_count_merge_prepend_and_unreplicate():
    tree = {"a": np.zeros((2, 3)), "b": jax.ShapeDtypeStruct((4,), jnp.float32)}
    assert jax_utils.count_parameters(tree) == 10
    assert jax_utils.count_parameters({}) == 0
    x, row, none = jax.device_put((np.arange(24).reshape(2, 3, 4), np.zeros(2), np.zeros((0, 3, 4))))
    assert jax_utils.ndim_at_least(x, 2)
    assert not jax_utils.ndim_at_least(row, 2)
    np.testing.assert_array_equal(jax_utils.merge_leading_dims(x, 2), np.arange(24).reshape(6, 4))
    np.testing.assert_array_equal(jax_utils.merge_leading_dims(x, 1), x)
    assert jax_utils.merge_leading_dims(none, 2).shape == (0, 4)
    for wrong in (0, 4):
        with pytest.raises(ValueError, match=f"num_dims={wrong} must be at least 1 and at most x.ndim=3"):
            jax_utils.merge_leading_dims(x, wrong)
    assert jax_utils.prepend_dims(x, 5).shape == (1, 1, 2, 3, 4)
    assert jax_utils.prepend_dims(np.zeros(2), 1).shape == (2,)
    tree, x = {"a": x}, np.asarray(x)
    np.testing.assert_array_equal(jax_utils.unreplicate_n_dims(tree)["a"], x[0, 0])
    np.testing.assert_array_equal(jax_utils.unreplicate_n_dims(tree, 1)["a"], x[0])
    np.testing.assert_array_equal(jax_utils.unreplicate_batch_dim(tree)["a"], x[:, 0])


def test_aot_compile_logs_and_keeps_donated_arguments(caplog):
    x = jax.device_put(np.ones(2))
    with caplog.at_level(logging.INFO, logger="stoix_like"):
        compiled = jax_utils.aot_compile(lambda x, y: x + y, "sum", x, y=x)
    assert "compiled sum in" in caplog.text
    np.testing.assert_array_equal(compiled(x, y=x), [2.0, 2.0])
    donating = jax.jit(lambda x: x + 1, donate_argnums=0)
    compiled = jax_utils.aot_compile(donating, "increment", jax.ShapeDtypeStruct((2,), jnp.float32))
    np.testing.assert_array_equal(compiled(x), [2.0, 2.0])
    assert x.is_deleted()


# By hand: (1, 3) has mean 2 and variance 1.
def test_standardize_matches_hand_computed_values():
    np.testing.assert_allclose(jax.jit(jax_utils.standardize)(np.float32([1.0, 3.0])), [-1.0, 1.0])


# Slow: the older emitters of fusions, of quick tests, subtract a mean unrounded in one place and rounded in another.
@pytest.mark.slow
def test_standardize_zeroes_constants():
    standardize = jax.jit(jax_utils.standardize)
    for constant in np.float32([0.0, 0.1, 1e4]):
        assert (np.abs(standardize(np.full((7, 3), constant))) < 1e-2).all()
    # The mean of this many values has a rounding error, which must not be scaled up.
    np.testing.assert_allclose(standardize(np.full(2048, 123.456, np.float32)), 0.0, atol=1e-6)


def test_standardize_uses_the_whole_mapped_batch():
    x = np.float32(np.random.default_rng(0).normal(size=(2, 3, 5)) + np.arange(6.0).reshape(2, 3, 1))
    inner = jax.vmap(lambda part: jax_utils.standardize(part, ("device", "batch")), axis_name="batch")
    outer, each = jax.vmap(inner, axis_name="device"), jax.vmap(jax_utils.standardize)
    mapped, whole, alone = jax.jit(lambda x: (outer(x), jax_utils.standardize(x), each(x)))(x)
    np.testing.assert_allclose(mapped, whole, rtol=1e-5, atol=1e-5)
    assert not np.allclose(alone, mapped, atol=1e-2)


def test_explained_variance_matches_hand_computed_values():
    """Targets 0, 2, 4, 6 have variance 5; errors 0, 0, 2, 2 have variance 1, and so 1 - 1 / 5 is explained."""
    target, prediction, ones = np.float32([[0.0, 2.0, 4.0, 6.0], [0.0, 2.0, 2.0, 4.0], [1.0] * 4])
    explained = jax.jit(jax_utils.explained_variance)
    assert float(explained(prediction, target)) == pytest.approx(0.8)
    assert float(explained(target + 3, target)) == pytest.approx(1.0)
    assert float(explained(ones, target)) == pytest.approx(0.0)
    # Over two shards, whose own variances are 1.
    shards = (prediction.reshape(2, 2), target.reshape(2, 2))
    mapped = jax.vmap(lambda p, t: jax_utils.explained_variance(p, t, ("batch",)), axis_name="batch")
    np.testing.assert_allclose(jax.jit(mapped)(*shards), 0.8, rtol=1e-6)
    assert np.isfinite(explained(target, ones))


@pytest.mark.usefixtures("without_type_checks")
def test_explained_variance_refuses_targets_that_would_broadcast():
    with pytest.raises(ValueError, match=r"target.shape=\(4, 1\)"):
        jax_utils.explained_variance(np.ones(4), np.ones((4, 1)))


@pytest.mark.parametrize("length", [1, 2, 12, 512, 1000])
def test_random_order_is_a_permutation(length):
    order = jax.jit(jax_utils.random_order, static_argnums=1)(jax.random.key(3), length)
    np.testing.assert_array_equal(np.sort(order), np.arange(length))


def test_random_order_supports_lengths_above_2_to_the_22():
    order = jax.eval_shape(lambda key: jax_utils.random_order(key, 2**22 + 1), jax.random.key(0))
    assert (order.shape, order.dtype) == ((2**22 + 1,), jnp.int32)


# Every number is in every position with probability 1/6: in 1,000 of 6,000 permutations, with a standard deviation of
# sqrt(6000 * 1/6 * 5/6) = 29. Each of the 15 pairs keeps its order in half of them: 3,000, standard deviation 39.
@pytest.mark.slow
def test_random_order_is_uniform():
    orders = jax.vmap(lambda key: jax_utils.random_order(key, 6))(jax.random.split(jax.random.key(0), 6000))
    counts = (orders[:, :, None] == jnp.arange(6)[None, None]).sum(0)
    assert jnp.abs(counts - 1000).max() < 5 * 29
    places = jnp.argsort(orders, axis=1)
    kept = (places[:, :, None] < places[:, None, :]).sum(0)[np.triu_indices(6, 1)]
    assert jnp.abs(kept - 3000).max() < 5 * 39


def test_periodically_takes_a_step_every_period_calls():
    """Six calls with period 3 take two steps; the mean of the metrics equals the mean over the two steps, 10 and 20."""
    reported, value = [], np.float32(0.0)
    take = jax.jit(lambda value, count: periodically(lambda x: (x + 10.0, {"value": x + 10.0}), value, count, 3))
    for count in range(6):
        value, metrics = take(value, count)
        reported.append(float(metrics["value"]))
    assert float(value) == 20.0
    assert reported == [0.0, 0.0, 30.0, 0.0, 0.0, 60.0]


def test_members_share_one_branch():
    """With a predicate per member, vmap would turn the branch into a `select`, and take the step every time."""

    def step(value, count):
        return periodically(lambda x: (x + 10.0, {"value": x + 10.0}), value, count, 3)

    values, counts = np.float32([0.0, 1.0]), np.int32([2, 2])
    assert branches(jax.make_jaxpr(jax.vmap(step))(values, counts).jaxpr) == [()]
    value, metrics = jax.jit(jax.vmap(step))(values, counts)
    assert value.tolist() == [10.0, 11.0]
    assert metrics["value"].tolist() == [30.0, 33.0]


def test_a_frozen_member_does_not_stop_the_others():
    """A diverged member keeps its count, here 0; the healthy one with count 2 takes its third step."""
    step = partial(periodically, lambda x: (x + 10.0, {"value": x}), period=3)
    members = partial(jax.jit(jax.vmap(lambda x, count: step(x, count=count))), np.float32([0.0, 1.0]))
    value, _ = members(np.int32([0, 2]))
    assert value.tolist() == [0.0, 11.0]
    # The diverged one may be the oldest, and due for ever.
    for frozen in (5, 6):
        value, metrics = jax.device_get(members(np.int32([frozen, 2])))
        assert (value[1], metrics["value"][1]) == (11.0, 3.0)


def test_a_step_changes_the_entries_for_which_its_condition_holds():
    """Without a vmapped axis, no select remains of the condition; keys of random numbers change, too."""

    def apply(condition, x):
        return jax_utils.apply_where(condition, lambda tree: (tree[0] + 1.0, jax.random.fold_in(tree[1], 1)), x)

    key = jax.random.key(0)
    text = jax.jit(apply).lower(np.bool_(True), (np.float32(0.0), key)).compile().as_text()
    assert "select(" not in text
    keys = jax.random.split(key, 2)
    values, after = jax.jit(jax.vmap(apply))(np.array([False, True]), (np.zeros(2, np.float32), keys))
    assert values.tolist() == [0.0, 1.0]
    assert np.equal(*map(jax.random.key_data, (after, keys))).all(axis=-1).tolist() == [True, False]
