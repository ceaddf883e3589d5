"""Mirror symmetries of tasks, for `system.symmetry`: functions of one observation and one action."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree

Symmetry = Callable[[Observation, jax.Array], tuple[Observation, jax.Array]]
"""`(observation, action) -> (observation, action)` of one example, which undoes itself."""


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
        observation = observation._replace(
            agent_view=_signed(observation.agent_view, observation_index, observation_sign)
        )
        if action_sign is not None:
            return observation, _signed(action, order, action_sign)
        mask = None if observation.action_mask is None else observation.action_mask[..., order]
        return observation._replace(action_mask=mask), jnp.asarray(order, action.dtype)[action]

    return symmetry


def _signed(x: Any, index: Any, sign: Any) -> Any:
    if isinstance(x, Mapping):
        return {name: _signed(entry, index[name], sign[name]) for name, entry in x.items()}
    return jnp.asarray(sign, x.dtype) * x[..., np.asarray(index)]


_Table = tuple[np.ndarray, np.ndarray]


def _same(*signs: int) -> _Table:
    """Return the table of entries that keep their places."""
    return np.arange(len(signs)), np.asarray(signs)


def _sides(*signs: int) -> _Table:
    """Return the table of the entries of one side, and then of the other."""
    return np.roll(np.arange(2 * len(signs)), len(signs)), np.asarray(signs * 2)


def _join(*tables: _Table) -> _Table:
    """Return the table of concatenated vectors."""
    index, length = [], 0
    for order, _ in tables:
        index.append(order + length)
        length += len(order)
    return np.concatenate(index), np.concatenate([sign for _, sign in tables])


def _robot(state: _Table, privileged: _Table, joints: _Table) -> Symmetry:
    """Build the symmetry of a task of MuJoCo Playground, whose privileged observations start with the state."""
    tables = {"state": state, "privileged_state": _join(state, privileged)}
    index, sign = ({name: table[part] for name, table in tables.items()} for part in (0, 1))
    return mirror(index, sign, *joints)


# A reflection in the plane of x and z: of vectors, of rotations, and of commands (forward, left, turn).
_VECTOR, _ROTATION, _COMMAND = _same(1, -1, 1), _same(-1, 1, -1), _same(1, -1, -1)

pendulum = mirror(*_same(1, -1, -1), *_same(-1))
"""`Pendulum-v1` of gymnax."""

cartpole = mirror(*_same(-1, -1, -1, -1), (1, 0))
"""`CartPole-v1` of gymnax."""

# Hips and ankles of legs 1 (front left), 2 (back left), 3 (back right) and 4.
_ANT_LEGS = np.asarray([6, 7, 4, 5, 2, 3, 0, 1]), np.tile([-1, 1], 4)
# Height, orientation, joints; velocities of the torso and of joints.
_ANT = _join(_same(1), _same(1, -1, 1, -1), _ANT_LEGS, _VECTOR, _ROTATION, _ANT_LEGS)
# Torques and forces on the torso, and on three bodies of each leg.
_ANT_FORCES = np.r_[0:6, 60:78, 42:60, 24:42, 6:24], np.tile([-1, 1, -1, 1, -1, 1], 13)
# The motors of leg 4 come first.
_ANT_MOTORS = np.asarray([2, 3, 0, 1, 6, 7, 4, 5]), np.tile([-1, 1], 4)

ant = mirror(*_ANT, *_ANT_MOTORS)
"""The ant of brax, and `Ant-v5` with `env.kwargs.include_cfrc_ext_in_observation=false`."""

ant_with_forces = mirror(*_join(_ANT, _ANT_FORCES), *_ANT_MOTORS)
"""`Ant-v5`, which observes contact forces."""

# Abduction, hip and knee of the legs: front right, front left, rear right, rear left.
_DOG = _join(_sides(-1, 1, 1), _sides(-1, 1, 1))
_PAWS, _SPEEDS_OF_PAWS = _join(_sides(1), _sides(1)), _join(_sides(1, -1, 1), _sides(1, -1, 1))
# Privileged: gyroscope, accelerometer, gravity, velocity, rotation.
_SENSORS = _join(_ROTATION, _VECTOR, _VECTOR, _VECTOR, _ROTATION)

go1_joystick = _robot(
    _join(_VECTOR, _ROTATION, _VECTOR, _DOG, _DOG, _DOG, _COMMAND),
    # Joints, velocities, torques; contacts, velocities and times in the air of the feet; the push.
    _join(_SENSORS, _DOG, _DOG, _DOG, _PAWS, _SPEEDS_OF_PAWS, _PAWS, _VECTOR, _same(1)),
    _DOG,
)
"""`Go1Joystick…` of MuJoCo Playground; its sensor of velocities is 7 cm right of the middle."""

# Legs: pitch, roll and yaw of the hip, knee, pitch and roll of the ankle. Waist: yaw, roll and pitch. Arms: pitch, roll
# and yaw of the shoulder, elbow, roll, pitch and yaw of the wrist.
_G1 = _join(_sides(1, -1, -1, 1, 1, -1), _same(-1, -1, 1), _sides(1, -1, -1, 1, -1, 1, -1))
_FEET = _sides(1)

g1_joystick = _robot(
    # The cosines and the sines of the phases of the feet come last.
    _join(_VECTOR, _ROTATION, _VECTOR, _COMMAND, _G1, _G1, _G1, _FEET, _FEET),
    # As above, with the height of the pelvis before the torques.
    _join(_SENSORS, _G1, _G1, _same(1), _G1, _FEET, _sides(1, -1, 1), _FEET),
    _G1,
)
"""`G1Joystick…` of MuJoCo Playground; it penalises hips differently for commands to the left and to the right."""
