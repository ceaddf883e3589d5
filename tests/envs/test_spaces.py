import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs.spaces import Box, Dict, Discrete, MultiDiscrete, entries

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
    drawn = jax.vmap(space.sample, in_axes=(0, None))(KEYS, jnp.asarray(mask))
    assert drawn.dtype == space.dtype
    assert drawn.shape[1:] == space.shape
    columns = np.asarray(drawn).reshape(len(KEYS), -1).T
    for column, expected in zip(columns, probabilities, strict=True):
        frequencies = np.bincount(column, minlength=len(expected)) / len(KEYS)
        np.testing.assert_allclose(frequencies, expected, atol=0.04)
        assert (frequencies[np.asarray(expected) == 0] == 0).all()


def test_half_width_is_one_without_bounds():
    assert Box(-2.0, np.asarray([4.0, 0.0]), (2,)).half_width.tolist() == [3.0, 1.0]
    assert Box(-np.inf, np.inf, (2,)).half_width.tolist() == [1.0, 1.0]


def test_entries_have_dotted_names_in_the_order_of_jax():
    space = Dict({"b": Discrete(2), "a": Dict({"d": Box(0.0, 1.0, (2,)), "c": Box(2.0, 3.0, (1,))})})
    sample = space.sample(KEYS[0])
    assert list(entries(space)) == list(entries(sample)) == ["a.c", "a.d", "b"]
    for found, leaf in zip(entries(sample, "view").values(), jax.tree.leaves(sample), strict=True):
        assert found is leaf
    assert list(entries(sample["b"], "view")) == ["view"]
    assert [space.shape for space in entries(space).values()] == [(1,), (2,), ()]
