import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.sums import add_counts, add_float, count_nothing, count_over_shards, digits, sum_nothing
from stoix_like.base_types import Axes


def count(numbers):
    return jax.lax.reduce(digits(numbers), count_nothing(), add_counts, range(numbers.ndim))


@pytest.mark.parametrize("numbers", [[], [0], [2**31 - 1] * 5, [65_535, 1, 65_536], [[70_000, 3], [1, 2**30]]])
def test_counts_are_exact(numbers):
    counted = jax.jit(count)(jnp.asarray(numbers, jnp.int32))
    assert counted.value == np.sum(numbers, dtype=np.int64)
    assert add_counts(counted, counted).value == 2 * counted.value


def test_counts_of_shards_are_carried():
    numbers = jnp.full((1000, 2), 65_535)
    counted = jax.vmap(lambda row: count_over_shards(count(row), Axes(("batch",))), axis_name="batch")(numbers)
    assert (counted.value == 2000 * 65_535).all()


def test_counts_of_members_are_read_together_and_bools_are_counted():
    assert jax.vmap(count)(jnp.asarray([[2**30] * 4, [1] * 4])).value.tolist() == [2**32, 4]
    assert count(jnp.asarray([[True, False], [True, True]])).value == 3


def test_a_sum_of_floats_keeps_its_rounding_error():
    def total(number, times):
        return jax.jit(
            lambda: jax.lax.fori_loop(0, times, lambda _, sums: add_float(sums, jnp.float32(number)), sum_nothing())
        )()

    # 3e7 sums of 0.1 in float32 stop at 2**21: a plain sum is wrong by a third.
    summed = total(0.1, 30_000_000)
    np.testing.assert_allclose(summed.total, 30_000_000 * np.float64(np.float32(0.1)), rtol=1e-7)


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
def test_a_sum_that_is_not_finite_stays_so(number):
    summed = add_float(add_float(sum_nothing(), jnp.float32(number)), jnp.float32(1.0))
    np.testing.assert_equal(float(summed.total), number)
