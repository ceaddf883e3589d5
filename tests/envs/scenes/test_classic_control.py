import math
from types import SimpleNamespace

import numpy as np
import pytest
from matplotlib.figure import Figure

from support.recordings import make, still


def scene_of(name, **state):
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
    assert bool(env.unwrapped.env.env.is_terminated(state, env.unwrapped.env.params)) == (height > points(line)[0][1])


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
