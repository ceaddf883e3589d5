"""Tasks with goals: views of `observation`, `achieved_goal` and `desired_goal`, and rewards by goals alone.

| task | goal | actions |
|---|---|---|
| bit_flip | a random string of bits | the bit to flip |
| point_maze | a random place of a maze | the step of a point in the plane |
| reacher | a random place within 20 cm of the base, for the tip of a two-link arm | 2 torques |
| ant | a random place at a distance of 10 m, for the torso of a robot with four legs | 8 torques |

Entries are named as in gymnasium-robotics. In the first two tasks, every step costs 1, and the one that reaches the
goal is free and terminates the episode. So no reward tells the way to a goal before it is reached once.

The last two are tasks of `mjx` as in JaxGCRL (Bortkiewicz et al. 2025, arXiv:2408.11052): each step within the radius
of the goal pays 1, and episodes continue, but the ant's terminate when it falls. Unlike there, the arm has episodes
of 50 steps, with goals in the plane. `success_rate` tells whether the goal was ever reached.

`bit_flip` is from Andrychowicz et al. 2017, "Hindsight experience replay" (arXiv:1707.01495), section 3.1.
That its goal ends the episode is decided here: the value of a reached goal is then known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import ACHIEVED, DESIRED, Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct, count
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize, restart, transition
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, Dict, Discrete
from stoix_like.envs.suites import load_suite
from stoix_like.envs.suites.physics import finite_or_terminated
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.errors import nearest

MAZES = {
    "open": ("     ", "     ", "     ", "     ", "     "),
    "u": ("   ", "## ", "   "),
    "spiral": ("     ", "#### ", "   # ", " ### ", "     "),
}


class GoalState(NamedTuple):
    """What has been achieved, what is desired, and the steps since the episode started, int32."""

    achieved: jax.Array
    desired: jax.Array
    steps: jax.Array


class GoalTask(Environment):
    """Base class of tasks in which the state is what has been achieved; truncated after `limit` steps."""

    def __init__(self, goals: Box, limit: int) -> None:
        self.observation_space = Dict(dict.fromkeys(("observation", ACHIEVED, DESIRED), goals))
        self.truncates_after = self._limit = limit

    @abstractmethod
    def draw(self, key: jax.Array) -> jax.Array:
        """Draw a start or a goal."""

    @abstractmethod
    def move(self, achieved: jax.Array, action: jax.Array) -> jax.Array:
        """Return what is achieved after an action."""

    @abstractmethod
    def reaches(self, achieved: jax.Array, desired: jax.Array) -> jax.Array:
        """Return whether a goal is reached."""

    def goal_reward(self, achieved: jax.Array, desired: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return -1, and 0 and the end where the goal is reached."""
        reached = self.reaches(achieved, desired)
        return reached - 1.0, reached

    def reset(self, key: jax.Array) -> tuple[GoalState, TimeStep]:
        achieved, desired = map(self.draw, jax.random.split(key))
        success = self.reaches(achieved, desired)
        state = GoalState(achieved, desired, jnp.zeros((), jnp.int32))
        return state, restart(_observe(state), {"success_rate": success})

    def step(self, key: jax.Array, state: GoalState, action: jax.Array) -> tuple[GoalState, TimeStep]:
        state = GoalState(self.move(state.achieved, action), state.desired, state.steps + 1)
        reward, reached = self.goal_reward(state.achieved, state.desired)
        late = state.steps >= self._limit
        return state, transition(_observe(state), reward, reached, late, {"success_rate": reached})


class BitFlip(GoalTask):
    """Each action flips a bit, until all equal others; the limit is the number of bits."""

    def __init__(self, bits: int = 8) -> None:
        self._bits = count(bits=bits)
        self.action_space = Discrete(self._bits)
        super().__init__(Box(0.0, 1.0, (self._bits,)), self._bits)

    def draw(self, key: jax.Array) -> jax.Array:
        return jax.random.bernoulli(key, 0.5, (self._bits,)).astype(jnp.float32)

    def move(self, achieved: jax.Array, action: jax.Array) -> jax.Array:
        return jnp.where(jnp.arange(self._bits) == action, 1.0 - achieved, achieved)

    def reaches(self, achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.all(achieved == desired)


class PointMaze(GoalTask):
    """A point moves to within `radius` of a place of a maze of unit cells, at most `speed` along each axis per step.

    A step along an axis that would end in a wall is not taken.
    """

    action_space = Box(-1.0, 1.0, (2,))

    def __init__(self, maze: str = "u", limit: int = 100, speed: float = 0.25, radius: float = 0.25) -> None:
        if maze not in MAZES:
            raise ValueError(f"maze={maze}: {nearest(str(maze), MAZES)}")
        for name, value in {"speed": speed, "radius": radius}.items():
            if not 0.0 < value <= 1.0:
                raise ValueError(f"{name}={value} must be in (0, 1], in cells: use 0.25")
        self._speed, self._radius = speed, radius
        self._free = np.array([[cell == " " for cell in row] for row in MAZES[maze]])
        self._cells = np.argwhere(self._free).astype(np.float32)
        super().__init__(Box(0.0, np.array(self._free.shape, np.float32), (2,)), count(limit=limit))

    def draw(self, key: jax.Array) -> jax.Array:
        cell_key, place_key = jax.random.split(key)
        # Away from the walls, so that every place can be stood on.
        return jax.random.choice(cell_key, jnp.asarray(self._cells)) + jax.random.uniform(
            place_key, (2,), None, 0.1, 0.9
        )

    def move(self, achieved: jax.Array, action: jax.Array) -> jax.Array:
        place = achieved
        for axis in (0, 1):
            after = place.at[axis].add(self._speed * jnp.clip(action[axis], -1.0, 1.0))
            cell, size = jnp.floor(after).astype(jnp.int32), np.array(self._free.shape)
            inside = jnp.all((cell >= 0) & (cell < size))
            cell = jnp.clip(cell, 0, size - 1)
            place = jnp.where(inside & jnp.asarray(self._free)[cell[0], cell[1]], after, place)
        return place

    def reaches(self, achieved: jax.Array, desired: jax.Array) -> jax.Array:
        return jnp.linalg.norm(achieved - desired) <= self._radius


class MjxGoal(NamedTuple):
    """Goals of a task of `mjx`, by functions of its state; `radius` in metres."""

    task: str  # its name
    radius: float
    observe: Callable[[Any], jax.Array]  # what is observed without goals
    achieved: Callable[[Any], jax.Array]
    desired: Callable[[jax.Array, Any], jax.Array]  # (key, first state) -> goal


class MjxGoalState(NamedTuple):
    """The state of the task, the goal, and whether it was reached, float32."""

    task: Any
    desired: jax.Array
    success: jax.Array


class MjxGoalTask(Environment):
    """A task of `mjx` that pays for each step within a radius of a goal, see `MjxGoal`."""

    def __init__(self, task: Any, goal: MjxGoal, radius: float) -> None:
        self._task, self._goal, self._radius = task, goal, radius
        self.action_space, self.physics, self.truncates_after = task.action_space, task.physics, task.truncates_after
        shapes = jax.eval_shape(self.reset, jax.random.key(0))[1].observation.agent_view
        self.observation_space = Dict({name: Box(-jnp.inf, jnp.inf, entry.shape) for name, entry in shapes.items()})

    def goal_reward(self, achieved: jax.Array, desired: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return 1 within the radius, and that episodes continue."""
        reached = jnp.linalg.norm(achieved - desired) < self._radius
        return reached.astype(jnp.float32), jnp.zeros((), bool)

    def reset(self, key: jax.Array) -> tuple[MjxGoalState, TimeStep]:
        task_key, goal_key = jax.random.split(key)
        task, _ = self._task.reset(task_key)
        desired = self._goal.desired(goal_key, task)
        view = self._view(task, desired)
        success, _ = self.goal_reward(view[ACHIEVED], desired)
        return MjxGoalState(task, desired, success), restart(Observation(view), {"success_rate": success})

    def step(self, key: jax.Array, state: MjxGoalState, action: jax.Array) -> tuple[MjxGoalState, TimeStep]:
        task, after = self._task.step(key, state.task, action)
        view = self._view(task, state.desired)
        reward, _ = self.goal_reward(view[ACHIEVED], state.desired)
        # The task's own view stays finite, and these entries are read from its state.
        before = self._view(state.task, state.desired)
        view, reward, terminated = finite_or_terminated(view, reward, after.terminated, before)
        success = jnp.maximum(state.success, reward)
        timestep = transition(Observation(view), reward, terminated, False, {"success_rate": success})
        return MjxGoalState(task, state.desired, success), timestep

    def scene(self) -> Scene | None:
        scene = self._task.scene()
        return scene and Scene(lambda axes, one: scene.draw(axes, one._replace(states=one.states.task)), scene.fps)

    def _view(self, task: Any, desired: jax.Array) -> dict[str, jax.Array]:
        return {"observation": self._goal.observe(task), ACHIEVED: self._goal.achieved(task), DESIRED: desired}


def _circle(key: jax.Array, radius: float) -> jax.Array:
    angle = jax.random.uniform(key, maxval=2.0 * jnp.pi)
    return radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)])


TASKS: dict[str, type[Environment]] = {"bit_flip": BitFlip, "point_maze": PointMaze}
# The view of the arm is (cos, sin) of its angles, the target, the velocities, and the way from the target to the tip.
MJX_TASKS = {
    "ant": MjxGoal(
        task="Ant-v5",
        radius=0.5,
        observe=lambda state: jnp.concatenate([state.qpos, state.qvel]),
        achieved=lambda state: state.qpos[:2],
        desired=lambda key, state: _circle(key, 10.0),
    ),
    "reacher": MjxGoal(
        task="Reacher-v5",
        radius=0.05,
        observe=lambda state: jnp.concatenate([state.view[:4], state.view[6:8], state.view[4:6] + state.view[8:]]),
        achieved=lambda state: state.view[4:6] + state.view[8:],
        desired=lambda key, state: state.view[4:6],
    ),
}


def scenarios() -> list[str]:
    """List the names of the tasks."""
    return [*TASKS, *MJX_TASKS]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build copies of a task."""
    check_scenario("goals", name, scenarios())
    if name in MJX_TASKS:
        goal, arguments = MJX_TASKS[name], dict(kwargs)
        radius = arguments.pop("radius", goal.radius)
        mjx = load_suite("mjx", f"env.scenario.name={name}")
        task, limit = mjx.make_task(goal.task, arguments, params)
        return TimeLimit(Vectorize(MjxGoalTask(task, goal, radius)), limit)
    check_names("env.params", params, (), name)
    return Vectorize(construct(TASKS[name], kwargs, name))


def _observe(state: GoalState) -> Observation:
    return Observation({"observation": state.achieved, ACHIEVED: state.achieved, DESIRED: state.desired})
