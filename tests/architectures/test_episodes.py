import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.episodes import add_episodes, no_episodes, of_games, reduce_episodes
from stoix_like.architectures.sums import add_counts, add_float, count_nothing, count_over_shards, digits, sum_nothing
from stoix_like.base_types import Axes, EpisodeMetrics
from stoix_like.envs.wrappers.episodes import AGENT_RETURN


def test_episode_sums_include_only_finished_episodes_of_all_shards():
    """Each environment is a shard."""
    episodes = EpisodeMetrics(
        episode_return=jnp.asarray([[1.0, 5.0], [2.0, 7.0]]),
        episode_length=jnp.asarray([[1, 5], [2, 7]]),
        finished=jnp.asarray([[False, True], [True, False]]),
        measures={"won": jnp.asarray([[1.0, 0.25], [0.5, 1.0]])},
    )
    reduced = lambda episodes: reduce_episodes(add_episodes(no_episodes(["won"]), episodes), Axes(("shard",)))  # noqa: E731
    sums = jax.jit(jax.vmap(reduced, in_axes=1, out_axes=None, axis_name="shard"))(episodes)
    assert (sums.number.value, sums.return_sum.total, sums.length_sum.value) == (2, 7.0, 7)
    assert (sums.return_min, sums.return_max, sums.measures["won"].total) == (2.0, 5.0, 0.75)


def test_a_window_of_ten_billion_steps_loses_no_step_and_no_return():
    # 10,000 rollouts in which 1,000 environments finish an episode of 999,999 steps: 32-bit counters of steps would
    # wrap in the fifth rollout.
    episodes = EpisodeMetrics(
        episode_return=jnp.full((1, 1000), 0.1),
        episode_length=jnp.full((1, 1000), 999_999),
        finished=jnp.ones((1, 1000), bool),
    )
    rollouts = 10_000
    sums = jax.jit(
        lambda: jax.lax.fori_loop(0, rollouts, lambda _, sums: add_episodes(sums, episodes), no_episodes())
    )()
    assert sums.number.value == rollouts * 1000
    assert sums.length_sum.value == rollouts * 1000 * 999_999
    np.testing.assert_allclose(sums.return_sum.total, rollouts * 100.0, rtol=1e-6)


def test_a_game_counts_once_and_its_measures_are_means_over_agents():
    """Two games of two agents; the return of each agent is a measure of its own."""
    measures = {AGENT_RETURN: np.array([1.0, 3.0, 2.0, 6.0]), "won": np.array([0.0, 1.0, 1.0, 1.0])}
    rows = EpisodeMetrics(np.array([4.0, 4.0, 8.0, 8.0]), np.array([3, 3, 5, 5]), np.array([True] * 4), measures)
    games = jax.tree.map(lambda leaf: leaf.tolist(), of_games(rows, 2))
    own = {"agent_0_return": [1.0, 2.0], "agent_1_return": [3.0, 6.0]}
    assert games[:3] == ([4.0, 8.0], [3, 5], [True, True])
    assert games.measures == {AGENT_RETURN: [2.0, 4.0], "won": [0.5, 1.0], **own}
    assert of_games(rows, 1) is rows


def count(numbers):
    return jax.lax.reduce(digits(numbers), count_nothing(), add_counts, range(numbers.ndim))


@pytest.mark.parametrize("numbers", [[], [0], [2**31 - 1] * 5, [65_535, 1, 65_536], [[70_000, 3], [1, 2**30]]])
def test_counts_are_exact(numbers):
    counted = jax.jit(count)(jnp.asarray(numbers, jnp.int32))
    assert counted.value == np.sum(numbers, dtype=np.int64)
    assert add_counts(counted, counted).value == 2 * counted.value


def test_counts_of_bools_of_shards_and_of_members():
    assert count(jnp.asarray([[True, False], [True, True]])).value == 3
    numbers = jnp.full((1000, 2), 65_535)
    counted = jax.vmap(lambda row: count_over_shards(count(row), Axes(("batch",))), axis_name="batch")(numbers)
    assert (counted.value == 2000 * 65_535).all()
    counted = jax.vmap(count)(jnp.asarray([[2**30] * 4, [1] * 4]))
    assert counted.value.tolist() == [2**32, 4]


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
