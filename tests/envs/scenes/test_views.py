import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from stoix_like.envs import factory
from stoix_like.envs.scenes import views
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from support.compiled import run
from support.recordings import make, still
from support.set_ups import config_of


def test_newest_views_undo_stacking_and_flattening_and_leave_out_what_wrappers_add():
    frames = np.arange(2 * 3 * 4 * 2).reshape(2, 3, 4, 2)
    spaces = {"": Box(0, 1, (3, 4, 2))}
    stacked, flat = np.concatenate(list(frames), axis=-1)[None], frames.reshape(1, -1)
    named = {"observation": stacked, "last_reward": np.ones((1, 1))}
    appended = np.append(flat, [7, 8, 9])[None]
    for recorded in (stacked, flat, named, appended):
        np.testing.assert_array_equal(views.newest_views(recorded, spaces, ""), frames[1:])
    with pytest.raises(ConfigError, match="lack entries of the picture: draw without env.observation_mask"):
        views.newest_views(appended[:, :23], spaces, "")


def test_newest_views_take_an_entry_of_dictionaries_also_where_they_are_flattened_and_stacked():
    spaces = {"agent.position": Box(0, 1, (2,)), "grid": Box(0, 1, (2, 3))}
    views_of = [
        {"agent": {"position": np.arange(2) + k}, "grid": np.arange(10 + k, 16 + k).reshape(2, 3)} for k in (0, 50)
    ]
    nested = jax.tree.map(lambda leaf: leaf[None], views_of[1])
    flat = np.concatenate([np.append(view["agent"]["position"], view["grid"]) for view in views_of])[None]
    for recorded in (nested, flat):
        np.testing.assert_array_equal(views.newest_views(recorded, spaces, "grid"), [views_of[1]["grid"]])


def test_newest_views_are_those_of_an_agent_beside_the_world():
    own, world = np.ones((1, 3, 4, 2)), np.zeros((1, 3, 4, 4))
    beside = {"own": own, "world": world}
    np.testing.assert_array_equal(views.newest_views(beside, {"": Box(0, 1, (3, 4, 2))}, ""), own)
    # Those of a suite that knows the world itself have both entries.
    both = {"own": Box(0, 1, (3, 4, 2)), "world": Box(0, 1, (3, 4, 4))}
    for name, expected in beside.items():
        np.testing.assert_array_equal(views.newest_views(beside, both, name), expected)


def drawn(space, pixels):
    axes = Figure().add_subplot()
    views.find_scene(space).draw(axes, still(None, pixels))(0)
    return np.asarray(axes.images[0].get_array())


def test_large_images_are_shown_in_colour_and_stacks_by_their_newest_frame():
    pixels = np.zeros((1, 80, 80, 4), np.uint8)
    pixels[0, :, :40, 3] = 255
    image = drawn(Box(0, 255, (80, 80, 4), np.uint8), pixels)
    assert (image[:, :40] == 1).all()
    assert (image[:, 40:] == 0).all()
    for size in (80, 64):
        image = drawn(Box(0, 255, (size, size, 3), np.uint8), pixels[:, :size, :size, 1:])
        np.testing.assert_array_equal(image[0, 0], [0, 0, 1])


def test_small_images_are_drawn_as_grids_and_vectors_are_refused():
    env = make("Catch-bsuite")
    view = np.asarray(run(env.reset, jax.random.key(0)[None])[1].observation.agent_view[0])
    axes = Figure().add_subplot()
    env.scene().draw(axes, still(None, view[None]))(0)
    image = np.asarray(axes.images[0].get_array())
    bright = image.sum(-1) > 1
    np.testing.assert_array_equal(bright, view > 0)


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("env=probe/value", "env.scenario.name=value has no drawing: use one that its suite draws"),
        ("env._target_=support.custom_envs.Corridor", r"Corridor has no drawing: define its method scene\(\), or obs"),
    ],
)
def test_environments_without_a_drawing_are_refused(env, words):
    with pytest.raises(ConfigError, match=words):
        factory.make_drawn(config_of(env).env)
