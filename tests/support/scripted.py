"""A gymnasium environment whose every transition is known, with checks of what arrives elsewhere.

An environment plays episodes 0, 1, 2, …; after t steps of episode e it observes `[e, t, last action, seed % 2**20]`.
Step t of episode e is rewarded with `8 e + t`, and ends the episode where t is `length(e)`: even episodes terminate,
odd ones are truncated.
"""

import os
import signal
import sys
import threading
import time

import gymnasium
import jax
import numpy as np

from stoix_like.envs import EnvConfig, ScenarioConfig

SEEDS = 2**20  # float32 holds them exactly


def length(episode):
    """Return the number of steps of an episode: 1, 2, 3, 4 or 5, several of them in direct succession."""
    return 1 + (3 * episode) % 5


def config(**changes):
    return EnvConfig("gymnasium", ScenarioConfig("support.scripted:Scripted-v0"), **changes)


class SimulatorError(Exception):
    """An exception that cannot be pickled, nor built from its message."""

    def __init__(self, message, lock):
        super().__init__(message)
        self.lock = lock


class Scripted(gymnasium.Env):
    """The environment; step `fail_at` of the first episode with at least that many steps fails.

    The fault: raise, raise what cannot be pickled, exit, interrupt, hang, die, return a NaN as observation or reward,
    an infinite reward, an array as reward, or a number as observation. `ragged`: the information of a step has arrays
    of changing shapes.
    """

    open_environments = 0

    def __init__(self, fail_at=None, fault="raise", as_dict=False, ragged=False, build_seconds=0.0, close_hangs=False):
        time.sleep(build_seconds)
        self._close_hangs = close_hangs
        self._box = gymnasium.spaces.Box(-np.inf, np.inf, (4,), np.float64)
        self.observation_space = gymnasium.spaces.Dict({"all": self._box}) if as_dict else self._box
        self.action_space = gymnasium.spaces.Discrete(3, start=-1)
        self._fail_at, self._fault, self._as_dict, self._ragged = fail_at, fault, as_dict, ragged
        # After 40 steps in all; of a process, so that the same run can continue without it.
        self._late_fault, self._total = os.environ.get("SCRIPTED_FAULT"), 0
        # Reused for every observation, as some simulators do.
        self._observation = np.zeros(4)
        Scripted.open_environments += 1

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._episode, self._seed = -1, seed % SEEDS
        self._episode += 1
        self._t = 0
        return self._observe(0), {}

    def step(self, action):
        assert action in self.action_space
        assert self._t < length(self._episode), "stepped after the end of an episode"
        self._t += 1
        self._total += 1
        fault = self._fault if self._t == self._fail_at else self._late_fault if self._total == 40 else None
        if fault == "raise":
            raise RuntimeError("the simulator exploded")
        if fault == "unpicklable":
            raise SimulatorError("exploded", threading.Lock())
        if fault == "exit":
            sys.exit(0)
        if fault == "interrupt":
            raise KeyboardInterrupt
        if fault == "hang":
            print("hanging", file=sys.stderr, flush=True)
            threading.Event().wait()
        if fault == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        ended = self._t == length(self._episode)
        terminated, truncated = ended and self._episode % 2 == 0, ended and self._episode % 2 == 1
        reward = 8.0 * self._episode + self._t
        reward = {"reward": np.nan, "infinite": np.inf, "array": np.ones(1)}.get(fault, reward)
        info = {"targets": np.zeros(self._t)} if self._ragged else {}
        observation = self._observe(np.nan if fault == "observation" else action)
        return np.float64(1) if fault == "number" else observation, reward, terminated, truncated, info

    def close(self):
        if self._close_hangs:
            threading.Event().wait()
        Scripted.open_environments -= 1

    def _observe(self, action):
        self._observation[:] = self._episode, self._t, action, self._seed
        return {"all": self._observation} if self._as_dict else self._observation


class CopyingScripted(Scripted):
    """The same with a new array for each observation, as gymnasium's SAME_STEP needs it."""

    def _observe(self, action):
        return jax.tree.map(np.copy, super()._observe(action))


class Bandit(gymnasium.Env):
    """One state: the reward is the action, 0 or 1, and every episode has one step."""

    observation_space = gymnasium.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), float(action), True, False, {}


for name in ("Scripted", "Bandit"):
    gymnasium.register(f"{name}-v0", f"support.scripted:{name}")


def check_transitions(observation, action, reward, terminated, truncated, successor):
    """Assert that each of the transitions `[...]` is one that the environment made; actions are 0, 1 or 2."""
    episode, t, _, seed = np.moveaxis(observation, -1, 0)
    np.testing.assert_array_equal(successor, np.stack([episode, t + 1, action - 1, seed], -1))
    np.testing.assert_array_equal(reward, 8 * episode + t + 1)
    ended = t + 1 == length(episode)
    np.testing.assert_array_equal(terminated, ended & (episode % 2 == 0))
    np.testing.assert_array_equal(truncated, ended & (episode % 2 == 1))


def check_sequence(first, action, reward, terminated, truncated, successor, observation):
    """Assert that `[T, N, ...]` are all the steps that the environments made after `first` `[N, ...]`, in order."""
    before = np.concatenate([first[None], observation[:-1]])
    check_transitions(before, action, reward, terminated, truncated, successor)
    np.testing.assert_array_equal(first[:, :3], 0)
    ended = (terminated | truncated)[..., None]
    episode, zero, seed = successor[..., :1], np.zeros_like(successor[..., :1]), successor[..., 3:]
    np.testing.assert_array_equal(
        observation, np.where(ended, np.concatenate([episode + 1, zero, zero, seed], -1), successor)
    )
