"""Drawings of environments."""

import base64
import math
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image, ImageSequence
from recordings import make, record

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.envs.scenes import minatar, views
from stoix_like.envs.scenes.base import Recording
from stoix_like.envs.scenes.svg import draw_svg
from stoix_like.envs.spaces import Box
from stoix_like.envs.suites import jumanji
from stoix_like.errors import ConfigError
from stoix_like.rendering.animation import write_animation


def still(states, views=None):
    """Return a recording of the given states."""
    count = len(views if states is None else next(iter(vars(states).values())))
    return Recording(np.arange(count), states, views, np.zeros(count), np.zeros(count))


def scene_of(name, **state):
    """Draw a scene of the given states; return its axes and update function."""
    env = make(name)
    states = SimpleNamespace(**{field: np.asarray(values, np.float32) for field, values in state.items()})
    axes = Figure().add_subplot()
    return axes, env.scene().draw(axes, still(states))


def points(line):
    return [(round(float(x), 4), round(float(y), 4)) for x, y in zip(*line.get_data(), strict=True)]


def test_cart_pole_drawing_follows_position_and_angle():
    """The pole is upright at an angle of zero, and leans to the right at positive angles."""
    axes, update = scene_of("CartPole-v1", x=[0.0, 1.5], theta=[0.0, math.pi / 6])
    pole, cart = axes.lines[-1], axes.patches[0]
    update(0)
    # The length in gymnax is half of the pole's: 2 x 0.5.
    assert points(pole) == [(0.0, 0.1), (0.0, 1.1)]
    update(1)
    assert points(pole) == [(1.5, 0.1), (2.0, round(0.1 + math.sqrt(3) / 2, 4))]
    assert cart.get_x() + cart.get_width() / 2 == pytest.approx(1.5)


def test_pendulum_drawing_follows_angle_and_torque():
    """The pendulum is upright at an angle of zero; positive angles and torques are to the left."""
    axes, update = scene_of("Pendulum-v1", theta=[0.0, math.pi / 2, math.pi], last_u=[0.0, 1.0, -2.0])
    rod, torque = axes.lines[0], axes.lines[-1]
    tips, bars = [], []
    for step in range(3):
        update(step)
        tips.append(points(rod)[1])
        bars.append(points(torque)[1][0])
    assert tips == [(0, 1), (-1, 0), (0, -1)]
    assert bars == [0, -0.5, 1]


@pytest.mark.parametrize(("first", "second"), [(0.0, 0.0), (2.8, 0.1), (3.0, -2.0)])
def test_acrobot_terminates_when_its_tip_is_above_the_line(first, second):
    axes, update = scene_of("Acrobot-v1", joint_angle1=[first], joint_angle2=[second])
    update(0)
    line, links = axes.lines
    height = points(links)[-1][1]
    assert height == pytest.approx(-math.cos(first) - math.cos(first + second), abs=1e-3)
    env = make("Acrobot-v1")
    state = SimpleNamespace(joint_angle1=first, joint_angle2=second)
    assert bool(env.unwrapped.env._env.is_terminated(state, env.params)) == (height > points(line)[0][1])


@pytest.mark.parametrize("name", ["MountainCar-v0", "MountainCarContinuous-v0"])
def test_mountain_car_at_the_goal_is_drawn_at_the_flag(name):
    goal = {"MountainCar-v0": 0.5, "MountainCarContinuous-v0": 0.45}[name]
    axes, update = scene_of(name, position=[-math.pi / 6, goal])
    ground, flag, car = axes.lines
    update(0)
    # The bottom of the valley, where the cosine in the equations of motion is zero.
    (x, y), lowest = points(car)[0], min(ground.get_ydata())
    assert (x, y) == (pytest.approx(-math.pi / 6, abs=1e-3), pytest.approx(lowest + 0.04, abs=1e-3))
    update(1)
    assert points(car)[0][0] == pytest.approx(points(flag)[0][0])


@pytest.mark.parametrize("name", minatar.CHANNELS)
def test_every_minatar_channel_has_a_name(name):
    env = make(name)
    assert len(minatar.CHANNELS[name]) == env.observation_space.shape[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], ["env.frame_stack=3"], ["env.frame_stack=3", "env.flatten_observation=true"]]
)
def test_breakout_drawing_shows_objects_at_their_positions(overrides):
    env = make("Breakout-MinAtar", *overrides)
    keys = jax.random.key(0)[None]
    state, timestep = env.step(keys, env.reset(keys)[0], jnp.ones((1,), jnp.int32))
    native, timestep = jax.tree.map(lambda leaf: leaf[0], (env.native_state(state), timestep))
    axes = Figure().add_subplot()
    env.scene().draw(axes, still(None, np.asarray(timestep.observation.agent_view)[None]))(0)
    image = np.asarray(axes.images[0].get_array())
    legend = dict(
        zip(
            (text.get_text() for text in axes.get_legend().get_texts()),
            (line.get_color() for line in axes.get_legend().legend_handles),
            strict=True,
        )
    )
    assert list(legend) == ["paddle", "ball", "trail", "brick"]

    def colour(name):
        return [int(legend[name][start : start + 2], 16) / 255 for start in (1, 3, 5)]

    np.testing.assert_allclose(image[9, native.pos], colour("paddle"))
    np.testing.assert_allclose(image[native.ball_y, native.ball_x], colour("ball"))
    # The ball started on a brick, which its trail now covers.
    np.testing.assert_allclose(image[native.last_y, native.last_x], colour("trail"))
    shown = np.isclose(image, colour("brick")).all(-1)
    assert shown.sum() == native.brick_map.sum() - native.brick_map[native.last_y, native.last_x] == 29


def test_newest_views_undo_stacking_and_flattening():
    frames = np.arange(2 * 3 * 4 * 2).reshape(2, 3, 4, 2)
    spaces = {"": Box(0, 1, (3, 4, 2))}
    stacked = np.concatenate(list(frames), axis=-1)[None]
    np.testing.assert_array_equal(views.newest_views(stacked, spaces, ""), frames[1:])
    flat = frames.reshape(2, -1).reshape(1, -1)
    np.testing.assert_array_equal(views.newest_views(flat, spaces, ""), frames[1:])


def test_newest_views_take_an_entry_of_dictionaries_also_where_they_are_flattened_and_stacked():
    spaces = {"agent.position": Box(0, 1, (2,)), "grid": Box(0, 1, (2, 3))}
    views_of = [
        {"agent": {"position": np.arange(2) + k}, "grid": np.arange(10 + k, 16 + k).reshape(2, 3)} for k in (0, 50)
    ]
    nested = jax.tree.map(lambda leaf: leaf[None], views_of[1])
    flat = np.concatenate([np.append(view["agent"]["position"], view["grid"]) for view in views_of])[None]
    for recorded in (nested, flat):
        np.testing.assert_array_equal(views.newest_views(recorded, spaces, "grid"), [views_of[1]["grid"]])


def test_large_images_are_shown_in_colour_and_stacks_by_their_newest_frame():
    pixels = np.zeros((1, 80, 80, 4), np.uint8)
    pixels[0, :, :40, 3] = 255
    axes = Figure().add_subplot()
    views.find_scene(Box(0, 255, (80, 80, 4), np.uint8)).draw(axes, still(None, pixels))(0)
    image = np.asarray(axes.images[0].get_array())
    assert (image[:, :40] == 1).all()
    assert (image[:, 40:] == 0).all()
    axes = Figure().add_subplot()
    views.find_scene(Box(0, 255, (80, 80, 3), np.uint8)).draw(axes, still(None, pixels[..., 1:]))(0)
    np.testing.assert_array_equal(np.asarray(axes.images[0].get_array())[0, 0], [0, 0, 1])


def test_small_images_are_drawn_as_grids_and_vectors_are_refused():
    env = make("Catch-bsuite")
    view = np.asarray(env.reset(jax.random.key(0)[None])[1].observation.agent_view[0])
    axes = Figure().add_subplot()
    env.scene().draw(axes, still(None, view[None]))(0)
    image = np.asarray(axes.images[0].get_array())
    bright = image.sum(-1) > 1
    np.testing.assert_array_equal(bright, view > 0)
    config = parse_config(compose_config(["env=probe/value"])).env
    with pytest.raises(ConfigError, match="env.scenario.name=value has no drawing: use an environment with images"):
        factory.make_drawn(config)


def test_vector_graphics_are_drawn_with_their_transforms_and_styles():
    piece = b'<svg width="10" height="10"><path d="M 0,0 L 10,0 L 10,10 z" style="fill:#0000ff; stroke:none"/></svg>'
    href = "data:image/svg+xml;base64," + base64.b64encode(piece).decode()
    axes = Figure().add_subplot()
    draw_svg(
        axes,
        f"""<svg width="100" height="50" xmlns:xlink="http://www.w3.org/1999/xlink">
        <g transform="translate(10,5) scale(2)" fill="rgb(255,0,0)"><circle cx="5" cy="5" r="1"/>
        <rect x="1" y="2" width="3" height="4" transform="rotate(90)"/></g>
        <image x="40" y="20" width="20" height="20" xlink:href="{href}"/>
        <text x="7" y="9" text-anchor="middle">K</text></svg>""",
    )
    circle, rectangle, triangle = (patch.get_path().get_extents().bounds for patch in axes.patches)
    # 10 + 2 × (5 ± 1) and 5 + 2 × (5 ± 1).
    assert circle == pytest.approx((18, 13, 4, 4), abs=0.1)
    # A rotation by 90° turns (x, y) to (-y, x): x from -6 to -2 and y from 1 to 4, then scaled and moved.
    assert rectangle == pytest.approx((10 - 12, 5 + 2, 8, 6))
    assert triangle == pytest.approx((40, 20, 20, 20))
    assert [patch.get_facecolor()[:3] for patch in axes.patches] == [(1, 0, 0), (1, 0, 0), (0, 0, 1)]
    (text,) = axes.texts
    assert (text.get_text(), text.get_position(), text.get_ha()) == ("K", (7, 9), "center")
    assert axes.get_ylim() == (50, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["navix/empty_5x5", "xminigrid/empty_5x5", "pgx/tic_tac_toe"])
def test_suites_are_drawn_by_their_own_pictures(name, tmp_path):
    env = factory.make_drawn(parse_config(compose_config([f"env={name}"])).env)

    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        return state.carry, jnp.ones((1,), jnp.int32) if mask is None else jnp.argmax(mask, -1), ()

    path = tmp_path / "out.gif"
    assert write_animation(path, env.scene(), record(env, 2, act)) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    # The title above changes in any case.
    assert (frames[1][40:] != frames[0][40:]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(jumanji._DRAWN))
def test_jumanji_is_drawn_by_its_own_viewer(name, tmp_path):
    config = parse_config(compose_config(["env=jumanji", f"env.scenario.name={name}", "env.time_limit=3"])).env
    env = factory.make_drawn(config)
    open_before = pyplot.get_fignums()  # other tests may leave theirs open

    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        sizes = getattr(env.action_space, "nvec", (mask.shape[-1],))
        choices = [jnp.argmax(part, -1) for part in jnp.split(mask, np.cumsum(sizes)[:-1], -1)]
        return state.carry, choices[0] if len(choices) == 1 else jnp.stack(choices, -1), ()

    path = tmp_path / "out.gif"
    assert write_animation(path, env.scene(), record(env, 3, act, seed=1)) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    height = len(frames[0]) // 8
    # The title above changes in any case.
    assert any((frame[height:] != frames[0][height:]).any() for frame in frames)
    assert pyplot.get_fignums() == open_before
