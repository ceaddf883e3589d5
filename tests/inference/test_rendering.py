import math
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.figure import Figure
from PIL import Image, ImageSequence
from toys import make_recorder

from stoix_like.base_types import Axes
from stoix_like.config import compose_config, parse_config
from stoix_like.envs import factory
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.inference.rendering import episode as episodes
from stoix_like.inference.rendering.animation import MAX_FRAMES, check_gif_path, frame_steps, write_gif
from stoix_like.inference.rendering.episode import Recording, record_episode
from stoix_like.inference.rendering.scenes import CLASSIC_CONTROL, JUMANJI, MINATAR, find_scene, newest_views


def make(name, *overrides):
    config = parse_config(compose_config(["env=gymnax", f"env.scenario.name={name}", *overrides])).env
    return config, factory.make_eval(config)


@pytest.fixture(scope="module")
def cart_pole():
    """Record an episode with constant pushes to the left."""
    _, env = make("CartPole-v1")
    return env, record_episode(make_recorder(Axes()), {}, env, jax.random.key(0), 1000)


def test_recording_is_one_whole_episode(cart_pole):
    _, recording = cart_pole
    length = len(recording.returns) - 1
    # The pole falls within a dozen steps, each with a reward of 1.
    assert 8 <= length <= 11
    np.testing.assert_array_equal(recording.returns, np.arange(length + 1))
    np.testing.assert_array_equal(recording.finished, [False] * length + [True])
    state = recording.states
    expected = np.stack([state.x, state.x_dot, state.theta, state.theta_dot], axis=-1)
    np.testing.assert_array_equal(recording.views, expected)
    assert state.time.tolist() == list(range(length + 1))
    assert (np.diff(state.x[1:]) < 0).all()


@pytest.mark.parametrize(("max_steps", "length"), [(1000, 30), (23, 23), (24, 24)])
def test_recording_joins_chunks_and_stops_at_max_steps(max_steps, length, monkeypatch):
    """Episodes longer than a chunk, whether their length is a multiple of its size or not."""
    monkeypatch.setattr(episodes, "_CHUNK", 8)
    _, env = make("Pendulum-v1", "env.time_limit=30")
    system = make_recorder(Axes())._replace(eval_act=lambda shared, state, key: (state.carry, jnp.zeros((1, 1)), ()))
    recording = record_episode(system, {}, env, jax.random.key(0), max_steps)
    assert recording.states.time.tolist() == list(range(length + 1))
    assert bool(recording.finished[-1]) == (length == 30)
    assert (np.diff(recording.returns) < 0).all()


def scene_of(name, **state):
    """Draw a scene of the given states; return its axes and update function."""
    config, env = make(name)
    states = SimpleNamespace(**{field: np.asarray(values, np.float32) for field, values in state.items()})
    axes = Figure().add_subplot()
    count = len(next(iter(vars(states).values())))
    recording = Recording(states, np.zeros((count, *env.observation_space.shape)), np.zeros(count), np.zeros(count))
    return axes, find_scene(config, env).draw(axes, env, recording)


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
    _, env = make("Acrobot-v1")
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


@pytest.mark.parametrize("name", MINATAR)
def test_every_minatar_channel_has_a_name(name):
    _, env = make(name)
    assert len(MINATAR[name]) == env.observation_space.shape[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], ["env.frame_stack=3"], ["env.frame_stack=3", "env.flatten_observation=true"]]
)
def test_breakout_drawing_shows_objects_at_their_positions(overrides):
    config, env = make("Breakout-MinAtar", *overrides)
    keys = jax.random.key(0)[None]
    state, timestep = env.step(keys, env.reset(keys)[0], jnp.ones((1,), jnp.int32))
    native, timestep = jax.tree.map(lambda leaf: leaf[0], (env.native_state(state), timestep))
    axes = Figure().add_subplot()
    recording = Recording(None, np.asarray(timestep.observation.agent_view)[None], np.zeros(1), np.zeros(1))
    find_scene(config, env).draw(axes, env, recording)(0)
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
    stacked = np.concatenate(list(frames), axis=-1)[None]
    np.testing.assert_array_equal(newest_views(stacked, (3, 4, 2)), frames[1:])
    flat = frames.reshape(2, -1).reshape(1, -1)
    np.testing.assert_array_equal(newest_views(flat, (3, 4, 2)), frames[1:])


def test_find_scene_supports_small_images_but_not_vectors():
    config, env = make("Catch-bsuite")
    view = np.asarray(env.reset(jax.random.key(0)[None])[1].observation.agent_view[0])
    axes = Figure().add_subplot()
    recording = Recording(None, view[None], np.zeros(1), np.zeros(1))
    find_scene(config, env).draw(axes, env, recording)(0)
    image = np.asarray(axes.images[0].get_array())
    bright = image.sum(-1) > 1
    np.testing.assert_array_equal(bright, view > 0)
    config = parse_config(compose_config(["env=probe/value"])).env
    with pytest.raises(ConfigError, match="has no rendering: use CartPole-v1, .*Breakout-MinAtar, .* 64 × 64 pixels"):
        find_scene(config, factory.make_eval(config))


@pytest.mark.parametrize("length", [0, 1, 499, 500, 998, 999, 27_000])
def test_frame_steps_are_evenly_spaced_and_bounded(length):
    steps = frame_steps(length)
    assert len(steps) <= MAX_FRAMES
    assert (steps[0], steps[-1]) == (0, length)
    assert len(set(np.diff(steps)[:-1])) <= 1
    assert length >= MAX_FRAMES or steps == list(range(length + 1))


def test_write_gif_writes_an_animation(cart_pole, tmp_path):
    env, recording = cart_pole
    path = tmp_path / "episode.gif"
    check_gif_path(path)
    path.write_text("overwritten")
    frames = write_gif(path, CLASSIC_CONTROL["CartPole-v1"], env, recording)
    assert [entry.name for entry in tmp_path.iterdir()] == ["episode.gif"]
    with Image.open(path) as gif:
        assert gif.format == "GIF"
        assert gif.n_frames == frames == len(recording.returns)
        assert gif.info["duration"] == 20  # ms, for 50 frames per second
        assert gif.info["loop"] == 0
        gif.seek(frames - 1)
        assert len(gif.convert("RGB").getcolors(1 << 16)) > 3
    assert path.stat().st_size < 5000 * frames


@pytest.mark.parametrize(
    ("name", "message"),
    [("out.mp4", "must be an animated gif: use out.gif"), ("missing/out.gif", "is not a writable directory")],
)
def test_invalid_gif_path_raises(name, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        check_gif_path(tmp_path / name)


def test_rendering_without_matplotlib_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'stoix_like\[analysis\]'"):
        check_gif_path(tmp_path / "out.gif")


@pytest.mark.slow
@pytest.mark.parametrize("name", JUMANJI)
def test_jumanji_is_drawn_by_its_own_viewer(name, tmp_path):
    config = parse_config(compose_config(["env=jumanji", f"env.scenario.name={name}", "env.time_limit=3"])).env
    env = factory.make_eval(config)

    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        sizes = getattr(env.action_space, "nvec", (mask.shape[-1],))
        choices = [jnp.argmax(part, -1) for part in jnp.split(mask, np.cumsum(sizes)[:-1], -1)]
        return state.carry, choices[0] if len(choices) == 1 else jnp.stack(choices, -1), ()

    recording = record_episode(make_recorder(Axes())._replace(eval_act=act), {}, env, jax.random.key(1), 3)
    path = tmp_path / "out.gif"
    assert write_gif(path, find_scene(config, env), env, recording) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    height = len(frames[0]) // 8
    # The title above changes in any case.
    assert any((frame[height:] != frames[0][height:]).any() for frame in frames)
    assert pyplot.get_fignums() == []
