"""Tasks with goals: views of `observation`, `achieved_goal` and `desired_goal`, and rewards by goals alone.

| task | goal | actions |
|---|---|---|
| bit_flip | a random string of bits | the bit to flip |
| point_maze | a random place of a maze | the step of a point in the plane |

Every step costs 1, and the one that reaches the goal is free and terminates the episode. So no reward tells the way
to a goal before it is reached once. Entries are named as in gymnasium-robotics.

`bit_flip` is from Andrychowicz et al. 2017, "Hindsight experience replay" (arXiv:1707.01495), section 3.1.
That its goal ends the episode is decided here: the value of a reached goal is then known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import ACHIEVED, DESIRED, Observation, TimeStep
from stoix_like.envs.arguments import check_names, check_scenario, construct, count
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize, restart, transition
from stoix_like.envs.spaces import Box, Dict, Discrete
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
        self.action_space = Discrete(bits)
        super().__init__(Box(0.0, 1.0, (bits,)), bits)

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


TASKS: dict[str, type[Environment]] = {"bit_flip": BitFlip, "point_maze": PointMaze}


def scenarios() -> list[str]:
    """List the names of the tasks."""
    return list(TASKS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build copies of a task."""
    check_scenario("goals", name, scenarios())
    check_names("env.params", params, (), name)
    return Vectorize(construct(TASKS[name], kwargs, name))


def _observe(state: GoalState) -> Observation:
    return Observation({"observation": state.achieved, ACHIEVED: state.achieved, DESIRED: state.desired})
