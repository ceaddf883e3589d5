"""Adapter for gymnasium: classic control, Box2D, MuJoCo, Atari, and any other registered environment."""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import inspect
import os
import platform
import re
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from multiprocessing import resource_tracker
from typing import Any, TypeVar

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.wrappers import AtariPreprocessing, FrameStackObservation, TimeLimit

from stoix_like.base_types import PyTree
from stoix_like.call_thread import CallThread, NoAnswerError
from stoix_like.envs import host_batches
from stoix_like.envs.arguments import fit_params, refuse_several_players
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.generators import unseeded
from stoix_like.envs.gymnasium_spaces import joined, make_spec, native_actions
from stoix_like.envs.host import HostEnvironment, HostSpec
from stoix_like.envs.host_batches import CLOSE_SECONDS, HostBatch, HostOptions, HostStep, draw_without_windows
from stoix_like.envs.suites import load_suite
from stoix_like.errors import ConfigError, HostEnvironmentError, first_line, nearest
from stoix_like.gymnasium_workers import Declared, build_in_worker
from stoix_like.interpreter import RUN_AGAIN, UNGUARDED, exit_if_run_again
from stoix_like.user_code import refusing, user_errors

if importlib.util.find_spec("ale_py") is not None:
    import ale_py

    gymnasium.register_envs(ale_py)

T = TypeVar("T")
_ATARI = "ALE/"
# Games of Atari for two players, which no preprocessing knows.
_FOR_TWO = ("ALE/Backgammon-v5", "ALE/VideoCheckers-v5")
# Parameters of Atari games, `env.params`: from gymnasium's `AtariPreprocessing`, and the number of stacked frames.
_ATARI_PARAMS = {"noop_max": 30, "frame_skip": 4, "screen_size": 84, "terminal_on_life_loss": False, "stack_num": 4}
# Seconds that the workers have to close their environments.
_CLOSE_SECONDS = 5.0
# Seconds until a process with a broken pipe counts as alive.
_DEATH_SECONDS = 1.0


class GymnasiumBatch(HostBatch):
    """A vector environment of gymnasium, in any mode of automatic reset."""

    def __init__(self, envs: VectorEnv[Any, Any, Any], resets: bool = True) -> None:
        self._envs, self._resets = envs, resets
        self._mode = AutoresetMode(envs.metadata["autoreset_mode"])

    def reset(self, seeds: list[int]) -> PyTree:
        with _failures_explained(self._envs):
            return self._envs.reset(seed=seeds)[0]  # type: ignore[arg-type]

    def step(self, actions: np.ndarray) -> HostStep:
        native = native_actions(self._envs.single_action_space, actions)
        with _failures_explained(self._envs):
            observation, reward, terminated, truncated, infos = self._envs.step(native)
            ended = np.asarray(terminated | truncated)
            successor = observation
            if ended.any() and self._resets:
                if self._mode == AutoresetMode.SAME_STEP:
                    finals = host_batches.stacked(infos["final_obs"][ended])
                    successor = host_batches.with_rows(observation, finals, ended)
                else:
                    # In NEXT_STEP, too, so that no step of the batch is spent on a reset.
                    observation, _ = self._envs.reset(options={"reset_mask": ended})
        return HostStep(observation, successor, reward, terminated, truncated)

    def picture(self) -> np.ndarray:
        pictures = self._envs.render()
        assert pictures is not None
        return np.asarray(pictures[0])

    def close(self) -> None:
        """Ends workers that do not close their environments in time."""
        late = threading.Timer(_CLOSE_SECONDS, self.kill)
        late.start()
        try:
            self._envs.close()
        except Exception:
            if not _processes(self._envs):
                raise
            # A worker died or hung.
            self._envs.closed = True
        finally:
            late.cancel()
            self.kill()

    def kill(self) -> None:
        for process in _processes(self._envs):
            process.kill()


class _Workers(AsyncVectorEnv):
    """Environments in processes, which end if one of them cannot be built."""

    def __init__(self, constructors: Sequence[Callable[[], gymnasium.Env[Any, Any]]]) -> None:
        try:
            with _failures_explained(self):
                # Forked processes would inherit the locks of jax's threads.
                # Without SAME_STEP, a reset would be a second round trip.
                super().__init__(constructors, context="spawn", autoreset_mode=AutoresetMode.SAME_STEP)
        except BaseException:
            self.closed = True
            for process in _processes(self):
                process.kill()
            raise


def _processes(envs: VectorEnv[Any, Any, Any]) -> list[Any]:
    return getattr(envs, "processes", [])


@contextlib.contextmanager
def _failures_explained(envs: VectorEnv[Any, Any, Any]) -> Iterator[None]:
    """Name the worker that died and broke its pipe, and what a worker raised."""
    try:
        yield
    except (EOFError, OSError) as error:
        processes = _processes(envs)
        for index, process in enumerate(processes):
            process.join(_DEATH_SECONDS / len(processes))
            if process.exitcode is not None:
                code = process.exitcode
                if code == RUN_AGAIN:
                    raise HostEnvironmentError(f"env.vectorization=async: {UNGUARDED}") from error
                how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
                raise HostEnvironmentError(f"the process of environment {index} died ({how})") from error
        raise
    except RuntimeError as error:
        if _processes(envs):
            raise HostEnvironmentError(str(error)) from error
        raise


def scenarios() -> list[str]:
    """List the ids that are registered in gymnasium and can be built; of Atari games, those that are preprocessed."""
    # Versions that gymnasium has given up are functions that raise; the fourth Pusher needs an older MuJoCo; `robotics`
    # is a suite of its own, which registers its ids when it is imported.
    points = {name: spec.entry_point for name, spec in gymnasium.registry.items()}
    places = {name: str(getattr(point, "__module__", point)) for name, point in points.items()}
    left_out = ("phys2d/", "tabular/", "Pusher-v4", *_FOR_TWO)
    names = (name for name, place in places.items() if not re.match(r"gymnasium(\.envs$|_robotics)", place))
    return sorted(name for name in names if not name.startswith(left_out) and preprocessed_id(name) in ("", name))


def preprocessed_id(name: str) -> str:
    """Return the id under which an Atari game is preprocessed."""
    registered = name.rpartition(":")[2]
    if registered.startswith(_ATARI):
        return registered
    spec = gymnasium.registry.get(registered)
    if spec is None or not str(spec.entry_point).startswith("ale_py."):
        return ""
    games = {each.kwargs.get("game"): other for other, each in gymnasium.registry.items() if other.startswith(_ATARI)}
    return games.get(spec.kwargs.get("game"), "")


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions) -> VectorEnvironment:
    """Build environments of gymnasium."""
    is_atari = name.rpartition(":")[2].startswith(_ATARI)
    if options.vectorization == "envpool":
        if game := preprocessed_id(name).removeprefix(_ATARI):
            raise ConfigError(
                f"env.vectorization=envpool: envpool has Atari games with options of its own: use env=envpool/_atari"
                f" env.scenario.name={game}, or env.vectorization=async"
            )
        envpool = load_suite("envpool", "env.vectorization=envpool")
        return envpool.make(name.rpartition(":")[2], kwargs, params, options)
    stacked = {**_ATARI_PARAMS, **params}["stack_num"] if is_atari else 1
    _check_registered(name)
    with _example(partial(_make_one, name, kwargs, params, options), name, options) as (env, call):
        spec = make_spec(f"gymnasium/{name}", env.observation_space, env.action_space, is_atari, stacked)
        fps = call(lambda: _check_pictures(env, name)) if options.drawn else None
        # Its specification is all that a worker needs, so that workers do not import jax.
        specification = copy.deepcopy(env.spec)
        assert specification is not None
        if options.time_limit is not None:
            # In addition to its own, which the specification would replace; its steps are not frames of Atari games.
            specification.additional_wrappers += (TimeLimit.wrapper_spec(max_episode_steps=options.time_limit),)
        constructor = partial(gymnasium.make, specification, disable_env_checker=True)
        space = joined(env.observation_space)
    return _vectorized(constructor, space, spec, options, fps)


def adopt(
    env: gymnasium.Env[Any, Any], constructor: Callable[..., Any] | None, name: str, options: HostOptions
) -> VectorEnvironment:
    """Build vector environments from a user's environment."""
    if options.vectorization == "envpool":
        raise ConfigError(f"env.vectorization=envpool: envpool does not have {name}: use sync or async")
    spec = make_spec(name, env.observation_space, env.action_space)
    if constructor is not None:
        faults = unseeded(env, name)
        _close(env, CallThread(), options)
    else:
        # Environments hold anything: windows, sockets, simulators.
        with refusing(f"{name} cannot be copied", "pass its class, or register it and use its id"):
            constructor = partial(copy.deepcopy, copy.deepcopy(env))
            faults = unseeded(constructor(), name)
    if options.drawn and "render_mode" in inspect.signature(constructor).parameters:
        constructor = partial(constructor, render_mode="rgb_array")
    construct, limit = constructor, options.time_limit

    # Pickled by value.
    def limited() -> gymnasium.Env[Any, Any]:
        return construct() if limit is None else TimeLimit(construct(), limit)

    fps = None
    if options.drawn:
        with _example(limited, name, options) as (one, call):
            fps = call(lambda: _check_pictures(one, name))
    adopted = _vectorized(limited, joined(env.observation_space), spec, options, fps)
    adopted.faults = faults
    return adopted


def _vectorized(
    constructor: Callable[[], gymnasium.Env[Any, Any]],
    space: gymnasium.Space[Any],
    spec: HostSpec,
    options: HostOptions,
    fps: int | None,
) -> HostEnvironment:
    # A worker per episode of an evaluation would idle during training.
    parallel = options.vectorization == "async" and not options.evaluation
    if parallel:
        exit_if_run_again()

    def make_batch(num_envs: int) -> HostBatch:
        if parallel:
            in_worker = partial(build_in_worker, constructor, space, options.timeout)
            with _interrupts_blocked():
                return GymnasiumBatch(_Workers([in_worker] * num_envs))
        # Explicit resets: in SAME_STEP, an environment that reuses its arrays overwrites its last observation.
        here = [lambda: Declared(constructor(), space, copies=False)] * num_envs
        return GymnasiumBatch(SyncVectorEnv(here, autoreset_mode=AutoresetMode.DISABLED), not options.drawn)

    return HostEnvironment(make_batch, spec, options.timeout, fps)


@contextlib.contextmanager
def _example(
    make_one: Callable[[], gymnasium.Env[Any, Any]], name: str, options: HostOptions
) -> Iterator[tuple[gymnasium.Env[Any, Any], Callable[[Callable[[], T]], T]]]:
    """Build an environment for a moment; yield it, and what makes its calls in time."""
    thread = CallThread()

    def call(function: Callable[[], T]) -> T:
        try:
            return thread.call(function, options.timeout)
        except NoAnswerError as error:
            raise ConfigError(f"env.timeout={options.timeout:g}: building {name} takes longer, or hangs") from error

    try:
        env = call(make_one)
        try:
            yield env, call
        finally:
            _close(env, thread, options)
    finally:
        thread.close()


def _close(env: gymnasium.Env[Any, Any], thread: CallThread, options: HostOptions) -> None:
    """Close an example. Nothing depends on how it closes, or whether it does."""
    with contextlib.suppress(Exception):
        thread.call(env.close, min(options.timeout, CLOSE_SECONDS))


def _make_one(
    name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any], options: HostOptions
) -> gymnasium.Env[Any, Any]:
    is_atari = name.rpartition(":")[2].startswith(_ATARI)
    fitted = fit_params(_ATARI_PARAMS if is_atari else {}, params, name)
    # Preprocessing skips the frames itself.
    given = ({"frameskip": 1} if is_atari else {}) | dict(kwargs)
    if options.drawn:
        given["render_mode"] = "rgb_array"
    try:
        env = gymnasium.make(name, disable_env_checker=True, **given)
        if not is_atari:
            return env
        stack_num = (preprocessing := _ATARI_PARAMS | fitted).pop("stack_num")
        # Evaluation plays whole games, whatever ends an episode of training.
        preprocessing["terminal_on_life_loss"] &= not options.evaluation
        return FrameStackObservation(AtariPreprocessing(env, **preprocessing), stack_num)
    except (gymnasium.error.DependencyNotInstalled, ImportError) as error:
        raise ConfigError(
            f"env.scenario.name={name!r}: {first_line(error)}; the extras stoix_like[box2d], [mujoco] and [atari]"
            " install what gymnasium's environments need"
        ) from error
    except user_errors() as error:  # constructors are third-party code
        settings = f"env.kwargs={dict(kwargs)}" + (f", env.params={dict(params)}" if params else "")
        raise ConfigError(f"{settings} is invalid for {name}: {first_line(error)}") from error


def _check_pictures(env: gymnasium.Env[Any, Any], name: str) -> int:
    """Draw a start state, and return the frames per second."""
    if platform.system() == "Linux" and not os.environ.get("DISPLAY"):
        # MuJoCo environments would try a window first, which fails only once it is too late for another way.
        os.environ.setdefault("MUJOCO_GL", "egl")
    draw_without_windows()
    # Whatever keeps it from drawing, such as OpenGL without a display.
    problem = f"env.scenario.name={name} cannot be drawn on this machine"
    with refusing(problem, "install what its render_mode=rgb_array needs"):
        env.reset(seed=0)
        picture: Any = env.render()
    if not isinstance(picture, np.ndarray) or picture.ndim != 3:
        raise ConfigError(f"env.scenario.name={name} cannot be drawn: it has no render_mode=rgb_array")
    return int(env.metadata.get("render_fps", 30))


def _check_registered(name: str) -> None:
    """Import the module of `module:id`, and check that the id is registered."""
    module, _, registered = name.rpartition(":")
    problem = f"env.scenario.name={name!r}: the module {module} cannot be imported"
    with refusing(problem, "install it, or add its directory to PYTHONPATH"):
        if module:
            importlib.import_module(module)
    try:
        gymnasium.spec(registered)
    except gymnasium.error.Error as error:
        hint = nearest(registered, scenarios()) if registered else "for example CartPole-v1"
        why = "" if hint.startswith("did you mean") else f" ({first_line(error)})"
        raise ConfigError(f"env.scenario.name={name!r} is not an id of gymnasium{why}: {hint}") from error
    if registered in _FOR_TWO:
        refuse_several_players(name)


@contextlib.contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Start processes that ignore Ctrl-C, which the terminal sends to them as well: the run stops them itself."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It would unblock the signal if it started with the first process.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
