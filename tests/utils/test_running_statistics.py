import dataclasses
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stoix_like.utils import running_statistics as rs
from support.compiled import run


class Nest(NamedTuple):
    view: jax.Array
    pixels: jax.Array
    mask: jax.Array | None = None


start = jax.jit(rs.initialize_statistics)
update = jax.jit(rs.update_statistics)
weighted_update = jax.jit(lambda state, batch, weights: rs.update_statistics(state, batch, weights=weights))


def exact_count(state):
    return float(state.count) + float(state.rounding.count)


def exact_mean(state):
    return float(state.mean) + float(state.rounding.mean)


def assert_one_pass(state, data, weights=None):
    data = np.asarray(data, np.float64).reshape(-1, *state.mean.shape)
    weights = np.ones(len(data)) if weights is None else np.asarray(weights, np.float64).reshape(-1)
    mean = np.average(data, axis=0, weights=weights)
    std = np.sqrt(np.average((data - mean) ** 2, axis=0, weights=weights))
    np.testing.assert_allclose(state.mean, mean, rtol=1e-5, atol=1e-5 * std.max())
    np.testing.assert_allclose(state.std, std, rtol=1e-5)


def normal(*shape, seed=0, mean=0.0, std=1.0):
    return (np.random.default_rng(seed).normal(size=shape) * std + mean).astype(np.float32)


# By hand: (1, 3) has mean 2 and squared deviations 2; with 8 the mean is 4 and the squared deviations 9 + 1 + 16 = 26.
def test_update_and_normalize_match_hand_computed_values():
    state = start(np.zeros(()))
    assert (state.count, state.mean, state.std, state.summed_variance) == (0.0, 0.0, 1.0, 0.0)
    state = update(state, jnp.array([1.0, 3.0]))
    np.testing.assert_allclose((state.count, state.mean, state.std, state.summed_variance), (2, 2, 1, 2))
    state = update(state, jnp.array([8.0]))
    expected = (3, 4, np.sqrt(26 / 3), 26)
    np.testing.assert_allclose((state.count, state.mean, state.std, state.summed_variance), expected, rtol=1e-6)
    np.testing.assert_allclose(run(rs.normalize, jnp.array([4.0, 30.0]), state, 2.0), [0.0, 2.0], atol=1e-6)


# A naive sum of squares loses all precision at a mean of 1e4 standard deviations.
@pytest.mark.parametrize("mean", [0.0, 1e4, -3e-3])
def test_merged_batches_equal_one_pass(mean):
    data = normal(40, 5, 4, 3, mean=mean, std=[1.0, 0.01, 300.0])
    state = start(np.zeros(3))
    for batch in data:
        state = update(state, jnp.asarray(batch))
    assert_one_pass(state, data)
    assert_one_pass(update(start(np.zeros(3)), jnp.asarray(data)), data)
    assert exact_count(state) == 800


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_weights_act_like_repetition(seed):
    data = normal(6, 3, seed=seed, mean=2.0)
    weights = np.random.default_rng(seed).integers(0, 4, 6)
    weights[0] = 1
    state = start(np.zeros(3))
    state = weighted_update(update(state, jnp.asarray(normal(4, 3))), jnp.asarray(data), jnp.asarray(weights))
    assert_one_pass(state, np.concatenate([normal(4, 3), np.repeat(data, weights, axis=0)]))
    assert exact_count(state) == 4 + weights.sum()


def test_weights_can_be_fractions_or_flags():
    data = normal(8, 2)
    fractions = np.linspace(0.0, 1.0, 8, dtype=np.float32)
    state = run(rs.initialize_statistics_from_data, jnp.zeros(2), jnp.asarray(data), weights=jnp.asarray(fractions))
    assert_one_pass(state, data, fractions)
    flags = fractions > 0.5
    state = run(rs.initialize_statistics_from_data, jnp.zeros(2), jnp.asarray(data), weights=jnp.asarray(flags))
    assert_one_pass(state, data[flags])


@pytest.mark.parametrize("seen", [0, 5])
def test_weight_zero_leaves_the_state_unchanged(seen):
    state = start(np.zeros(3))
    if seen:
        state = update(state, jnp.asarray(normal(seen, 3)))
    data = np.full((4, 3), np.nan)  # data of weight zero may hold any value
    after = weighted_update(state, data, np.zeros(4))
    jax.tree.map(np.testing.assert_array_equal, after, state)
    data[0] = 7.0
    partly = weighted_update(state, data, np.array([1.0, 0.0, 0.0, 0.0]))
    expected = np.concatenate([normal(5, 3)[:seen], np.full((1, 3), 7.0)])
    np.testing.assert_allclose(partly.mean, expected.mean(0), rtol=1e-5)
    assert exact_count(partly) == seen + 1


def test_integer_and_boolean_leaves_pass_through_unchanged():
    nest = Nest(np.zeros(2), np.zeros((2, 2), np.uint8), np.zeros(3, bool))
    state = start(nest)
    batch = jax.device_put(Nest(np.ones((4, 2)), np.full((4, 2, 2), 200, np.uint8), np.ones((4, 3), bool)))
    state = update(state, batch)
    np.testing.assert_array_equal(state.mean.pixels, 0.0)
    np.testing.assert_array_equal(state.std.pixels, 1.0)
    np.testing.assert_allclose(state.mean.view, 1.0)
    for function in (rs.normalize, rs.denormalize, lambda b, s: rs.clip(b, rs.NestClippingConfig((((), 0.5),)))):
        result = run(function, batch, state)
        assert result.pixels.dtype == jnp.uint8
        jax.tree.map(np.testing.assert_array_equal, result[1:], batch[1:])
    pixels_only = update(start(nest.pixels), batch.pixels)
    assert pixels_only.count == 4


def test_nests_may_contain_none_or_be_empty():
    state = start({"a": np.zeros(2), "b": None})
    state = update(state, {"a": jnp.ones((3, 2)), "b": None})
    assert state.mean["b"] is None
    assert state.count == 3
    empty = rs.initialize_statistics({})
    assert rs.update_statistics(empty, {}).count == 0


def test_the_initial_state_can_be_built_from_specs_and_donated():
    nest = {"a": jnp.zeros((2, 3)), "b": 1.0}
    specs = {"a": jax.ShapeDtypeStruct((2, 3), jnp.float32), "b": 1.0}
    a, b = rs.initialize_statistics(nest), rs.initialize_statistics(specs)
    jax.tree.map(np.testing.assert_array_equal, a, b)
    donated = jax.jit(lambda s: jax.tree.map(lambda x: x + 1, s), donate_argnums=0)
    assert donated(a).count == 1


# A float32 counter stops at 2**24, an int32 counter wraps at 2**31.
def test_counts_are_exact_beyond_2_to_the_31():
    state = start(np.zeros(()))
    state = update(state, jnp.asarray(normal(1000, mean=3.0, std=2.0)))
    many = 2.0**33
    scale = many / 1000
    state = dataclasses.replace(
        state, count=jnp.float32(many), summed_variance=jnp.float32(float(state.summed_variance) * scale)
    )

    @jax.jit
    def feed(state):
        # A single sample is 1/1024 of the float32 spacing at this count.
        return jax.lax.scan(
            lambda s, x: (rs.update_statistics(s, x[None]), None), state, jnp.tile(jnp.array([1.0, 5.0]), 2000)
        )[0]

    after = feed(state)
    assert exact_count(after) - many == 4000
    assert float(after.count) >= many
    summed = float(after.summed_variance) + float(after.rounding.summed_variance) - float(state.summed_variance)
    expected = 2000 * ((1.0 - float(state.mean)) ** 2 + (5.0 - float(state.mean)) ** 2)
    np.testing.assert_allclose(summed, expected, rtol=1e-3)
    mean_moved = exact_mean(after) - exact_mean(state)
    np.testing.assert_allclose(mean_moved, 4000 * (3.0 - exact_mean(state)) / many, rtol=1e-3)


def test_one_batch_can_hold_a_million_samples():
    data = normal(1000, 1000, 1, mean=100.0)
    assert_one_pass(update(start(np.zeros(1)), jnp.asarray(data)), data)


@pytest.mark.parametrize("weighted", [False, True])
def test_mapped_axes_share_one_unbatched_state(weighted):
    data = normal(2, 4, 5, 3, mean=1.0)
    weights = np.random.default_rng(0).random((2, 4, 5)).astype(np.float32) if weighted else None
    state = update(start(np.zeros(3)), jnp.asarray(normal(4, 3)))

    def merge(state, x, w=None):
        return rs.update_statistics(state, x, weights=w, pmap_axes=("device", "batch"))

    mapped = (jnp.asarray(data), jnp.asarray(weights)) if weighted else (jnp.asarray(data),)
    axes = (None, *(0 for _ in mapped))
    inner = jax.vmap(merge, axes, None, axis_name="batch")
    merged = jax.jit(jax.vmap(inner, axes, None, axis_name="device"))(state, *mapped)
    first = np.ones(4)
    all_data = np.concatenate([normal(4, 3), data.reshape(-1, 3)])
    assert_one_pass(merged, all_data, np.concatenate([first, weights.reshape(-1)]) if weighted else None)


def test_config_paths_select_leaves():
    zero = jnp.asarray(np.zeros(1, np.float32))
    nest = {"a": {"x": zero, "y": zero}, "b": (zero, Nest(zero, zero))}
    batch = jax.device_put(jax.tree.map(lambda x: np.full((2, 1), 5.0), nest))
    config = rs.NestStatisticsConfig(paths=(("a", "x"), ("b", 1, "view")))
    state = run(rs.initialize_statistics_from_data, nest, batch, config=config)
    expected = {"a": {"x": 5.0, "y": 0.0}, "b": (0.0, Nest(5.0, 0.0))}
    jax.tree.map(np.testing.assert_allclose, state.mean, expected)
    assert state.std["a"]["y"] == 1.0
    np.testing.assert_allclose(state.std["a"]["x"], 0.0005, rtol=1e-6)
    all_leaves = run(rs.initialize_statistics_from_data, nest, batch)
    assert all(leaf == 5.0 for leaf in jax.tree.leaves(all_leaves.mean))
    paths = rs.fast_map_structure_with_path(lambda path, _: "/".join(map(str, path)), nest)
    assert paths["b"][1].view == "b/1/view"
    assert rs.fast_map_structure(jnp.add, nest, nest)["a"]["x"] == 0.0


def test_clip_applies_to_configured_paths_only():
    batch = {"a": {"x": jnp.array([-9.0, 9.0])}, "b": jnp.array([-9.0, 9.0])}
    config = rs.NestClippingConfig(path_map=((("a",), 2.0),))
    clipped = run(rs.clip, batch, config)
    np.testing.assert_array_equal(clipped["a"]["x"], [-2.0, 2.0])
    np.testing.assert_array_equal(clipped["b"], batch["b"])
    below = rs.get_clip_config_for_path(config, ("a",))
    np.testing.assert_array_equal(rs.clip(batch["a"], below)["x"], [-2.0, 2.0])
    assert rs.get_clip_config_for_path(config, ("b",)) == rs.NestClippingConfig()
    deep = rs.NestClippingConfig(path_map=((("a", "x"), 2.0), (("b",), 3.0)))
    assert rs.get_clip_config_for_path(deep, ("a",)) == rs.NestClippingConfig(path_map=((("x",), 2.0),))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_denormalize_inverts_normalize(dtype):
    data = jnp.asarray(normal(4, 5, 3, mean=2.0, std=3.0), dtype)
    state = run(rs.initialize_statistics_from_data, jnp.zeros(3, dtype), data)
    assert state.mean.dtype == jnp.float32
    normalized = run(rs.normalize, data, state)
    assert normalized.dtype == dtype
    tolerance = 1e-5 if dtype == jnp.float32 else 0.05
    flat = np.asarray(normalized, np.float64).reshape(-1, 3)
    np.testing.assert_allclose(flat.mean(0), 0.0, atol=tolerance)
    np.testing.assert_allclose(flat.std(0), 1.0, rtol=tolerance)
    restored = np.asarray(run(rs.denormalize, normalized, state), np.float32)
    np.testing.assert_allclose(restored, np.asarray(data, np.float32), rtol=tolerance, atol=tolerance)
    clipped = jax.jit(rs.normalize)(data, state, jnp.float32(0.5))
    assert (np.abs(np.asarray(clipped, np.float32)) <= 0.5).all()


def test_the_standard_deviation_is_bounded():
    constant = np.full((4, 1), 3.0)
    bounds = {"std_min_value": np.float32(0.1), "std_max_value": np.float32(2.0)}
    np.testing.assert_allclose(update(start(np.zeros(1)), constant, **bounds).std, 0.1)
    wide = np.array([[-9.0], [9.0]])
    np.testing.assert_allclose(update(start(np.zeros(1)), wide, **bounds).std, 2.0)


@pytest.mark.parametrize("huge", [1e20, -1e30, float(jnp.finfo(jnp.float32).max)])
def test_any_finite_data_have_finite_statistics(huge):
    """Squares of the first column overflow, which leaves the second one, -1 to 1 in 8 steps, as it is."""
    state = start(np.zeros(2))
    usual = np.linspace(-1.0, 1.0, 8)
    for value in (huge, -huge, 1.0):
        state = update(state, np.stack([np.full(8, value), usual], axis=-1))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))
    np.testing.assert_allclose(state.std, [1e6, np.std(np.linspace(-1.0, 1.0, 8))], rtol=1e-6)
    assert np.isnan(update(state, np.array([[np.inf, 1.0]])).std)[0]


def test_wrong_shapes_raise():
    state = start({"a": np.zeros(3), "b": np.zeros(())})
    with pytest.raises(ValueError, match=r"leaf.shape=.* must be"):
        rs.update_statistics(state, {"a": jnp.zeros((4, 3)), "b": jnp.zeros(5)})
    with pytest.raises(ValueError, match=r"weights.shape=\(3,\) must equal"):
        rs.update_statistics(state, {"a": jnp.zeros((4, 3)), "b": jnp.zeros(4)}, weights=jnp.ones(3))
    data = jax.device_put({"a": np.zeros((4, 3)), "b": np.zeros(4)})
    loose = run(rs.update_statistics, state, data, validate_shapes=False)
    assert loose.count == 4


@pytest.mark.parametrize("function", [rs.normalize, rs.denormalize])
@pytest.mark.usefixtures("without_type_checks")
def test_leaves_that_would_broadcast_against_their_statistics_are_refused(function):
    """Data [8, 1] with statistics of [4] would give [8, 4]."""
    state = start({"a": np.zeros(4), "b": np.zeros(())})
    for shape in ((8, 1), (1,), ()):
        with pytest.raises(ValueError, match=r"^leaf\.shape=.* must end with \(4,\), the last axes of its statistics"):
            function({"a": jnp.zeros(shape), "b": jnp.zeros(8)}, state)
    data = {"a": np.zeros((3, 8, 4)), "b": np.zeros((3, 8))}
    members = jax.jit(jax.vmap(function))(data, jax.tree.map(lambda x: np.stack([x] * 3), state))
    assert members["a"].shape == (3, 8, 4)


@pytest.mark.parametrize("path", ["a", ("c",), ("a", "y"), ["a"]])
@pytest.mark.usefixtures("without_type_checks")
def test_paths_that_select_nothing_are_refused(path):
    nest = {"a": {"x": jnp.zeros(3)}, "b": jnp.zeros(3)}
    words = re.escape(f"path={path!r} selects no leaf: pass a tuple")
    state = start(jax.tree.map(lambda x: x[0], nest))
    with pytest.raises(ValueError, match=rf"{words}.*\('a', 'x'\), \('b',\)"):
        rs.update_statistics(state, nest, config=rs.NestStatisticsConfig(paths=(("b",), path)))
    with pytest.raises(ValueError, match=words):
        rs.clip(nest, rs.NestClippingConfig(((("b",), 1.0), (path, 2.0))))
    if not isinstance(path, tuple):
        with pytest.raises(ValueError, match=words):
            rs.get_clip_config_for_path(rs.NestClippingConfig(((path, 2.0),)), ("a",))
