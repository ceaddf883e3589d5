import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Axes, EpisodeMetrics, Observation, TimeStep


def test_an_episode_starts_after_a_reset_and_after_an_automatic_one():
    """One was reset, one is within an episode, two ended one of 7 steps, and the last was cut, and is not reported."""
    zeros, view = jnp.zeros(5), Observation(jnp.zeros((5, 1)))
    terminated, truncated = jnp.arange(5) == 2, jnp.arange(5) >= 3
    episode = EpisodeMetrics(zeros, jnp.asarray([0, 4, 7, 7, 3]), jnp.asarray([False, False, True, True, False]))
    step = TimeStep(view, zeros, terminated, truncated, view, episode)
    assert step.starts_episode.tolist() == [True, False, True, True, True]


def test_axes_average_and_sum_over_all_shards():
    """Over the shards 1, 2, 3 and 6 the mean is 3 and the sum 12; without axes both return their argument."""
    shards = jnp.asarray([[1.0, 2.0], [3.0, 6.0]])
    axes = Axes(("device", "batch"))
    for reduce, expected, alone in ((axes.mean, 3.0, Axes().mean), (axes.sum, 12.0, Axes().sum)):
        inner = jax.vmap(reduce, axis_name="batch")
        np.testing.assert_array_equal(jax.vmap(inner, axis_name="device")(shards), np.full((2, 2), expected))
        np.testing.assert_array_equal(alone(shards), shards)
