import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete, Tuple, choices, describe, entries, fits
from stoix_like.errors import ConfigError
from support.compiled import run

KEYS = jax.random.split(jax.random.key(0), 4000)


@pytest.mark.parametrize(
    ("space", "mask", "probabilities"),
    [
        (Discrete(3), [True, False, True], [[0.5, 0, 0.5]]),
        (Discrete(2), [False, False], [[0.5, 0.5]]),
        (MultiDiscrete((2, 3)), [False, True, True, True, False], [[0, 1, 0], [0.5, 0.5, 0]]),
        (MultiDiscrete((2, 3)), [True, True, False, False, False], [[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3]]),
    ],
)
def test_sample_is_uniform_over_legal_elements(space, mask, probabilities):
    """The frequencies of 4000 draws have a standard error of at most 0.008."""
    drawn = run(jax.vmap(space.sample, in_axes=(0, None)), KEYS, jnp.asarray(mask))
    assert drawn.dtype == space.dtype
    assert drawn.shape[1:] == space.shape
    columns = np.asarray(drawn).reshape(len(KEYS), -1).T
    for column, expected in zip(columns, probabilities, strict=True):
        frequencies = np.bincount(column, minlength=len(expected)) / len(KEYS)
        np.testing.assert_allclose(frequencies, expected, atol=0.04)
        assert (frequencies[np.asarray(expected) == 0] == 0).all()


@pytest.mark.parametrize(
    ("space", "mask", "values"),
    [
        (Discrete(3, start=-1), None, {-1, 0, 1}),
        (Discrete(3, start=-1), [True, False, True], {-1, 1}),
        (MultiDiscrete((2, 2), start=(1, 5)), None, {1, 2, 5, 6}),
        (MultiDiscrete((2, 2), start=(1, 5)), [True, False, True, True], {1, 5, 6}),
        (Box(0, 1, (2,), np.bool_), None, {False, True}),
        (Box(-1, 1, (2,), np.int32), None, {-1, 0, 1}),
    ],
)
def test_samples_have_all_values_and_no_others(space, mask, values):
    given = () if mask is None else (jnp.asarray(mask),)
    drawn = np.asarray(run(jax.vmap(lambda key: space.sample(key, *given)), KEYS))
    assert (set(drawn.ravel().tolist()), drawn.dtype) == (values, space.dtype)


def test_integers_without_bounds_are_drawn_within_those_that_there_are():
    drawn = np.asarray(jax.vmap(Box(5, np.inf, (2,), np.int32).sample)(KEYS))
    assert drawn.min() >= 5
    assert drawn.max() > 2**30
    assert np.asarray(jax.vmap(Box(-np.inf, np.inf, (), np.int16).sample)(KEYS)).min() < -(2**14)


def test_half_width_is_one_without_bounds():
    assert Box(-2.0, np.asarray([4.0, 0.0]), (2,)).half_width.tolist() == [3.0, 1.0]
    assert Box(-np.inf, np.inf, (2,)).half_width.tolist() == [1.0, 1.0]
    partly = Box(np.asarray([-2.0, -np.inf, 5.0]), np.asarray([0.0, 3.0, np.inf]), (3,))
    assert (partly.half_width.tolist(), partly.centre.tolist()) == ([1.0, 1.0, 1.0], [-1.0, 0.0, 0.0])


def test_entries_with_a_lone_bound_are_drawn_from_it_on_and_others_as_alone():
    box = Box(np.asarray([10.0, -np.inf, 5.0, -np.inf]), np.asarray([20.0, 3.0, np.inf, np.inf]), (4,))
    keys = jax.random.split(jax.random.key(0), 5000)
    bounded, below, above, free = np.asarray(run(jax.vmap(box.sample), keys)).T
    assert bounded.min() >= 10.0
    assert bounded.max() < 20.0
    # A deviation of a tenth of the uniform one's, 10 / sqrt(12) = 2.89, and of the others', 1, is ten standard errors.
    assert bounded.std() == pytest.approx(2.89, rel=0.15)
    assert (below.max() <= 3.0, above.min() >= 5.0) == (True, True)
    for drawn in (3.0 - below, above - 5.0, free):
        assert drawn.std() == pytest.approx(1.0, rel=0.2)


def test_entries_have_dotted_names_in_the_order_of_jax():
    space = Dict({"b": Discrete(2), "a": Dict({"d": Box(0.0, 1.0, (2,)), "c": Box(2.0, 3.0, (1,))})})
    sample = space.sample(KEYS[0])
    assert list(entries(space)) == list(entries(sample)) == ["a.c", "a.d", "b"]
    for found, leaf in zip(entries(sample, "view").values(), jax.tree.leaves(sample), strict=True):
        assert found is leaf
    assert list(entries(sample["b"], "view")) == ["view"]
    assert [space.shape for space in entries(space).values()] == [(1,), (2,), ()]


ARM = Dict({"grip": Discrete(2), "arm": Tuple([Box(-2.0, 2.0, (1, 2)), MultiDiscrete((3, 4))])})


def test_mixed_vectors_hold_the_parts_in_the_order_of_jax():
    mixed = Mixed(ARM)
    assert (mixed.names, mixed.shape, choices(mixed)) == (["arm.0", "arm.1", "grip"], (5,), (3, 4, 2))
    assert list(entries(ARM, "action")) == ["action.arm.0", "action.arm.1", "action.grip"]
    assert list(entries(Discrete(2), "action")) == ["action"]
    assert describe(mixed).startswith("mixed actions (arm.0: bounded continuous actions of shape (1, 2), arm.1: ")
    np.testing.assert_array_equal(mixed.low, [-2, -2, 0, 0, 0])
    np.testing.assert_array_equal(mixed.high, [2, 2, 2, 3, 1])
    np.testing.assert_array_equal(mixed.is_continuous, [True, True, False, False, False])
    element = {
        "grip": jnp.ones((6,), jnp.int32),
        "arm": (jnp.full((6, 1, 2), 0.5), jnp.tile(jnp.array([2, 3]), (6, 1))),
    }
    vector = mixed.join(jax.tree.leaves(element))
    np.testing.assert_array_equal(vector, np.tile([0.5, 0.5, 2, 3, 1], (6, 1)))
    back = mixed.element(vector)
    assert jax.tree.structure(back) == jax.tree.structure(element)
    jax.tree.map(np.testing.assert_array_equal, back, element)
    assert jax.tree.map(lambda leaf: leaf.dtype, back) == jax.tree.map(lambda leaf: leaf.dtype, element)
    narrower = mixed.map(lambda part: dataclasses.replace(part, low=-1.0) if isinstance(part, Box) else part)
    np.testing.assert_array_equal(narrower.low, [-1, -1, 0, 0, 0])


@pytest.mark.slow
def test_mixed_samples_choose_legal_options():
    mixed = Mixed(ARM)
    mask = jnp.array([False, True, False, *[False, False, True, True], True, False])
    samples = jax.vmap(mixed.sample, (0, None))(jax.random.split(jax.random.key(0), 500), mask)
    assert [set(choice.tolist()) for choice in samples[:, 2:].T] == [{1}, {2, 3}, {0}]
    assert -2 <= samples[:, :2].min() < -1.9
    assert 1.9 < samples[:, :2].max() <= 2


@pytest.mark.parametrize(
    ("space", "message"),
    [(Dict({"a": Dict({"b": "left"})}), "action_space: a.b is a str: use Box"), (Tuple([]), "has no parts")],
)
def test_mixed_refuses_what_has_no_vector(space, message):
    with pytest.raises(ConfigError, match=message):
        Mixed(space)


def test_boxes_and_choices_are_written_as_in_gymnasium():
    bounds = np.zeros((2, 3), np.int32), np.full((2, 3), 2**31 - 1, np.int32)
    assert repr(Box(*bounds, (2, 3), np.int32)) == "Box(0, 2147483647, (2, 3), int32)"
    assert repr(Box(-1.5, np.inf, (4,), stacked=2)) == "Box(-1.5, inf, (4,), float32, stacked=2)"
    assert repr(Box(np.zeros(0), np.zeros(0), (0,))) == "Box(0, 0, (0,), float32)"
    assert (repr(Discrete(5)), repr(MultiDiscrete((2, 3)))) == ("Discrete(5)", "MultiDiscrete([2, 3])")


def test_heads_that_need_bounds_refuse_entries_of_one_value():
    bounded = SimpleNamespace(action_spaces=(Box,), needs_bounds=True)
    for low, expected in ((-1.0, True), (1.0, False)):
        assert fits(bounded, Box(np.array([-1.0, low]), np.array([1.0, 1.0]), (2,))) == expected
    assert not fits(bounded, Box(-np.inf, np.inf, (2,)))
    assert describe(Box(1.0, 1.0, (2,))).endswith("of shape (2,), with entries of one value only")
