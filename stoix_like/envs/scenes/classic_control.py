"""Drawings of classic control, from the states of gymnax."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stoix_like.envs.scenes.base import ACCENT, DARK, LIGHT, RecordedEpisode, Scene, Update, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def find_scene(name: str, params: Any) -> Scene | None:
    """Return the scene of an environment. Returns the scene; None if it is not one of classic control."""
    draw, fps = _DRAWINGS.get(name, (None, 0))
    return None if draw is None else Scene(partial(draw, params), fps)


def draw_cart_pole(params: Any, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw a pole on a cart, and the ends of the track."""
    state = recording.states
    limit, length = params.x_threshold, 2 * params.length
    frame(axes, (-limit - 0.4, limit + 0.4), (-0.5, 0.3 + length + 0.2))
    axes.plot([-limit, limit], [0, 0], color=LIGHT, zorder=0)
    axes.plot([-limit, -limit, np.nan, limit, limit], [-0.15, 0.15, np.nan, -0.15, 0.15], color=ACCENT)
    cart = axes.bar([0.0], [0.3], width=0.5, bottom=-0.15, color=DARK)[0]
    (pole,) = axes.plot([], [], color=ACCENT, linewidth=5, solid_capstyle="round")

    def update(entry: int) -> None:
        x, theta = float(state.x[entry]), float(state.theta[entry])
        cart.set_x(x - 0.25)
        pole.set_data([x, x + length * math.sin(theta)], [0.1, 0.1 + length * math.cos(theta)])

    return update


def draw_pendulum(params: Any, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw a pendulum, upright at an angle of zero, and the torque as a bar below."""
    state = recording.states
    frame(axes, (-1.4, 1.4), (-1.7, 1.3))
    (rod,) = axes.plot([], [], color=ACCENT, linewidth=9, solid_capstyle="round")
    axes.plot([0], [0], "o", color=DARK, markersize=7)
    axes.plot([-1, 1], [-1.45, -1.45], color=LIGHT, linewidth=1)
    (torque,) = axes.plot([], [], color=DARK, linewidth=6, solid_capstyle="butt")
    axes.text(0, -1.65, "torque", ha="center", va="center", fontsize=8, color=DARK)

    def update(entry: int) -> None:
        theta = float(state.theta[entry])
        rod.set_data([0, -math.sin(theta)], [0, math.cos(theta)])
        # A positive torque turns the pendulum to the left.
        torque.set_data([0, -float(state.last_u[entry]) / params.max_torque], [-1.45, -1.45])

    return update


def draw_acrobot(params: Any, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw two links hanging from a joint, and the height that the tip must reach."""
    state = recording.states
    frame(axes, (-2.2, 2.2), (-2.2, 2.2))
    axes.plot([-2.2, 2.2], [1, 1], color=LIGHT, linestyle="--", linewidth=1)
    (links,) = axes.plot([], [], "o-", color=ACCENT, linewidth=6, markerfacecolor=DARK, markeredgecolor=DARK)

    def update(entry: int) -> None:
        first = float(state.joint_angle1[entry])
        second = first + float(state.joint_angle2[entry])
        x, y = math.sin(first), -math.cos(first)
        links.set_data([0, x, x + math.sin(second)], [0, y, y - math.cos(second)])

    return update


def draw_mountain_car(params: Any, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw a car in a valley, and the flag at the goal."""
    state = recording.states

    def height(position: Any) -> Any:
        # The slope is proportional to the cosine in the equations of motion.
        return 0.45 * np.sin(3 * position) + 0.55

    frame(axes, (params.min_position - 0.05, params.max_position + 0.05), (-0.05, 1.35))
    ground = np.linspace(params.min_position, params.max_position, 100)
    axes.plot(ground, height(ground), color=DARK)
    goal = params.goal_position
    axes.plot([goal, goal, goal + 0.07, goal], height(goal) + np.array([0, 0.25, 0.2, 0.15]), color=ACCENT)
    (car,) = axes.plot([], [], "o", color=ACCENT, markersize=12, markeredgecolor=DARK)

    def update(entry: int) -> None:
        position = float(state.position[entry])
        car.set_data([position], [height(position) + 0.04])

    return update


# With the frames per second.
_DRAWINGS = {
    "CartPole-v1": (draw_cart_pole, 50),
    "Pendulum-v1": (draw_pendulum, 20),
    "Acrobot-v1": (draw_acrobot, 15),
    "MountainCar-v0": (draw_mountain_car, 25),
    "MountainCarContinuous-v0": (draw_mountain_car, 25),
}
