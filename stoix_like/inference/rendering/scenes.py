"""Drawings of environments."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.spaces import Dict
from stoix_like.errors import ConfigError
from stoix_like.inference.rendering.episode import Recording

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Update = Callable[[int], None]
"""A function that updates a drawing to the state at a step."""
Draw = Callable[["Axes", VectorEnvironment, Recording], Update]
"""A function that draws the first state of a recording, and returns an `Update`."""

# Limits of legible drawings: cells per side, and colours.
MAX_SIDE, MAX_CHANNELS = 64, 10
_DARK, _LIGHT, _ACCENT = "#333344", "#9aa0b4", "#d1495b"
_GROUND = "#1b1b26"
_COLOURS = (
    "#ffd166",
    "#ef476f",
    "#8d99ae",
    "#118ab2",
    "#f78c6b",
    "#06d6a0",
    "#9b5de5",
    "#83c5be",
    "#a47148",
    "#eeeeee",
)


class Scene(NamedTuple):
    """The drawing of an environment.

    Attributes:
        draw: the drawing function.
        fps: frames per second.
    """

    draw: Draw
    fps: int


def find_scene(config: EnvConfig, env: VectorEnvironment) -> Scene:
    """Return the scene of an environment.

    Args:
        config: the environment and its wrappers.
        env: the environment built from `config`.

    Returns:
        The scene.

    Raises:
        ConfigError: if the environment has no scene; the message lists those that have one.
    """
    name = config.scenario.name
    if config.env_name == "gymnax" and name in CLASSIC_CONTROL:
        return CLASSIC_CONTROL[name]
    if config.env_name == "gymnax" and name in MINATAR:
        return Scene(partial(draw_grid, names=MINATAR[name]), fps=10)
    if config.env_name == "jumanji" and name in JUMANJI:
        return Scene(draw_jumanji, fps=8)
    shape = _image_shape(env)
    if len(shape) in (2, 3) and max(shape[:2]) <= MAX_SIDE and math.prod(shape[2:]) <= MAX_CHANNELS:
        return Scene(draw_grid, fps=10)
    raise ConfigError(
        f"env.scenario.name={name} of env.env_name={config.env_name} has no rendering: use"
        f" {', '.join([*CLASSIC_CONTROL, *MINATAR])} of gymnax, {', '.join(JUMANJI)} of jumanji, or an environment with"
        f" image observations of at most {MAX_SIDE} × {MAX_SIDE} pixels and {MAX_CHANNELS} channels"
    )


def _image_shape(env: VectorEnvironment) -> tuple[int, ...]:
    """Return the shape of one view of the suite's environment; empty for a dictionary, which is no image."""
    space = env.unwrapped.observation_space
    return () if isinstance(space, Dict) else tuple(space.shape)


def draw_cart_pole(axes: Axes, env: VectorEnvironment, recording: Recording) -> Update:
    """Draw a pole on a cart, and the ends of the track."""
    params, state = env.params, recording.states
    limit, length = params.x_threshold, 2 * params.length
    _frame(axes, (-limit - 0.4, limit + 0.4), (-0.5, 0.3 + length + 0.2))
    axes.plot([-limit, limit], [0, 0], color=_LIGHT, zorder=0)
    axes.plot([-limit, -limit, np.nan, limit, limit], [-0.15, 0.15, np.nan, -0.15, 0.15], color=_ACCENT)
    cart = axes.bar([0.0], [0.3], width=0.5, bottom=-0.15, color=_DARK)[0]
    (pole,) = axes.plot([], [], color=_ACCENT, linewidth=5, solid_capstyle="round")

    def update(step: int) -> None:
        x, theta = float(state.x[step]), float(state.theta[step])
        cart.set_x(x - 0.25)
        pole.set_data([x, x + length * math.sin(theta)], [0.1, 0.1 + length * math.cos(theta)])

    return update


def draw_pendulum(axes: Axes, env: VectorEnvironment, recording: Recording) -> Update:
    """Draw a pendulum, upright at an angle of zero, and the torque as a bar below."""
    params, state = env.params, recording.states
    _frame(axes, (-1.4, 1.4), (-1.7, 1.3))
    (rod,) = axes.plot([], [], color=_ACCENT, linewidth=9, solid_capstyle="round")
    axes.plot([0], [0], "o", color=_DARK, markersize=7)
    axes.plot([-1, 1], [-1.45, -1.45], color=_LIGHT, linewidth=1)
    (torque,) = axes.plot([], [], color=_DARK, linewidth=6, solid_capstyle="butt")
    axes.text(0, -1.65, "torque", ha="center", va="center", fontsize=8, color=_DARK)

    def update(step: int) -> None:
        theta = float(state.theta[step])
        rod.set_data([0, -math.sin(theta)], [0, math.cos(theta)])
        # A positive torque turns the pendulum to the left.
        torque.set_data([0, -float(state.last_u[step]) / params.max_torque], [-1.45, -1.45])

    return update


def draw_acrobot(axes: Axes, env: VectorEnvironment, recording: Recording) -> Update:
    """Draw two links hanging from a joint, and the height that the tip must reach."""
    state = recording.states
    _frame(axes, (-2.2, 2.2), (-2.2, 2.2))
    axes.plot([-2.2, 2.2], [1, 1], color=_LIGHT, linestyle="--", linewidth=1)
    (links,) = axes.plot([], [], "o-", color=_ACCENT, linewidth=6, markerfacecolor=_DARK, markeredgecolor=_DARK)

    def update(step: int) -> None:
        first = float(state.joint_angle1[step])
        second = first + float(state.joint_angle2[step])
        x, y = math.sin(first), -math.cos(first)
        links.set_data([0, x, x + math.sin(second)], [0, y, y - math.cos(second)])

    return update


def draw_mountain_car(axes: Axes, env: VectorEnvironment, recording: Recording) -> Update:
    """Draw a car in a valley, and the flag at the goal."""
    params, state = env.params, recording.states

    def height(position: Any) -> Any:
        # The slope is proportional to the cosine in the equations of motion.
        return 0.45 * np.sin(3 * position) + 0.55

    _frame(axes, (params.min_position - 0.05, params.max_position + 0.05), (-0.05, 1.35))
    ground = np.linspace(params.min_position, params.max_position, 100)
    axes.plot(ground, height(ground), color=_DARK)
    goal = params.goal_position
    axes.plot([goal, goal, goal + 0.07, goal], height(goal) + np.array([0, 0.25, 0.2, 0.15]), color=_ACCENT)
    (car,) = axes.plot([], [], "o", color=_ACCENT, markersize=12, markeredgecolor=_DARK)

    def update(step: int) -> None:
        position = float(state.position[step])
        car.set_data([position], [height(position) + 0.04])

    return update


def draw_grid(axes: Axes, env: VectorEnvironment, recording: Recording, names: tuple[str | None, ...] = ()) -> Update:
    """Draw the newest view of the agent, with one colour per channel and the first channel on top.

    Args:
        axes: axes to draw on.
        env: the environment.
        recording: the episode.
        names: names of the channels for the legend; channels named None are hidden. By default, draws all channels
            without a legend.

    Returns:
        The update function.
    """
    shape = _image_shape(env)
    images = newest_views(recording.views, shape).reshape(len(recording.views), *shape[:2], -1).astype(np.float32)
    span = max(float(np.abs(images).max()), 1e-6)
    colours = np.array([_rgb(colour) for colour in _COLOURS[: images.shape[-1]]])
    shown = [channel for channel in range(images.shape[-1]) if not names or names[channel]]
    picture = axes.imshow(np.zeros((*shape[:2], 3)), interpolation="nearest", vmin=0, vmax=1)
    axes.set_axis_off()
    height, width = shape[:2]
    axes.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, color=_GROUND, linewidth=0.5)
    axes.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, color=_GROUND, linewidth=0.5)
    if names:
        for channel in shown:
            axes.plot([], [], "s", color=_COLOURS[channel], markeredgecolor=_DARK, label=names[channel])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, handletextpad=0.2)

    def update(step: int) -> None:
        canvas = np.broadcast_to(np.array(_rgb(_GROUND)), (*shape[:2], 3)).copy()
        for channel in reversed(shown):
            strength = np.abs(images[step, :, :, channel, None]) / span
            canvas = (1 - strength) * canvas + strength * colours[channel]
        picture.set_data(canvas)

    return update


def draw_jumanji(axes: Axes, env: VectorEnvironment, recording: Recording) -> Update:
    """Draw an environment of jumanji with its own viewer."""
    viewer = env.unwrapped.env.viewer  # type: ignore[attr-defined]
    # By default, viewers open windows of their own.
    viewer._get_fig_ax = lambda *_, **__: (axes.figure, axes)
    viewer._display = lambda _: None

    def update(step: int) -> None:
        viewer.render(jax.tree.map(lambda leaf: leaf[step], recording.states))

    return update


def newest_views(views: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Extract the newest of stacked, possibly flattened frames.

    Args:
        views: `[T, *view]` views of the agent.
        shape: shape of one view in the suite's environment.

    Returns:
        `[T, *shape]` frames.
    """
    flattened = views.ndim - 1 != len(shape)
    width = math.prod(shape) if flattened else shape[-1]
    return views[..., -width:].reshape(len(views), *shape)


CLASSIC_CONTROL = {
    "CartPole-v1": Scene(draw_cart_pole, fps=50),
    "Pendulum-v1": Scene(draw_pendulum, fps=20),
    "Acrobot-v1": Scene(draw_acrobot, fps=15),
    "MountainCar-v0": Scene(draw_mountain_car, fps=25),
    "MountainCarContinuous-v0": Scene(draw_mountain_car, fps=25),
}
# Those whose viewers draw host arrays on flat axes, in less than a second.
JUMANJI = (
    "CVRP-v1",
    "Cleaner-v0",
    "Game2048-v1",
    "JobShop-v0",
    "Knapsack-v1",
    "RobotWarehouse-v0",
    "Snake-v1",
    "Sudoku-v0",
    "Sudoku-very-easy-v0",
    "TSP-v1",
    "Tetris-v0",
)
_SPEEDS = tuple(f"trail, speed {speed}" for speed in range(1, 6))
# Names of the observation channels, in order; the aliens would hide the two channels of their direction.
MINATAR: dict[str, tuple[str | None, ...]] = {
    "Asterix-MinAtar": ("player", "enemy", "trail", "gold"),
    "Breakout-MinAtar": ("paddle", "ball", "trail", "brick"),
    "Freeway-MinAtar": ("chicken", "car", *_SPEEDS),
    "Seaquest-MinAtar": (
        "submarine",
        "its stern",
        "bullet",
        "trail",
        "enemy bullet",
        "fish",
        "enemy submarine",
        "oxygen",
        "divers aboard",
        "diver",
    ),
    "SpaceInvaders-MinAtar": ("cannon", "alien", None, None, "bullet", "enemy bullet"),
}


def _frame(axes: Axes, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
    axes.set(xlim=x_limits, ylim=y_limits, aspect="equal")
    axes.set_axis_off()


def _rgb(colour: str) -> tuple[float, ...]:
    return tuple(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
