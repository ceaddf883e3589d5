"""Rigid-body simulations with the interface of brax, which MuJoCo Playground shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.envs.environment import Physics, State, strongly_typed, with_raw_key
from stoix_like.envs.legends import Legend, find_legend
from stoix_like.envs.scenes import views
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, space_of
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.schema import INT32_MAX


class PhysicsEnvironment(SuiteEnvironment):
    """An environment with `reset(raw_key)` and `step(state, action)`, which return states with `obs`, `reward`, `done`.

    Such an environment has no time limit of its own: `wrappers.TimeLimit` truncates its episodes.

    `model`: its model of MuJoCo, for drawing; None if it has none.
    `physics`: the model that it computes with; None if it has none.
    """

    truncates_after = INT32_MAX

    def __init__(
        self, env: Any, model: Any, pose: Callable[[Any], dict[str, Any]], physics: Physics | None, name: str = ""
    ) -> None:
        self._name = name
        self._env, self._model, self._pose, self.physics = env, model, pose, physics
        with self.tolerance():
            self._shapes = jax.eval_shape(env.reset, jax.eval_shape(jax.random.key_data, jax.random.key(0)))
        # Both suites rescale actions from [-1, 1] themselves where the actuators have other limits.
        self.action_space = Box(-1.0, 1.0, (env.action_size,))
        self.observation_space = space_of(self._shapes.obs)

    def legend(self) -> Legend:
        return find_legend(self._name, self.observation_space)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        state = strongly_typed(self._env.reset(jax.random.key_data(key)))
        return state.obs, _without_empty(state)

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        after = strongly_typed(self._env.step(with_raw_key(self._with_empty(state), "rng", key), action))
        truncated = jnp.asarray(after.info.get("truncation", False), bool)
        terminated = jnp.asarray(after.done, bool) & ~truncated
        view, reward, terminated = finite_or_terminated(after.obs, after.reward, terminated, state.obs)
        return view, _without_empty(after), reward, terminated, truncated

    def scene(self) -> Scene | None:
        if self._model is None:
            return views.find_scene(self.observation_space)
        # A package of only these suites.
        from stoix_like.envs.scenes import bodies

        return bodies.find_scene(self._model, self._pose, float(self._env.dt))

    def _with_empty(self, state: State) -> State:
        # A new tree, too: a step of the suite changes dictionaries of its argument in place.
        return jax.tree.map(
            lambda shape, leaf: jnp.zeros(shape.shape, shape.dtype) if leaf is None else leaf, self._shapes, state
        )


def finite_or_terminated(view: Any, reward: Any, terminated: Any, before: Any) -> tuple[Any, jax.Array, jax.Array]:
    """Terminate a simulation that diverged, with no reward and the last view that was finite.

    Playground then sets `done`, and brax and MJX continue with NaN, and a single one would spoil the statistics.
    """
    finite = jnp.stack([jnp.isfinite(leaf).all() for leaf in jax.tree.leaves((view, reward))]).all()
    view = jax.tree.map(lambda new, old: jnp.where(finite, new, old), view, before)
    return view, jnp.where(finite, reward, 0.0), terminated | ~finite


def _without_empty(state: State) -> State:
    # A simulation without contacts has arrays of size zero, which checkpoints cannot store.
    return jax.tree.map(lambda leaf: leaf if leaf.size else None, state)
