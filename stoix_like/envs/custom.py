"""Custom environments and wrappers, from import paths or as Python objects."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.envs import jaxmarl_interface
from stoix_like.envs.arguments import construct, parameters_of
from stoix_like.envs.check import check_interface
from stoix_like.envs.environment import Environment, VectorEnvironment, Vectorize
from stoix_like.envs.host_batches import HostOptions
from stoix_like.envs.spaces import Box
from stoix_like.envs.suites import OWN, load_suite
from stoix_like.envs.wrappers import RewardWrapper, Wrapper, as_declared, join_actions
from stoix_like.envs.wrappers.base import unstacked
from stoix_like.envs.wrappers.worlds import AddWorld
from stoix_like.errors import ConfigError, FaultyEnvironmentError
from stoix_like.user_code import import_object, name_of, refusing

# The methods through which observations pass, and the implementations of base classes that leave them as they are.
_SAME_OBSERVATIONS = {
    name: (getattr(Wrapper, name), getattr(RewardWrapper, name))
    for name in ("reset", "on_start", "next_episodes", "step")
}

A_CLASS = "use the import path of a class, my_module.MyClass"
_GAME, _PARALLEL = "pgx.core.Env", "pettingzoo.utils.env.ParallelEnv"
_GYMNAX = ("reset_env", "step_env", "default_params")
_JAXMARL = ("agents", "step_env", "observation_spaces")
_PETTINGZOO, _OTHERS = ("possible_agents", "observation_space", "action_space", "step"), ("agent_iter", "step_env")
_WORLD, _OPPONENT = "world", "opponent"
# Packages of environments that step on the host, one call at a time.
_HOST_PACKAGES = ("gym", "dm_env", "pettingzoo")


def make(
    env: Any, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions | None = None
) -> VectorEnvironment:
    """Build custom environments.

    `env`: an environment, or a class or function that builds it, or its import path.
    """
    if env == "":
        raise ConfigError(
            "env._target_ is not set: use the import path of a class, env._target_=my_module.MyEnv; if the run was"
            " trained on an object, pass it from Python again, env=MyEnv()"
        )
    source, constructor = import_object(env, "env._target_", A_CLASS) if isinstance(env, str) else env, None
    opponent, kwargs = _set_aside(_OPPONENT, source, kwargs)
    world, kwargs = _set_aside(_WORLD, source, kwargs)
    if is_constructor(source):
        constructor = partial(source, **kwargs)
        source = construct(source, kwargs, env if isinstance(env, str) else _name(source))
    elif kwargs:
        raise ConfigError(f"env.kwargs={dict(kwargs)}: {_name(source)} is built already: pass its class, env=MyEnv")
    if opponent and not _has_base(type(source), _GAME):
        raise ConfigError(
            f"env.kwargs.opponent={name_of(opponent[_OPPONENT])}: {_name(source)} is not a pgx game: leave it out"
        )
    return _adapt(source, params, _adds_world(source, world), opponent, constructor, options or HostOptions())


def _set_aside(name: str, source: Any, kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an argument of this package, unless a constructor takes it itself, and the other arguments."""
    # A `world` of this package is true or false; another one belongs to the constructor's `**kwargs`.
    if name not in kwargs or (is_constructor(source) and _takes(name, source, kwargs[name])):
        return {}, dict(kwargs)
    return {name: kwargs[name]}, {key: value for key, value in kwargs.items() if key != name}


def _takes(name: str, constructor: Any, value: Any) -> bool:
    parameters = parameters_of(constructor)
    if any(entry.kind is entry.VAR_KEYWORD for entry in parameters):
        if not _passes_on(name, constructor) or (name == _WORLD and not isinstance(value, bool)):
            return True
        parameters = [entry for base in getattr(constructor, "__mro__", [constructor]) for entry in parameters_of(base)]
    return any(entry.name == name for entry in parameters)


def _passes_on(name: str, constructor: Any) -> bool:
    """Return whether `**kwargs` go to base classes or other constructors, which rarely know the argument."""
    is_class = isinstance(constructor, type)
    of_jaxmarl = is_class and hasattr(constructor, "step_env") and not hasattr(constructor, "default_params")
    if of_jaxmarl or (is_class and _has_base(constructor, _GAME)):
        return True
    of_pettingzoo = str(getattr(constructor, "__module__", "")).startswith("pettingzoo.")
    is_game = is_class and (
        issubclass(constructor, Environment | VectorEnvironment) or _has_base(constructor, _PARALLEL)
    )
    return name == _WORLD and (of_pettingzoo or is_game)


def _adds_world(env: Any, world: Mapping[str, Any]) -> bool:
    """Return whether agents also observe what all of them see; refuse it where there is a single one."""
    if not world:
        return False
    value, is_custom = world[_WORLD], isinstance(env, Environment | VectorEnvironment)
    if not (_is_of_jaxmarl(env) or _is_parallel(env) or (is_custom and env.num_agents > 1)):
        raise ConfigError(f"env.kwargs.world={value}: {_name(env)} is not a game of several agents: leave it out")
    if not isinstance(value, bool):
        raise ConfigError(f"env.kwargs.world={value!r} is invalid for {_name(env)}: it must be true or false")
    return value


def _adapt(
    env: Any, params: Mapping[str, Any], world: bool, opponent: dict[str, Any], constructor: Any, options: HostOptions
) -> VectorEnvironment:
    """Convert an environment to vector environments."""
    name, vector = _name(env), None
    if params and not (_has_base(type(env), _GAME) or _is_of_gymnax(env)):
        raise ConfigError(f"env.params={dict(params)}: {name} has no parameters: use env.kwargs")
    if _is_of_gymnasium(env):
        with refusing(f"{name} is not a gymnasium environment", "see the guide Bring your own environment"):
            vector = join_actions(load_suite("gymnasium").adopt(env, constructor, name, options))
    elif _is_parallel(env):
        # Its module imports gymnasium, which the core does not need.
        vector = importlib.import_module("stoix_like.envs.parallel_games").adopt(env, constructor, name, options, world)
    elif _has_base(type(env), _GAME):
        with refusing(f"{name} does not follow the interface of pgx", "see pgx.Env"):
            vector = load_suite("pgx").adapt(env, opponent, params, name)
    elif _is_of_gymnax(env):
        if not hasattr(env, "is_truncated"):
            raise FaultyEnvironmentError(
                [f"{name} has no is_truncated(state, params): subclass the Environment of gymnax 1.0"]
            )
        with refusing(f"{name} does not follow the interface of gymnax", "see its Environment"):
            vector = load_suite("gymnax").adapt(env, params, name)
    elif _is_of_jaxmarl(env):
        vector = join_actions(Vectorize(jaxmarl_interface.adapt(env, name, world)))
    found = _adapt_own(env, world) if vector is None else vector
    space = found.action_space
    for part in getattr(space, "parts", [space]):
        if isinstance(part, Box) and not jnp.issubdtype(part.dtype, jnp.floating):
            problem = f"action_space is a Box of {jnp.dtype(part.dtype)}"
            raise FaultyEnvironmentError([f"{problem}: use MultiDiscrete for integers, or a Box of floats"])
    return found


def _adapt_own(env: Any, world: bool) -> VectorEnvironment:
    if not isinstance(env, Environment | VectorEnvironment):
        raise FaultyEnvironmentError([f"{_name(env)} is not an environment in JAX: {_advice(env)}"])
    for name in ("observation_space", "action_space"):
        if not hasattr(env, name):
            raise FaultyEnvironmentError([f"{_name(env)} has no {name}: set it to a space of stoix_like.envs.spaces"])
    vector = join_actions(Vectorize(env) if isinstance(env, Environment) else env)
    return AddWorld(as_declared(vector, traced=False)) if world else vector


def wrap(env: VectorEnvironment, wrappers: Sequence[Mapping[str, Any]]) -> VectorEnvironment:
    """Apply custom wrappers."""
    for i, wrapper in enumerate(wrappers):
        key = f"env.wrappers[{i}]"
        wrapped = build_target(dict(wrapper), key, "my_module.MyWrapper", env)
        if not isinstance(wrapped, VectorEnvironment):
            problem = f"{key}._target_={wrapper['_target_']} returned a {type(wrapped).__name__}"
            raise ConfigError(f"{problem}: use a subclass of stoix_like.envs.wrappers.Wrapper")
        space = wrapped.observation_space
        if space is env.observation_space and getattr(space, "stacked", 1) > 1 and _changes_observations(wrapped, env):
            # Its views need not be stacks of the frames of successive steps, which replay buffers store once each.
            wrapped.observation_space = unstacked(space)
        env = wrapped
    return env


def declare(env: VectorEnvironment, is_own: bool, has_wrappers: bool, evaluation: bool) -> VectorEnvironment:
    """Check what custom environments and wrappers return, and let views and spaces agree."""
    # Vector environments of a user's own may have a fixed number, unlike the trial of the check.
    checked = isinstance(env.unwrapped, Vectorize) if is_own and not env.on_host else has_wrappers
    if checked and not evaluation:
        check_interface(env)
    return as_declared(env, traced=checked)


def _changes_observations(wrapped: VectorEnvironment, env: VectorEnvironment) -> bool:
    """Return whether code of a user's own around environments may change what they observe."""
    while isinstance(wrapped, Wrapper) and wrapped is not env:
        own = not type(wrapped).__module__.startswith("stoix_like.")
        if own and any(getattr(type(wrapped), name) not in kept for name, kept in _SAME_OBSERVATIONS.items()):
            return True
        wrapped = wrapped.env
    return wrapped is not env


def unused_methods(env: VectorEnvironment) -> tuple[str, ...]:
    """Return notes about methods of a custom environment that nothing calls."""
    base: Any = env.unwrapped
    while not hasattr(base, "action_mask") and hasattr(base, "env"):
        base = base.env
    if not callable(getattr(base, "action_mask", None)):
        return ()
    _, timestep = jax.eval_shape(env.reset, jax.random.split(jax.random.key(0), env.num_agents))
    if timestep.observation.action_mask is not None:
        return ()
    return (
        f"{_name(base)}.action_mask is called by nothing, and actions are not masked: return"
        " Observation(view, action_mask=…) of stoix_like.base_types from reset and step of an Environment",
    )


def build_target(entry: Any, key: str, example: str, *args: Any) -> Any:
    """Build an object from its block of the configuration."""
    target = entry.get("_target_") if isinstance(entry, Mapping) else None
    if not isinstance(target, str):
        raise ConfigError(f"{key}={entry} has no _target_, an import path: write {{_target_: {example}, …}}")
    kwargs = {name: value for name, value in entry.items() if name != "_target_"}
    return construct(import_object(target, f"{key}._target_", A_CLASS), kwargs, target, key, *args)


def import_path(env: Any) -> str | None:
    """Return the path from which another process can import a class or function; None where there is none."""
    if not is_constructor(env) or isinstance(env, partial) or env.__module__ == "__main__":
        return None
    importable = getattr(sys.modules.get(env.__module__), env.__qualname__, None) is env
    return f"{env.__module__}.{env.__qualname__}" if importable else None


def as_overrides(env: Any) -> list[str]:
    """Return the overrides that select an environment passed from Python."""
    if (path := import_path(env)) is None:
        return [f"env={OWN}", "env._target_=''", f"env.scenario.name={_name(env)}"]
    return [f"env={OWN}", f"env._target_={path}"]


def check_same(env: Any, env_name: str, target: str, name: str) -> None:
    """Refuse an environment for a run that was not trained on it.

    `env`: the environment passed from Python; None if there is none.
    """
    if env is None or import_path(env) == target != "":
        return
    if env_name != OWN or target:
        raise ConfigError(f"env={_name(env)}: the run builds its own environment, {name}: leave env out")
    if _name(env) != name:
        raise ConfigError(f"env={_name(env)}: the run was trained on {name}: pass that environment")


def is_constructor(env: Any) -> bool:
    """Return whether an object is a class, a function, or one of them with arguments."""
    return isinstance(env, type | partial) or (callable(env) and hasattr(env, "__qualname__"))


def _name(env: Any) -> str:
    while isinstance(env, partial):
        env = env.func
    # Without the brackets of <lambda>, which overrides and paths would have to quote.
    if is_constructor(env):
        return str(env.__name__.strip("<>"))
    return type(env.unwrapped if _is_of_gymnasium(env) else env).__name__


def _has_base(cls: type, path: str) -> bool:
    """Return whether a class has a base, which its path names so that its package need not be imported."""
    return any(f"{base.__module__}.{base.__qualname__}" == path for base in cls.__mro__)


def _is_of_gymnasium(env: Any) -> bool:
    return _has_base(type(env), "gymnasium.core.Env")


def _is_parallel(env: Any) -> bool:
    """Return whether an object has PettingZoo's parallel interface; games in turns have an `agent_iter`."""
    return _has_base(type(env), _PARALLEL) or (
        not isinstance(env, Environment | VectorEnvironment)
        and all(hasattr(env, name) for name in _PETTINGZOO)
        and not any(hasattr(env, name) for name in _OTHERS)
    )


def _is_of_jaxmarl(env: Any) -> bool:
    return not isinstance(env, Environment | VectorEnvironment) and all(hasattr(env, name) for name in _JAXMARL)


def _is_of_gymnax(env: Any) -> bool:
    return all(hasattr(env, name) for name in _GYMNAX)


def _advice(env: Any) -> str:
    if _has_base(type(env), "gymnasium.vector.vector_env.VectorEnv"):
        return "it is a vector environment of gymnasium: pass its id, or one environment"
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    if (host := next((name for name in _HOST_PACKAGES if name in packages), None)) is not None:
        return f"it has the interface of {host}, which cannot be compiled: wrap it as a gymnasium.Env"
    return (
        "subclass stoix_like.envs.Environment (one environment) or VectorEnvironment (N of them), or implement gymnax's"
        f" {', '.join(_GYMNAX)}, or JaxMARL's {', '.join(_JAXMARL)}"
    )
