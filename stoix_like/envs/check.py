"""A check that an environment follows the protocol."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import ACHIEVED, DESIRED, GoalReward, Observation, PyTree, TimeStep
from stoix_like.envs.auto_reset import AutoResetState, HostReset, PoolReset, PoolStore, Start
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize
from stoix_like.envs.spaces import Box, Dict, Discrete, Mixed, MultiDiscrete, Tuple, bounds, choices, entries
from stoix_like.envs.suites import OWN, load_suite
from stoix_like.envs.wrappers import AgentRows
from stoix_like.envs.wrappers.actions import CountFromZero, JoinActions
from stoix_like.envs.wrappers.agents import find_rows
from stoix_like.errors import ConfigError, FaultyEnvironmentError, HostEnvironmentError, first_line, raised_at
from stoix_like.user_code import user_errors

NUM_ENVS = 3
NUM_STEPS = 300
# Start states, which the ends of episodes are compared with.
_NUM_STARTS = 64
_SLACK = 1e-5


class CheckedRollout(NamedTuple):
    """Steps with random legal actions."""

    starts: TimeStep  # first time steps `[_NUM_STARTS, ...]`
    first: TimeStep  # first time steps of the steps `[N, ...]`
    action: np.ndarray  # `[T, N, ...]`
    steps: TimeStep  # the time steps `[T, N, ...]`, with automatic reset

    @property
    def ended(self) -> np.ndarray:
        """True where a step ended its episode, `[T, N]` bool."""
        return np.asarray(self.steps.terminated | self.steps.truncated)


class Checked(NamedTuple):
    """Result of a check that found no faults."""

    num_envs: int
    num_steps: int
    num_episodes: int

    def __str__(self) -> str:
        ends = "" if self.num_episodes else " No episode ended: take more --steps, or truncate with env.time_limit."
        return (
            f"no faults in {self.num_envs} environments × {self.num_steps} random steps ({self.num_episodes} episodes):"
            " interface, jit and vmap, shapes, dtypes and bounds of observations, masks, rewards, flags,"
            f"{' successors at episode ends,' * (self.num_episodes > 0)} equal results for equal keys.{ends}"
        )


def check_environment(env: Any, num_steps: int = NUM_STEPS, seed: int = 0) -> Checked:
    """Check that an environment follows the protocol, with random legal actions."""
    try:
        vector = load_suite(OWN).make(env, {}, {})
    except ConfigError as error:
        raise FaultyEnvironmentError([str(error)]) from error
    if vector.num_agents > 1:
        _raise_any(_agent_faults(vector.unwrapped))
        vector = vector if find_rows(vector) else AgentRows(vector)
    check_interface(vector, strict=True)
    compiled: dict[str, Any] = {}
    played = [_attempt("a scan over its steps", _play, vector, num_steps, seed, compiled) for _ in range(2)]
    try:
        vector.check()
    except HostEnvironmentError as error:
        raise FaultyEnvironmentError([str(error)]) from error
    _raise_any(_value_faults(vector, *played))
    return Checked(NUM_ENVS, num_steps, int(played[0].ended.sum()))


def check_interface(env: VectorEnvironment, strict: bool = False) -> None:
    """Check spaces, and structure, shapes and dtypes of the results of `reset` and `step`; nothing is compiled."""
    # Each stage relies on the one before.
    _raise_any(_space_faults(env))
    if env.num_agents > 1:
        _raise_any(_agent_faults(env.unwrapped))
    _raise_any(iter(env.unwrapped.faults if strict else ()))
    _raise_any(_interface_faults(env, strict))


def element_faults(space: Any, values: Any, batch_dims: int, name: str) -> Iterator[str]:
    """Yield what keeps values from being elements of a space.

    `values`: a concrete array, or a dictionary of them for a `Dict`, with leading axes.
    `batch_dims`: number of leading axes.
    """
    if isinstance(space, Dict):
        for key, each in space.spaces.items():
            yield from element_faults(each, values[key], batch_dims, f"{name}[{key!r}]")
        return
    values = np.asarray(values)
    if fault := _array_fault(name, values, space, batch_dims):
        yield fault
        return
    if not np.isfinite(values).all():
        yield f"{name} is NaN or infinite after some actions: guard divisions, roots and logarithms"
        return
    slack = _SLACK if isinstance(space, Box) else 0
    low, high = (np.asarray(bound) for bound in bounds(space))
    low, high = low - slack, high + slack
    if (values < low).any() or (values > high).any():
        yield (
            f"{name} reaches from {values.min():.6g} to {values.max():.6g} and leaves the bounds of {space}:"
            " widen the bounds"
        )


def mask_faults(space: Any, mask: Any, name: str) -> Iterator[str]:
    """Yield what is wrong with a mask of legal actions.

    `mask`: a concrete array `[..., A]`; None if there is no mask.
    """
    if mask is None:
        return
    sizes = choices(space)
    if not sizes:
        yield f"{name} is set, but masks need discrete actions, and action_space is {space}: leave it None"
        return
    mask = np.asarray(mask)
    if mask.dtype != bool or mask.shape[-1:] != (sum(sizes),):
        yield f"{name} is {_aval(mask)}, but {space} needs bool[{sum(sizes)}], True where an action is legal"
        return
    if not all(part.any(-1).all() for part in np.split(mask, np.cumsum(sizes)[:-1], axis=-1)):
        yield f"{name} is all False in some state: leave at least one action legal"


def _raise_any(faults: Iterator[str]) -> None:
    if found := list(dict.fromkeys(faults)):
        raise FaultyEnvironmentError(found)


def _attempt(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a function of the environment, and turn any error of its code into a fault."""
    try:
        return function(*args)
    except FaultyEnvironmentError:
        raise
    except user_errors() as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        traced = isinstance(error, (jax.errors.JAXTypeError, jax.errors.JAXIndexError))
        advice = " (use jax.numpy, jnp.where and jax.lax.cond, and keep all state in the state)" if traced else ""
        if "not a valid JAX type" in str(error):
            advice = " (build the state of arrays in a NamedTuple, a dictionary or a flax.struct.dataclass)"
        raise FaultyEnvironmentError(
            [f"{what} cannot be compiled with jit and vmap: {reason}{raised_at(error)}{advice}"]
        ) from error


def _space_faults(env: VectorEnvironment) -> Iterator[str]:
    for name, kinds in (("observation_space", (Box, Dict, Discrete, MultiDiscrete)), ("action_space", None)):
        space = getattr(env, name, None)
        allowed = (Box, Discrete, MultiDiscrete, Dict, Tuple) if kinds is None else kinds
        if not isinstance(space, (*allowed, Mixed)):
            found = "missing" if space is None else f"a {type(space).__module__}.{type(space).__name__}"
            yield f"{name} is {found}: use one of stoix_like.envs: {', '.join(kind.__name__ for kind in allowed)}"
        elif kinds is not None:
            for entry in entries(space, name).values():
                if isinstance(entry, Discrete | MultiDiscrete) and bounds(entry)[0].any():
                    yield f"{name} has {entry}: observe integers from 0"


def _agent_faults(env: VectorEnvironment) -> Iterator[str]:
    """Yield what lacks the axis of agents, or has one that it must not have."""
    agents = env.num_agents

    def shapes(key: jax.Array) -> tuple[TimeStep, TimeStep]:
        keys = jax.random.split(key, NUM_ENVS)
        state, first = env.reset(keys)
        one = jax.vmap(env.action_space.sample)(keys)
        action = jax.tree.map(lambda leaf: jnp.repeat(leaf[:, None], agents, axis=1), one)
        return first, env.step(keys, state, action)[1]

    played = _attempt("step", jax.eval_shape, shapes, jax.random.key(0))
    for name, timestep in zip(("reset", "step"), played, strict=True):
        for leaf in jax.tree.leaves(timestep.observation):
            one = getattr(env.observation_space, "shape", None) if leaf is timestep.observation.agent_view else None
            if leaf.shape[1:2] != (agents,) or (one is not None and leaf.ndim < 2 + len(one)):
                yield (
                    f"an observation of {name} is {_aval(leaf, 1)}, and num_agents={agents}: give every array of it a"
                    f" leading axis of {agents}"
                )
        for field in ("terminated", "truncated"):
            if (value := getattr(timestep, field)).ndim > 1:
                yield f"{field} of {name} is {_aval(value, 1)}: a game ends for all of its agents, return a scalar"
        wanted = () if env.team_reward else (agents,)
        if name == "step" and timestep.reward.shape[1:] != wanted:
            remedy = "return a scalar" if env.team_reward else f"return one of each agent, [{agents}]"
            yield (
                f"reward of step is {_aval(timestep.reward, 1)}, and team_reward={env.team_reward}: {remedy}, or"
                f" declare team_reward = {not env.team_reward}"
            )


def _interface_faults(env: VectorEnvironment, strict: bool) -> Iterator[str]:
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), NUM_ENVS * env.num_agents))
    before = _attempt("reset", jax.eval_shape, env.reset, keys)
    if faults := [f"{fault}{_place(env, 'reset')}" for fault in _result_faults(env, before, "reset", strict)]:
        yield from faults
        return
    action = jax.eval_shape(jax.vmap(env.action_space.sample), keys)
    after = _attempt("step", jax.eval_shape, env.step, keys, before[0], action)
    faults = list(_result_faults(env, after, "step", strict))
    if not faults:
        faults += _carry_faults("the state", before[0], after[0], strict)
        faults += _carry_faults("the time step", before[1], after[1], strict)
    yield from (f"{fault}{_place(env, 'step')}" for fault in faults)


def _place(env: VectorEnvironment, name: str) -> str:
    """Return where a method of the environment is defined, as in ` (/home/me/my_env.py:12)`; empty if unknown."""
    custom_env: Any = env
    while isinstance(custom_env, CountFromZero | JoinActions):
        custom_env = custom_env.env
    method = getattr(custom_env.env if isinstance(custom_env, Vectorize) else custom_env, name, None)
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    return f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""


def _result_faults(env: VectorEnvironment, result: Any, name: str, strict: bool) -> Iterator[str]:
    """Yield what is wrong with the shapes of the result of `reset` or `step`."""
    if not (isinstance(result, tuple) and len(result) == 2 and isinstance(result[1], TimeStep)):
        build = "restart" if name == "reset" else "transition"
        yield f"{name} must return (state, TimeStep): build the time step with stoix_like.envs.environment.{build}"
        return
    timestep = result[1]
    for field, dtype in (("reward", np.float32), ("terminated", bool), ("truncated", bool)):
        value = getattr(timestep, field)
        if not hasattr(value, "dtype") or not hasattr(value, "shape"):
            yield f"{field} of {name} is a {type(value).__name__}: return a scalar of dtype {np.dtype(dtype)}"
        elif value.shape != (NUM_ENVS * env.num_agents,) or value.dtype != dtype:
            yield f"{field} of {name} is {_aval(value, 1)}: return a scalar of dtype {np.dtype(dtype)}"
    for field in ("observation", "next_observation"):
        observation = getattr(timestep, field)
        if not isinstance(observation, Observation):
            yield f"{field} of {name} is a {type(observation).__name__}: wrap it in stoix_like.base_types.Observation"
            continue
        yield from _view_faults(env.observation_space, observation.agent_view, f"{field}.agent_view of {name}", strict)
        mask, size = observation.action_mask, sum(choices(env.action_space))
        if field == "observation" and mask is not None and size and mask.shape[1:] != (size,):
            yield (
                f"action_mask of {name} is {_aval(mask, 1)}, but {env.action_space} needs"
                f" bool[{size}], True where an action is legal"
            )


def _view_faults(space: Any, view: Any, name: str, strict: bool) -> Iterator[str]:
    if isinstance(space, Dict):
        if not isinstance(view, dict) or set(view) != set(space.spaces):
            found = sorted(view) if isinstance(view, dict) else type(view).__name__
            yield f"{name} is {found}, but observation_space has the entries {list(space.spaces)}"
            return
        for key, each in space.spaces.items():
            yield from _view_faults(each, view[key], f"{name}[{key!r}]", strict)
        return
    fault = f"{name} is a {type(view).__name__}: return an array" if not hasattr(view, "dtype") else None
    if fault := fault or _array_fault(name, view, space, 1, strict):
        yield fault


def _array_fault(name: str, value: Any, space: Any, batch_dims: int, strict: bool = True) -> str | None:
    # Arrays of jax have 32 bits where a space has 64.
    dtypes = (np.dtype(space.dtype), jax.dtypes.canonicalize_dtype(space.dtype))
    if value.shape[batch_dims:] == tuple(space.shape) and (value.dtype in dtypes or not strict):
        return None
    return f"{name} is {_aval(value, batch_dims)}, but the space is {space}: make them agree"


def _carry_faults(name: str, before: PyTree, after: PyTree, strict: bool) -> Iterator[str]:
    """Yield the leaves that change their type between reset and step, which a compiled loop refuses if it is strong."""
    structure: Any = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        yield f"{name} has another structure after step than after reset: return the same containers and fields"
        return
    old, new = (jax.tree_util.tree_leaves_with_path(tree) for tree in (before, after))
    for (path, was), (_, now) in zip(old, new, strict=True):
        changed = (was.shape, was.dtype) != (now.shape, now.dtype)
        if changed or (strict and was.weak_type != now.weak_type):
            yield (
                f"{name}{jax.tree_util.keystr(path)} is {_aval(was, 1)} after reset and {_aval(now, 1)} after step:"
                " give it one shape and dtype, jnp.asarray(x, dtype)"
            )


def _call(compiled: dict[str, Any], function: Callable[..., Any], *args: Any) -> Any:
    """Trace a function, compile it unless the program equals an earlier one, and return its result."""
    # A function of its own, because jax remembers what it has traced.
    lowered = jax.jit(lambda *args: function(*args)).lower(*args)
    text = lowered.as_text()
    # Functions of Python that the program calls back are no part of the text.
    if text not in compiled or "callback" in text:
        compiled[text] = lowered.compile()
    return compiled[text](*args)


def _play(env: VectorEnvironment, num_steps: int, seed: int, compiled: dict[str, Any]) -> CheckedRollout:
    """Play random legal actions from start states that are drawn first, so that each part is compiled once."""
    resetting = HostReset(env) if env.on_host else PoolReset(env, _NUM_STARTS)
    num_rows = NUM_ENVS * env.num_agents

    def draw(keys: jax.Array) -> tuple[State, TimeStep]:
        states, starts = env.reset(keys)
        env.release(states)
        return states, starts

    def play(key: jax.Array, states: State, starts: TimeStep) -> CheckedRollout:
        reset_key, steps_key = jax.random.split(key)
        if env.on_host:
            state, first = resetting.reset(jax.random.split(reset_key, num_rows))
        else:
            first_games = lambda leaf: leaf[: len(leaf) // _NUM_STARTS * NUM_ENVS]  # noqa: E731
            env_state, first = jax.tree.map(first_games, (states, starts))
            store = PoolStore(Start(states, starts.observation), jnp.asarray(NUM_ENVS, jnp.int32))
            state = AutoResetState(env_state, store)

        def step(carry: Any, key: jax.Array) -> Any:
            state, timestep = carry
            action_key, step_key = jax.random.split(key)
            keys = jax.random.split(action_key, num_rows)
            action = jax.vmap(env.action_space.sample)(keys, timestep.observation.action_mask)
            state, timestep = resetting.step(jax.random.split(step_key, num_rows), state, action)
            return (state, timestep), (action, timestep)

        (last, _), steps = jax.lax.scan(step, (state, first), jax.random.split(steps_key, num_steps))
        resetting.release(last)
        return CheckedRollout(starts, first, *steps)

    key = jax.random.key(seed)
    started = _call(compiled, draw, jax.random.split(key, _NUM_STARTS * env.num_agents))
    return jax.tree.map(np.asarray, _call(compiled, play, key, *started))


def _value_faults(env: VectorEnvironment, rollout: CheckedRollout, again: CheckedRollout) -> Iterator[str]:
    first, steps = rollout.first, rollout.steps
    yield from element_faults(env.observation_space, first.observation.agent_view, 1, "the first observation")
    yield from element_faults(env.observation_space, steps.next_observation.agent_view, 2, "the observation")
    yield from mask_faults(env.action_space, first.observation.action_mask, "the first action_mask")
    yield from mask_faults(env.action_space, steps.next_observation.action_mask, "action_mask")
    if not np.isfinite(steps.reward).all():
        yield "reward is NaN or infinite after some actions"
    if (steps.terminated & steps.truncated).any():
        yield "terminated and truncated are both True in some step: truncate only where the episode does not terminate"
    if (first.terminated | first.truncated).any():
        yield "the first time step of an episode is terminated or truncated: build it with restart(observation)"
    if (first.reward != 0).any():
        yield "the first time step of an episode has a reward: build it with restart(observation)"
    pairs = zip(jax.tree.leaves(rollout), jax.tree.leaves(again), strict=True)
    if not all(np.array_equal(one, other, equal_nan=one.dtype.kind == "f") for one, other in pairs):
        yield (
            "equal seeds and actions give different results: draw random numbers from what reset(seed=) seeds,"
            " self.np_random in gymnasium"
            if env.on_host
            else "equal keys and actions give different results: draw random numbers from the key, and keep no state in"
            " Python"
        )
    if env.goal_reward is not None:
        yield from _goal_faults(env.goal_reward, steps)
    yield from _length_faults(env.truncates_after, rollout)
    yield from _successor_faults(rollout)


def _goal_faults(goal_reward: GoalReward, steps: TimeStep) -> Iterator[str]:
    view = steps.next_observation.agent_view
    if not isinstance(view, dict) or not {ACHIEVED, DESIRED} <= view.keys():
        yield f"goal_reward is set, and the observation lacks {ACHIEVED} or {DESIRED}: declare a Dict with both"
        return
    reward, terminated = jax.vmap(jax.vmap(goal_reward))(view[ACHIEVED], view[DESIRED])
    if not np.allclose(reward, steps.reward, atol=_SLACK) or (terminated & ~steps.terminated).any():
        yield "goal_reward of the goals after a step is not its reward, or not its end: compute step by goal_reward"


def _length_faults(truncates_after: int | None, rollout: CheckedRollout) -> Iterator[str]:
    """Yield a fault if episodes are truncated earlier than is declared: true successors would not all be kept."""
    length = np.zeros(rollout.ended.shape[1:], np.int64)
    for truncated, ended in zip(rollout.steps.truncated, rollout.ended, strict=True):
        length += 1
        if truncates_after is not None and (early := length[truncated & (length < truncates_after)]).size:
            yield (
                f"an episode is truncated after {early.min()} steps, and truncates_after={truncates_after} is declared:"
                " set truncates_after to the fewest steps, or to None where they are not known"
            )
            return
        length[ended] = 0


def _successor_faults(rollout: CheckedRollout) -> Iterator[str]:
    """Yield a fault if episodes end in start states, which other steps do not reach."""
    steps, ended = rollout.steps, rollout.ended
    within = ~ended
    inner, successor = jax.tree.leaves(steps.observation), jax.tree.leaves(steps.next_observation)
    if any((one[within] != other[within]).any() for one, other in zip(inner, successor, strict=True)):
        yield (
            "observation and next_observation differ before the end of an episode: both are the true successor, and"
            " wrappers reset"
        )
        return
    starts = jax.tree.leaves(rollout.starts.observation.agent_view)
    like_start = np.ones(ended.shape, bool)
    for start, view in zip(starts, jax.tree.leaves(steps.next_observation.agent_view), strict=True):
        inside = (view >= start.min(0)) & (view <= start.max(0))
        like_start &= inside.reshape(*ended.shape, -1).all(-1)
    if ended.any() and within.any() and like_start[ended].all() and like_start[within].mean() < 0.5:
        yield (
            "next_observation at the end of an episode is a start observation: return the true successor, and do not"
            " reset in step; wrappers do"
        )


def _aval(value: Any, batch_dims: int = 0) -> str:
    weak = ", weakly typed" if getattr(value, "weak_type", False) else ""
    return f"{value.dtype}{list(value.shape[batch_dims:])}{weak}"
