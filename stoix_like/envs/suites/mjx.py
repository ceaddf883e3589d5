"""Gymnasium's MuJoCo tasks, version 5, stepped by MJX inside the compiled program.

Models, defaults and the names of arguments are read from the installed gymnasium. The state is what determines the
next step of the simulation, without what MuJoCo derives from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any, NamedTuple

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np
from gymnasium.envs.registration import load_env_creator
from mujoco import mjx

from stoix_like.envs.arguments import check_names, check_scenario, construct, fit_params, parameters_of
from stoix_like.envs.environment import VectorEnvironment, Vectorize, physics_of
from stoix_like.envs.scenes import bodies
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.envs.suites.physics import finite_or_terminated
from stoix_like.envs.wrappers import TimeLimit
from stoix_like.schema import INT32_MAX

# Arguments of gymnasium's classes that draw, which `rendering` does otherwise.
_DRAWING = {"default_camera_config"}


class State(NamedTuple):
    """What determines the next step."""

    qpos: jax.Array  # `[nq]`
    qvel: jax.Array  # `[nv]`
    act: jax.Array  # `[na]`, activations of actuators
    warmstart: jax.Array  # `[nv]`, the accelerations that the solver starts from
    progress: jax.Array  # where the robot, or each of its bodies, is along the way that is rewarded
    view: jax.Array  # the observation


class Task(NamedTuple):
    """One of gymnasium's tasks, by functions of its arguments, the model and MuJoCo's data."""

    start: Callable[[Any, Any, jax.Array], tuple[jax.Array, jax.Array]]  # (arguments, initial data, key) -> qpos, qvel
    observe: Callable[[Any, Any], jax.Array]  # (arguments, data) -> observation
    # (arguments, data, action, velocity along the way) -> reward, terminated
    outcome: Callable[[Any, Any, jax.Array, jax.Array], tuple[Any, Any]]
    progress: Callable[[Any, Any], jax.Array] = lambda args, data: jnp.zeros(())
    with_forces: bool = False  # whether external forces on bodies count, which MuJoCo computes on demand


def scenarios() -> list[str]:
    """List the names of the tasks."""
    return sorted(_TASKS)


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build environments of a task."""
    task, limit = make_task(name, kwargs, params)
    return TimeLimit(Vectorize(task), limit)


def make_task(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> tuple[MjxTask, int]:
    """Build a task; also return the steps after which its episodes are truncated."""
    check_scenario("mjx", name, scenarios())
    spec = gymnasium.spec(name)
    cls: Any = load_env_creator(str(spec.entry_point))
    known = {
        parameter.name: parameter.default
        for parameter in parameters_of(cls)
        if parameter.default is not parameter.empty and parameter.name not in _DRAWING
    }
    check_names("env.kwargs", kwargs, known, name)
    native = construct(cls, kwargs, name).unwrapped
    defaults = {"episode_length": spec.max_episode_steps}
    limit = (defaults | fit_params(defaults, params, name, defaults))["episode_length"]
    arguments = SimpleNamespace(**known | dict(kwargs))
    arguments.body, arguments.timestep = (lambda name: native.model.body(name).id), native.model.opt.timestep
    return MjxTask(_TASKS[name], native, arguments), limit


class MjxTask(SuiteEnvironment):
    """A task, with the model of gymnasium's environment."""

    truncates_after = INT32_MAX

    def __init__(self, task: Task, native: Any, args: SimpleNamespace) -> None:
        self._task, self._args, self._mj_model, self._seconds = task, args, native.model, float(native.dt)
        self._model = _put(native.model)
        self.physics = physics_of(self, "_model")
        self._initial = SimpleNamespace(qpos=jnp.asarray(native.init_qpos), qvel=jnp.asarray(native.init_qvel))
        low, high = native.model.actuator_ctrlrange.T.astype(np.float32)
        self.action_space = Box(low, high, (native.model.nu,))
        self.observation_space = self.box(-jnp.inf, jnp.inf)

    def start(self, key: jax.Array) -> tuple[jax.Array, State]:
        qpos, qvel = self._task.start(self._args, self._initial, key)
        data = mjx.forward(self._model, mjx.make_data(self._model, impl="jax").replace(qpos=qpos, qvel=qvel))
        return self._after(data)

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        data = mjx.make_data(self._model, impl="jax").replace(
            qpos=state.qpos, qvel=state.qvel, act=state.act, qacc_warmstart=state.warmstart, ctrl=action
        )
        data = jax.lax.fori_loop(0, self._args.frame_skip, lambda _, data: mjx.step(self._model, data), data)
        if self._task.with_forces:
            data = mjx.rne_postconstraint(self._model, data)
        view, after = self._after(data)
        moved = after.progress - state.progress
        velocity = jnp.average(moved, weights=self._model.body_mass if moved.ndim else None) / self._seconds
        reward, terminated = self._task.outcome(self._args, data, action, velocity)
        view, reward, terminated = finite_or_terminated(view, reward, terminated, state.view)
        return view, after._replace(view=view), reward, terminated, jnp.zeros((), bool)

    def scene(self) -> Scene | None:
        return bodies.find_scene(self._mj_model, lambda state: {"qpos": state.qpos}, self._seconds)

    def _after(self, data: Any) -> tuple[jax.Array, State]:
        view, progress = self._task.observe(self._args, data), self._task.progress(self._args, data)
        return view, State(data.qpos, data.qvel, data.act, data.qacc_warmstart, progress, view)


def _put(model: Any) -> Any:
    """Return the model for MJX, which has no projected Gauss-Seidel solver: Newton's finds the same forces."""
    if model.opt.solver == mujoco.mjtSolver.mjSOL_PGS:
        model.opt.solver = mujoco.mjtSolver.mjSOL_NEWTON
    return mjx.put_model(model, impl="jax")


def _near(args: Any, initial: Any, key: jax.Array, scale: float | None = None, normal: bool = False) -> Any:
    """Start near the initial state."""
    scale = args.reset_noise_scale if scale is None else scale
    keys = jax.random.split(key)
    draw = partial(jax.random.uniform, minval=-1.0, maxval=1.0)
    qpos = initial.qpos + scale * draw(keys[0], initial.qpos.shape)
    return qpos, initial.qvel + scale * (jax.random.normal if normal else draw)(keys[1], initial.qvel.shape)


def _start_reacher(args: Any, initial: Any, key: jax.Array) -> Any:
    """Start near the initial state, with the target anywhere in a circle."""
    keys = jax.random.split(key, 4)
    radius, angle = 0.2 * jnp.sqrt(jax.random.uniform(keys[0])), 2.0 * jnp.pi * jax.random.uniform(keys[1])
    qpos = _near(args, initial, keys[2], 0.1)[0].at[-2:].set(radius * jnp.stack([jnp.cos(angle), jnp.sin(angle)]))
    return qpos, _near(args, initial, keys[3], 0.005)[1].at[-2:].set(0.0)


def _start_pusher(args: Any, initial: Any, key: jax.Array) -> Any:
    """Start with the object in a rectangle, not close to the goal: at the first of some places that are not."""
    keys, low = jax.random.split(key), jnp.asarray([-0.3, -0.2])
    places = jax.random.uniform(keys[0], (32, 2), minval=low, maxval=jnp.asarray([0.0, 0.2]))
    place = places[jnp.argmax(jnp.linalg.norm(places, axis=-1) > 0.17)]
    qpos = initial.qpos.at[-4:].set(jnp.concatenate([place, jnp.zeros(2)]))
    return qpos, _near(args, initial, keys[1], 0.005)[1].at[-4:].set(0.0)


def _coordinates(args: Any, data: Any, skip: int, limit: float = jnp.inf) -> jax.Array:
    """Return positions without the first ones, along which nothing changes, and velocities."""
    skip = skip if args.exclude_current_positions_from_observation else 0
    return jnp.concatenate([data.qpos[skip:], jnp.clip(data.qvel, -limit, limit)])


def _observe_ant(args: Any, data: Any) -> jax.Array:
    forces = _ant_forces(args, data)[1:].ravel() if args.include_cfrc_ext_in_observation else data.qpos[:0]
    return jnp.concatenate([_coordinates(args, data, 2), forces])


def _observe_humanoid(args: Any, data: Any) -> jax.Array:
    parts = {
        "cinert": data._impl.cinert[1:],
        "cvel": data.cvel[1:],
        "qfrc_actuator": data.qfrc_actuator[6:],
        "cfrc_ext": data._impl.cfrc_ext[1:],
    }
    chosen = [part.ravel() for name, part in parts.items() if getattr(args, f"include_{name}_in_observation")]
    return jnp.concatenate([_coordinates(args, data, 2), *chosen])


def _observe_double_pendulum(args: Any, data: Any) -> jax.Array:
    angles, limit = data.qpos[1:], partial(jnp.clip, min=-10.0, max=10.0)
    parts = [data.qpos[:1], jnp.sin(angles), jnp.cos(angles), limit(data.qvel), limit(data.qfrc_constraint)[:1]]
    return jnp.concatenate(parts)


def _observe_reacher(args: Any, data: Any) -> jax.Array:
    angles, to_tip = data.qpos[:2], _between(args, data, "fingertip", "target")
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles), data.qpos[2:], data.qvel[:2], to_tip[:2]])


def _observe_pusher(args: Any, data: Any) -> jax.Array:
    places = [data.xpos[args.body(name)] for name in ("tips_arm", "object", "goal")]
    return jnp.concatenate([data.qpos[:7], data.qvel[:7], *places])


def _between(args: Any, data: Any, name: str, other: str) -> jax.Array:
    return data.xpos[args.body(name)] - data.xpos[args.body(other)]


def _ant_forces(args: Any, data: Any) -> jax.Array:
    return jnp.clip(data._impl.cfrc_ext, *args.contact_force_range)


def _squares(x: jax.Array) -> jax.Array:
    return jnp.sum(jnp.square(x))


def _run(
    args: Any, data: Any, action: jax.Array, velocity: jax.Array, healthy: Any = None, contacts: Any = None
) -> tuple[Any, Any]:
    """Reward the velocity, less the cost of actions; with health, reward it, and terminate without."""
    reward = args.forward_reward_weight * velocity - args.ctrl_cost_weight * _squares(action)
    if contacts is not None:
        reward -= contacts(args, data)
    if healthy is None:
        return reward, jnp.zeros((), bool)
    is_healthy = healthy(args, data)
    return reward + args.healthy_reward * is_healthy, ~is_healthy & bool(args.terminate_when_unhealthy)


def _within(x: jax.Array, limits: Any) -> jax.Array:
    return (limits[0] < x) & (x < limits[1])


def _walks(args: Any, data: Any) -> jax.Array:
    return _within(data.qpos[1], args.healthy_z_range) & _within(data.qpos[2], args.healthy_angle_range)


def _hops(args: Any, data: Any) -> jax.Array:
    state = jnp.concatenate([data.qpos, data.qvel])[2:]
    return _walks(args, data) & _within(state, args.healthy_state_range).all()


def _ant_stands(args: Any, data: Any) -> jax.Array:
    low, high = args.healthy_z_range
    finite = jnp.isfinite(jnp.concatenate([data.qpos, data.qvel])).all()
    return finite & (low <= data.qpos[2]) & (data.qpos[2] <= high)


def _stand_up(args: Any, data: Any, action: jax.Array, velocity: jax.Array) -> tuple[Any, Any]:
    impact = jnp.clip(args.impact_cost_weight * _squares(data._impl.cfrc_ext), *args.impact_cost_range)
    height = args.uph_cost_weight * data.qpos[2] / args.timestep
    return height - args.ctrl_cost_weight * _squares(action) - impact + 1.0, jnp.zeros((), bool)


def _balance(args: Any, data: Any, action: jax.Array, velocity: jax.Array) -> tuple[Any, Any]:
    terminated = jnp.abs(data.qpos[1]) > 0.2
    return (~terminated).astype(jnp.float32), terminated


def _balance_two(args: Any, data: Any, action: jax.Array, velocity: jax.Array) -> tuple[Any, Any]:
    x, _, y = data.site_xpos[0]
    terminated = y <= 1.0
    distance = 0.01 * x**2 + (y - 2.0) ** 2
    speed = 1e-3 * data.qvel[1] ** 2 + 5e-3 * data.qvel[2] ** 2
    return args.healthy_reward * ~terminated - distance - speed, terminated


def _reach(args: Any, data: Any, action: jax.Array, velocity: jax.Array) -> tuple[Any, Any]:
    distance = jnp.linalg.norm(_between(args, data, "fingertip", "target"))
    return -args.reward_dist_weight * distance - args.reward_control_weight * _squares(action), jnp.zeros((), bool)


def _push(args: Any, data: Any, action: jax.Array, velocity: jax.Array) -> tuple[Any, Any]:
    near, far = (jnp.linalg.norm(_between(args, data, "object", name)) for name in ("tips_arm", "goal"))
    cost = args.reward_near_weight * near + args.reward_dist_weight * far
    return -cost - args.reward_control_weight * _squares(action), jnp.zeros((), bool)


def _ant_contacts(args: Any, data: Any) -> jax.Array:
    return args.contact_cost_weight * _squares(_ant_forces(args, data))


def _humanoid_contacts(args: Any, data: Any) -> jax.Array:
    return jnp.clip(args.contact_cost_weight * _squares(data._impl.cfrc_ext), *args.contact_cost_range)


def _humanoid_stands(args: Any, data: Any) -> jax.Array:
    return _within(data.qpos[2], args.healthy_z_range)


def _x(args: Any, data: Any) -> jax.Array:
    return data.qpos[0]


_with_normal_velocities = partial(_near, normal=True)
_TASKS = {
    "Ant-v5": Task(
        _with_normal_velocities,
        _observe_ant,
        partial(_run, healthy=_ant_stands, contacts=_ant_contacts),
        lambda args, data: data.xpos[args.body(args.main_body)][0],
        with_forces=True,
    ),
    "HalfCheetah-v5": Task(_with_normal_velocities, partial(_coordinates, skip=1), _run, _x),
    "Hopper-v5": Task(_near, partial(_coordinates, skip=1, limit=10.0), partial(_run, healthy=_hops), _x),
    "Humanoid-v5": Task(
        _near,
        _observe_humanoid,
        partial(_run, healthy=_humanoid_stands, contacts=_humanoid_contacts),
        lambda args, data: data.xipos[:, 0],
        with_forces=True,
    ),
    "HumanoidStandup-v5": Task(_near, _observe_humanoid, _stand_up, with_forces=True),
    "InvertedDoublePendulum-v5": Task(_with_normal_velocities, _observe_double_pendulum, _balance_two),
    "InvertedPendulum-v5": Task(_near, lambda args, data: jnp.concatenate([data.qpos, data.qvel]), _balance),
    "Pusher-v5": Task(_start_pusher, _observe_pusher, _push),
    "Reacher-v5": Task(_start_reacher, _observe_reacher, _reach),
    "Swimmer-v5": Task(_near, partial(_coordinates, skip=2), _run, _x),
    "Walker2d-v5": Task(_near, partial(_coordinates, skip=1, limit=10.0), partial(_run, healthy=_walks), _x),
}
