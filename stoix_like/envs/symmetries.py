"""Mirror symmetries of tasks, for `system.symmetry`: functions of one observation and one action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree

Symmetry = Callable[[Observation, jax.Array], tuple[Observation, jax.Array]]
"""`(observation, action) -> (observation, action)` of one example; called twice, it returns its arguments."""


def mirror(observation_index: PyTree, observation_sign: PyTree, action_index: Any, action_sign: Any = None) -> Symmetry:
    """Build a symmetry from tables: entry i of the image is `sign[i] * x[index[i]]`.

    Args:
        observation_index: indices into `agent_view` along its last axis; of dictionaries, a table per entry.
        observation_sign: signs, 1 or -1, in the same form.
        action_index: indices into the action; of discrete actions, the image of each action.
        action_sign: signs; None for discrete actions, whose masks are permuted, too.

    Returns:
        The symmetry.
    """
    order = np.asarray(action_index)

    def symmetry(observation: Observation, action: jax.Array) -> tuple[Observation, jax.Array]:
        view = _signed(observation.agent_view, observation_index, observation_sign)
        if action_sign is not None:
            return observation._replace(agent_view=view), _signed(action, order, action_sign)
        mask = observation.action_mask
        mask = None if mask is None else mask[..., order]
        return observation._replace(agent_view=view, action_mask=mask), jnp.asarray(order, action.dtype)[action]

    return symmetry


def _signed(x: Any, index: Any, sign: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _signed(entry, index[name], sign[name]) for name, entry in x.items()}
    return jnp.asarray(sign, x.dtype) * x[..., np.asarray(index)]


def _same(*signs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of entries that keep their places."""
    return np.arange(len(signs)), np.asarray(signs)


def _sides(*signs: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of the entries of one side, followed by the same entries of the other side."""
    places = np.arange(2 * len(signs))
    return np.roll(places, len(signs)), np.asarray(signs * 2)


def _join(*tables: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return the table of concatenated vectors."""
    starts = np.cumsum([0, *(len(index) for index, _ in tables)])
    indices, signs = zip(*tables, strict=True)
    return np.concatenate([index + start for index, start in zip(indices, starts, strict=False)]), np.concatenate(signs)


def _robot(state: Any, privileged: Any, action: Any) -> Symmetry:
    """Build the symmetry of a task of MuJoCo Playground with privileged observations."""
    index, sign = zip(state, _join(state, *privileged), strict=True)
    return mirror(*(dict(zip(("state", "privileged_state"), table, strict=True)) for table in (index, sign)), *action)


# A reflection in the plane of x and z: of vectors, of rotations, and of commands (forward, left, turn).
_VECTOR, _ROTATION, _COMMAND = _same(1, -1, 1), _same(-1, 1, -1), _same(1, -1, -1)

pendulum = mirror(*_same(1, -1, -1), *_same(-1))
"""`Pendulum-v1` of gymnax: left and right."""

cartpole = mirror(*_same(-1, -1, -1, -1), (1, 0))
"""`CartPole-v1` of gymnax: left and right."""

# Legs 1 to 4, each a hip and an ankle; the left ones are 1 and 2 in front and behind, the right ones 4 and 3.
_ANT_LEGS = (np.asarray([6, 7, 4, 5, 2, 3, 0, 1]), np.asarray([-1, 1] * 4))
# Height, orientation, joints; velocities of the torso and of joints.
_ANT_STATE = _join(_same(1), _same(1, -1, 1, -1), _ANT_LEGS, _VECTOR, _ROTATION, _ANT_LEGS)
# The motors of leg 4 come first.
_ANT_ACTION = (np.asarray([2, 3, 0, 1, 6, 7, 4, 5]), np.asarray([-1, 1] * 4))

ant = mirror(*_ANT_STATE, *_ANT_ACTION)
"""The ant of brax, and `Ant-v5` with `env.kwargs.include_cfrc_ext_in_observation=false`: left and right."""

# Torques and forces on the torso, and on the three bodies of each leg.
_ANT_FORCES = (np.r_[0:6, 60:78, 42:60, 24:42, 6:24], np.tile([-1, 1, -1, 1, -1, 1], 13))

ant_with_forces = mirror(*_join(_ANT_STATE, _ANT_FORCES), *_ANT_ACTION)
"""`Ant-v5`, which observes contact forces: left and right."""

# Legs of the robot dog: front right, front left, rear right, rear left; each abduction, hip and knee.
_GO1_JOINTS = _join(_sides(-1, 1, 1), _sides(-1, 1, 1))
_GO1_FEET = _join(_sides(1), _sides(1))

go1_joystick = _robot(
    _join(_VECTOR, _ROTATION, _VECTOR, *[_GO1_JOINTS] * 3, _COMMAND),
    # Gyroscope, accelerometer, gravity, velocity, rotation; joints, velocities, torques; feet; the push.
    (
        *(_ROTATION, _VECTOR, _VECTOR, _VECTOR, _ROTATION, *[_GO1_JOINTS] * 3, _GO1_FEET),
        *(_join(*[_sides(1, -1, 1)] * 2), _GO1_FEET, _VECTOR, _same(1)),
    ),
    _GO1_JOINTS,
)
"""`Go1Joystick…` of MuJoCo Playground: left and right."""

# Left and right leg: pitch, roll and yaw of the hip, knee, pitch and roll of the ankle. Waist: yaw, roll and pitch.
# Left and right arm: pitch, roll and yaw of the shoulder, elbow, roll, pitch and yaw of the wrist.
_G1_JOINTS = _join(_sides(1, -1, -1, 1, 1, -1), _same(-1, -1, 1), _sides(1, -1, -1, 1, -1, 1, -1))

g1_joystick = _robot(
    # The cosines and the sines of the phases of both feet come last.
    _join(_VECTOR, _ROTATION, _VECTOR, _COMMAND, *[_G1_JOINTS] * 3, _sides(1), _sides(1)),
    # As above; the height of the pelvis stands before the torques.
    (
        *(_ROTATION, _VECTOR, _VECTOR, _VECTOR, _ROTATION, _G1_JOINTS, _G1_JOINTS, _same(1), _G1_JOINTS),
        *(_sides(1), _sides(1, -1, 1), _sides(1)),
    ),
    _G1_JOINTS,
)
"""`G1Joystick…` of MuJoCo Playground: left and right."""
