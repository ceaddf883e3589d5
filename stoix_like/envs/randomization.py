"""Domain randomisation: the physics models of environments differ in the parameters that are drawn for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import TimeStep
from stoix_like.envs.environment import Environment, Physics, State, VectorEnvironment, Vectorize, strongly_typed
from stoix_like.envs.wrappers import Wrapper, layers
from stoix_like.errors import ConfigError, nearest
from stoix_like.user_code import guarded, import_object, refusing
from stoix_like.utils.jax_utils import fold_in_each

KEY = "env.randomization"
REGISTERED = "registered"
_FORM = "(model, raw keys [N, 2]) -> (model, axes)"
_A_FUNCTION = f"use ranges of fields, {{body_mass: [0.8, 1.2]}}, or the import path of a function {_FORM}"
# By how often parameters are drawn, the modes of automatic reset with fitting start states: `pool` and `optimistic`
# draw them for other environments, and `cached` ones keep the parameters they were drawn with.
AUTO_RESETS: Mapping[str, tuple[str, ...]] = {
    "reset": ("fresh", "pool", "optimistic"),
    "rollout": ("fresh",),
    "run": ("fresh", "cached"),
}
# Folded into keys of resets and rollouts, so that the same run without randomisation has the same start states.
_STREAM = 0xD0A1

Randomizer = Callable[[Any, jax.Array], tuple[Any, Any]]
"""`(model, raw keys [N, 2]) -> (model, axes)`: leaves with an axis differ between environments, as in `jax.vmap`."""


class RandomizedState(NamedTuple):
    """The states of the environments, and the drawn leaves `[N, ...]` of their models."""

    env_state: State
    parameters: tuple[jax.Array, ...]


def scaling(model: Any, ranges: Mapping[str, tuple[float, float]]) -> Randomizer:
    """Return the function that multiplies fields of models by factors, uniform in a range.

    Each row of a field, such as a body, a geom, a joint or an actuator, has one factor. Derived fields
    are not scaled.

    `ranges`: the smallest and the largest factor by the name of the field, `body_mass` or `opt.gravity`.
    """
    paths, structure = jax.tree_util.tree_flatten_with_path(model)
    names = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in paths]
    known = [
        name
        for name, (_, leaf) in zip(names, paths, strict=True)
        if jnp.size(leaf) and jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
    ]
    for name, (low, high) in ranges.items():
        if name not in known:
            raise ConfigError(f"{KEY}.{name} is not a numeric field of the model: {nearest(name, known)}")
        if low > high:
            raise ConfigError(f"{KEY}.{name}=[{low:g}, {high:g}] is empty: write the smaller factor first")
    axes = jax.tree.unflatten(structure, [0 if name in ranges else None for name in names])

    def draw(model: Any, rng: jax.Array) -> tuple[Any, Any]:
        leaves = jax.tree.leaves(model)
        for index, name in enumerate(sorted(ranges)):
            place = names.index(name)
            scaled = partial(_scaled, leaves[place], *ranges[name])
            leaves[place] = jax.vmap(scaled)(fold_in_each(rng, index))
        return jax.tree.unflatten(structure, leaves), axes

    return draw


def _scaled(field: jax.Array, low: float, high: float, key: jax.Array) -> jax.Array:
    factors = low + (high - low) * jax.random.uniform(key, field.shape[:1], field.dtype)
    return field * factors.reshape(factors.shape + (1,) * (field.ndim - factors.ndim))


class Randomized(Vectorize):
    """N copies of a physics environment, each with parameters of its own, without automatic reset.

    Only the leaves that the axes name have a leading axis N; the copies share all others.
    """

    def __init__(self, env: Environment, physics: Physics, randomizer: Randomizer, every: str, name: str) -> None:
        super().__init__(env)
        self._physics, self._every = physics, every
        self._randomizer = guarded(randomizer, KEY, name, _FORM, _fault)
        self.keeps_parameters = every != "reset"
        self._nominal, self._structure = jax.tree.flatten(physics.model)
        self._axes: list[int | None] = [None] * len(self._nominal)
        self._axes = self._find_axes(name)

    def reset(self, keys: jax.Array) -> tuple[RandomizedState, TimeStep]:
        return self._start(keys, self._draw(fold_in_each(keys, _STREAM)))

    def next_episodes(self, keys: jax.Array, state: RandomizedState) -> tuple[RandomizedState, TimeStep]:
        return self._start(keys, state.parameters)

    def step(self, keys: jax.Array, state: Any, action: jax.Array) -> tuple[Any, TimeStep]:
        """A search plans with this one where evaluations play the nominal model."""
        if not isinstance(state, RandomizedState):
            return super().step(keys, state, action)

        env_state, timestep = self._varied(self.env.step)(state.parameters, keys, state.env_state, action)
        return RandomizedState(env_state, state.parameters), timestep

    def start_rollout(self, key: jax.Array, state: RandomizedState) -> RandomizedState:
        if self._every != "rollout":
            return state
        keys = jax.random.split(jax.random.fold_in(key, _STREAM), len(state.parameters[0]))
        return state._replace(parameters=self._draw(keys))

    def native_state(self, state: RandomizedState) -> State:
        return state.env_state

    def _start(self, keys: jax.Array, parameters: tuple[jax.Array, ...]) -> tuple[RandomizedState, TimeStep]:
        env_state, timestep = self._varied(self.env.reset)(parameters, keys)
        return RandomizedState(env_state, parameters), timestep

    def _varied(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method of the environment for N copies, which takes their parameters before its arguments."""

        def call(parameters: tuple[jax.Array, ...], *arguments: Any) -> Any:
            drawn, shared = iter(parameters), zip(self._nominal, self._axes, strict=True)
            leaves = [leaf if axis is None else next(drawn) for leaf, axis in shared]
            with self._physics.replaced(jax.tree.unflatten(self._structure, leaves)):
                return function(*arguments)

        return jax.vmap(call)

    def _draw(self, keys: jax.Array) -> tuple[jax.Array, ...]:
        with jax.numpy_rank_promotion("allow"):
            model, _ = self._randomizer(self._physics.model, jax.random.key_data(keys))
        drawn = zip(jax.tree.leaves(model), self._axes, strict=True)
        return tuple(strongly_typed([jnp.moveaxis(leaf, axis, 0) for leaf, axis in drawn if axis is not None]))

    def _find_axes(self, name: str) -> list[int | None]:
        """Return the axis of each leaf of the model; None where environments share it."""
        num_envs, axes, unchanged = 3, None, [False]

        def draw(keys: jax.Array) -> Any:
            nonlocal axes, unchanged
            model, axes = self._randomizer(self._physics.model, jax.random.key_data(keys))
            unchanged = [leaf is nominal for leaf, nominal in zip(jax.tree.leaves(model), self._nominal, strict=True)]
            return model

        with refusing(f"{KEY}={name} failed", f"it must be a function {_FORM}"), jax.numpy_rank_promotion("allow"):
            drawn = jax.eval_shape(draw, jax.random.split(jax.random.key(0), num_envs))
            spread: list[int | None] = []
            # Axes may belong to subtrees, as in `jax.vmap`, and models have fields that are None themselves.
            jax.tree.map(
                lambda axis, part: spread.extend([axis] * len(jax.tree.leaves(part))),
                axes,
                drawn,
                is_leaf=lambda leaf: leaf is None,
            )
        structure: Any
        leaves, structure = jax.tree.flatten(drawn)
        if structure != self._structure:
            raise ConfigError(f"{KEY}={name} returned a model of another structure: return model.replace(…)")
        for nominal, leaf, axis, same in zip(self._nominal, leaves, spread, unchanged, strict=True):
            shape = list(jnp.shape(nominal))
            if axis is not None:
                shape.insert(axis, num_envs)
            if list(leaf.shape) != shape or (axis is None and not same):
                raise ConfigError(
                    f"{KEY}={name} returned an array of shape {leaf.shape} with axis {axis} for {num_envs} environments"
                    f" where the model has {jnp.shape(nominal)}: give what it changes an axis of {num_envs}, and name"
                    " that axis"
                )
        # An array of size zero differs nowhere, and checkpoints cannot store it.
        found = [axis if leaf.size else None for leaf, axis in zip(leaves, spread, strict=True)]
        if all(axis is None for axis in found):
            raise ConfigError(f"{KEY}={name} varies nothing: set the axes of what it draws to 0")
        return found


def randomize(
    env: VectorEnvironment,
    randomization: str | Mapping[str, tuple[float, float]],
    every: str,
    environment: str,
    auto_reset: str | None,
) -> VectorEnvironment:
    """Let the parameters of physics models differ between environments.

    `randomization`: the import path of a function, `registered`, or ranges of factors by the names of fields.
    `auto_reset`: the mode of automatic reset; None where there is none.
    """
    one = env.unwrapped.env if isinstance(env.unwrapped, Vectorize) else None
    if not isinstance(one, Environment) or one.physics is None:
        raise ConfigError(
            f"{KEY}={randomization} varies the model of a physics simulation, and {environment} has none: use an"
            " environment of env=brax, env=mjx or env=playground"
        )
    if auto_reset is not None and auto_reset not in AUTO_RESETS[every]:
        fitting = [name for name, modes in AUTO_RESETS.items() if auto_reset in modes]
        raise ConfigError(
            f"env.randomize_every={every} does not fit the start states of env.auto_reset={auto_reset}: use"
            f" env.auto_reset={' or '.join(AUTO_RESETS[every])}, or env.randomize_every={' or '.join(fitting)}"
        )
    if every != "reset":
        check_wrappers(env, f"env.randomize_every={every} keeps parameters at resets", "env.randomize_every=reset")
    physics = one.physics
    if isinstance(randomization, Mapping):
        randomizer = scaling(physics.model, randomization)
    elif randomization == REGISTERED:
        randomizer = physics.registered()
        if randomizer is None:
            raise ConfigError(f"{KEY}={REGISTERED}: no randomisation is registered for {environment}: {_A_FUNCTION}")
    else:
        randomizer = import_object(randomization, KEY, _A_FUNCTION)
    return env.rebased(Randomized(one, physics, randomizer, every, str(randomization)))


def check_wrappers(env: VectorEnvironment, problem: str, instead: str) -> None:
    """Refuse wrappers with their own starts where episodes follow each other without their `reset`."""
    for layer in layers(env):
        cls = type(layer)
        if cls.reset is not Wrapper.reset and cls.next_episodes is Wrapper.next_episodes:
            raise ConfigError(
                f"{problem} without calling {cls.__name__}.reset: override on_start instead, or next_episodes, too, or"
                f" use {instead}"
            )


def _fault(result: Any) -> str | None:
    return None if isinstance(result, tuple) and len(result) == 2 else f"returns a {type(result).__name__}"
