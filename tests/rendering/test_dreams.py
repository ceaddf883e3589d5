"""Episodes, and dreams of them."""

import jax
import numpy as np
import pytest

from stoix_like.base_types import Axes
from stoix_like.rendering.dreams import Dreamer
from support import dreamers
from support.recordings import make
from support.toys import make_recorder


def dreamed(env, max_steps=1000, **options):
    """Dream an episode of constant pushes to the left."""
    system = make_recorder(Axes())._replace(dream=dreamers.dream)
    return Dreamer("toy on env", lambda hyperparams: system, env, max_steps, **options).dream({}, {}, jax.random.key(0))


def test_an_episode_is_dreamed_from_its_first_observations_up_to_its_end():
    """The pole falls within a dozen steps: each pays 1, and the last one terminates."""
    episode = dreamed(make("CartPole-v1"), context=3, length=40)
    count = len(episode.reward)
    assert 9 <= count <= 12
    np.testing.assert_array_equal(episode.reward, [0.0] + [1.0] * (count - 1))
    np.testing.assert_array_equal(episode.terminated, [False] * (count - 1) + [True])
    np.testing.assert_array_equal(episode.dream.view[:3], episode.view[:3])
    expected = episode.view[2] + np.arange(1, count - 2)[:, None]
    np.testing.assert_allclose(episode.dream.view[3:], expected, rtol=1e-6)
    np.testing.assert_array_equal(episode.dream.continues, [1.0] * 3 + [0.75] * (count - 3))
    assert (np.abs(episode.view[0]) <= 0.05).all()
    assert np.abs(episode.view[-1][2]) > 0.2
    assert [feature.name for feature in episode.legend.features][:1] == ["pole_angle"]


@pytest.mark.slow
def test_an_episode_stops_at_its_length_and_at_max_steps():
    env = make("Pendulum-v1")
    system = make_recorder(Axes())._replace(
        dream=dreamers.dream,
        eval_act=lambda shared, state, key: (state.carry, np.ones((1, 1), np.float32), ()),
    )
    for max_steps, length, count in ((1000, 20, 20), (10, 20, 11), (2, 20, 3)):
        episode = Dreamer("", lambda hyperparams: system, env, max_steps, 5, length).dream({}, {}, jax.random.key(0))
        assert len(episode.reward) == count == len(episode.dream.reward)
        assert episode.context == min(5, count - 1)
        assert not episode.terminated.any()
        np.testing.assert_array_equal(episode.dream.reward, [0.0] + [1.0] * (count - 1))
