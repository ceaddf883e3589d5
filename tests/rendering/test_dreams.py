import jax
import numpy as np
import pytest
from PIL import Image

from stoix_like.base_types import Axes, Dream
from stoix_like.envs.legends import Legend, find_legend
from stoix_like.envs.scenes.base import GROUND
from stoix_like.envs.spaces import Box, Dict
from stoix_like.rendering.dreams import DreamedEpisode, DreamPlayer, lines, pictures, write_dream
from support import dreamers
from support.recordings import make
from support.toys import make_recorder


def dreamed(env, max_steps=1000, **options):
    system = make_recorder(Axes())._replace(dream=dreamers.dream)
    return DreamPlayer("toy on env", lambda hyperparams: system, env, max_steps, **options).dream(
        {}, {}, jax.random.key(0)
    )


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
        dream=dreamers.dream, eval_act=lambda shared, state, key: (state.carry, np.ones((1, 1), np.float32), ())
    )
    for max_steps, length, count in ((1000, 20, 20), (10, 20, 11), (2, 20, 3)):
        episode = DreamPlayer("", lambda hyperparams: system, env, max_steps, 5, length).dream(
            {}, {}, jax.random.key(0)
        )
        assert len(episode.reward) == count == len(episode.dream.reward)
        assert episode.context == min(5, count - 1)
        assert not episode.terminated.any()
        np.testing.assert_array_equal(episode.dream.reward, [0.0] + [1.0] * (count - 1))


NAMELESS = Legend()


def episode(space, view, dreamed, legend=NAMELESS):
    """Return three observations, of which the model saw one; the last one terminates."""
    dream = Dream(dreamed, np.asarray([0.0, 0.5, 0.5]), np.asarray([1.0, 0.75, 0.25]))
    return DreamedEpisode(
        "toy on env", space, legend, 1, view, np.asarray([0.0, 1.0, 2.0]), np.asarray([False, False, True]), dream
    )


def test_channels_are_colours_and_pixels_are_scaled_by_their_bounds():
    """Of four channels, the first lies on top; bytes of three channels are red, green and blue."""
    grid = np.zeros((3, 4, 5, 4), bool)
    grid[:, 0, 0, :2] = True
    (picture,) = pictures(episode(Box(0.0, 1.0, (4, 5, 4)), grid, 0.5 * grid))
    colours = picture.truth[0]
    assert (colours[0, 0] == np.array([0xFF, 0xD1, 0x66]) / 255).all()
    ground = [int(GROUND[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    np.testing.assert_allclose(colours[1, 1], ground)
    # Half of two of the four channels is missing.
    assert picture.difference[0, 0, 0] == pytest.approx(0.25)
    assert picture.difference.sum() == pytest.approx(3 * 0.25)
    pixels = np.full((3, 16, 16, 3), (255, 51, 0), np.uint8)
    (picture,) = pictures(episode(Box(0, 255, (16, 16, 3), np.uint8), pixels, pixels + np.float32([99, 0, 51])))
    np.testing.assert_allclose(picture.truth[0, 0, 0], [1.0, 0.2, 0.0])
    np.testing.assert_allclose(picture.dream[0, 0, 0], [1.0, 0.2, 0.2])


def test_numbers_have_the_names_of_the_environment_and_angles_are_angles():
    angles = np.asarray([0.5, 3.0, -3.0])
    view = np.stack([np.cos(angles), np.sin(angles), np.arange(3.0)], axis=-1)
    found = lines(episode(Box(-8.0, 8.0, (3,)), view, view, find_legend("Pendulum-v1")), 10)
    assert [line.label for line in found] == ["angle (rad)", "angular velocity (rad/s)", "reward", "continues"]
    np.testing.assert_allclose(found[0].truth, [0.5, 3.0, np.nan])
    np.testing.assert_array_equal(found[2].truth, [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(found[3].truth, [1.0, 1.0, 0.0])
    np.testing.assert_array_equal(found[3].dream, [1.0, 0.75, 0.25])


def nested():
    space = Dict({"camera": Box(0, 255, (16, 16, 3), np.uint8), "speed": Box(-np.inf, np.inf, (3,))})
    view = {"camera": np.zeros((3, 16, 16, 3), np.uint8), "speed": np.outer(np.arange(3.0), [1.0, 3.0, 2.0])}
    return episode(space, view, {name: leaf + 1.0 for name, leaf in view.items()})


def test_of_unnamed_numbers_those_that_vary_most_are_drawn_and_images_are_no_numbers():
    assert [line.label for line in lines(nested(), 2)][:2] == ["speed[1]", "speed[2]"]
    assert [picture.name for picture in pictures(nested())] == ["camera"]


@pytest.mark.slow
def test_animations_have_a_frame_for_each_step(tmp_path):
    path = tmp_path / "dream.gif"
    assert write_dream(path, nested()) == 3
    with Image.open(path) as gif:
        assert gif.n_frames == 3
    answers = iter([False, True])
    with pytest.raises(InterruptedError):
        write_dream(tmp_path / "other.gif", nested(), lambda: next(answers))
    assert [entry.name for entry in tmp_path.iterdir()] == ["dream.gif"]
