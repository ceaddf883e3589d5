"""Adapter for gymnasium-robotics, on the host: an arm, a hand and mazes, with goals.

Rewards of other goals are computed in the compiled program, which cannot call `compute_reward` of an environment. They
are one of these forms of the distance of goals d, for a threshold t, if it gives the same:

| tasks | sparse | dense |
|---|---|---|
| Fetch, HandReach | -1 where d > t, else 0 | -d |
| mazes, t = 0.45 | 1 where d <= t, else 0 | exp(-d) |
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import mujoco
import numpy as np

from stoix_like.base_types import DESIRED, GoalReward
from stoix_like.envs.arguments import check_names, check_scenario, construct
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.host_batches import HostOptions
from stoix_like.envs.suites import load_suite

with contextlib.redirect_stderr(io.StringIO()):  # a notice about versions of the Adroit hand, whenever it is imported
    import gymnasium_robotics
    from gymnasium_robotics.utils import mujoco_utils

gymnasium.register_envs(gymnasium_robotics)
# Version 1.4.2 looks for numbers of numpy among MuJoCo's enumerated kinds of joints, which equal them no longer.
_JOINTS = SimpleNamespace(**{name: int(kind) for name, kind in mujoco.mjtJoint.__members__.items()})
mujoco_utils.mujoco = SimpleNamespace(**vars(mujoco) | {"mjtJoint": _JOINTS})

_FORMS: tuple[Callable[[jax.Array, float], jax.Array], ...] = (
    lambda d, t: -1.0 * (d > t),
    lambda d, t: -d,
    lambda d, t: 1.0 * (d <= t),
    lambda d, t: jnp.exp(-d),
)
_MAZE_THRESHOLD = 0.45
_NUM_GOALS = 64


def scenarios() -> list[str]:
    """List the ids of gymnasium-robotics, in the versions that MuJoCo's own bindings simulate."""
    specs = gymnasium.registry.items()
    points = {name: str(spec.entry_point) for name, spec in specs if spec.kwargs.get("reward_type") is not None}
    return sorted(
        name for name, point in points.items() if point.startswith("gymnasium_robotics.") and "MujocoPy" not in point
    )


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions) -> VectorEnvironment:
    """Build environments of gymnasium-robotics."""
    check_scenario("robotics", name, scenarios())
    check_names("env.params", params, (), name)
    # By reference: processes with environments import this module, too.
    build = partial(build_one, name)
    native = construct(build, kwargs, name)
    goal_reward = find_goal_reward(native.unwrapped)
    env: VectorEnvironment = load_suite("gymnasium").adopt(native, partial(build, **kwargs), name, options)
    env.goal_reward = goal_reward
    return env


def build_one(name: str, render_mode: str | None = None, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build an environment of gymnasium."""
    return gymnasium.make(name, render_mode=render_mode, disable_env_checker=True, **kwargs)


def find_goal_reward(env: Any) -> GoalReward | None:
    """Return the reward of goals that an environment computes by its `compute_reward`; None if it has another form."""
    space = getattr(env.observation_space, "spaces", {}).get(DESIRED)
    if not isinstance(space, gymnasium.spaces.Box):
        return None
    threshold = getattr(env, "distance_threshold", _MAZE_THRESHOLD)
    rng = np.random.default_rng(0)
    desired, way = rng.normal(size=(2, _NUM_GOALS, *space.shape)).astype(np.float32)
    # Half of the goals are within the threshold.
    way *= threshold * rng.uniform(0.0, 2.0, (_NUM_GOALS, 1)) / np.linalg.norm(way, axis=-1, keepdims=True)
    achieved = desired + way
    pairs = list(zip(achieved, desired, strict=True))
    found = [env.compute_reward(*pair, {}) for pair in pairs], [env.compute_terminated(*pair, {}) for pair in pairs]
    terminates = bool(np.any(found[1]))

    def with_form(form: Callable[[jax.Array, float], jax.Array]) -> GoalReward:
        def goal_reward(achieved: jax.Array, desired: jax.Array) -> tuple[jax.Array, jax.Array]:
            distance = jnp.linalg.norm(achieved - desired)
            return form(distance, threshold), terminates & (distance <= threshold)

        return goal_reward

    for goal_reward in map(with_form, _FORMS):
        computed = jax.jit(jax.vmap(goal_reward))(achieved, desired)
        if all(np.allclose(one, other, atol=1e-5) for one, other in zip(computed, found, strict=True)):
            return goal_reward
    return None
