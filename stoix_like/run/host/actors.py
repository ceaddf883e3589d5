"""Actor threads of Sebulba, and the queues between them and the learner."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.architectures.rollout import Rollout
from stoix_like.architectures.sebulba import ActorProgram
from stoix_like.architectures.types import Hyperparams, IntervalMetrics, LearnerState, RunningSums
from stoix_like.base_types import Trajectory
from stoix_like.envs.host import HostEnvironment

# Seconds that an actor has to finish its current step when the run ends.
CLOSE_SECONDS = 10.0
# Folded into the learner's key, so that actors and learner draw independent numbers.
_ACTOR_STREAM = 0xAC7


class ActingPolicy(NamedTuple):
    """The agent's shared state on the device of an actor, and the number of updates that led to it."""

    shared: Any
    updates: int


class Timing(NamedTuple):
    """Timing of a rollout."""

    updates: int  # of the behaviour policy
    wait_seconds: float  # time that the actor waited for this policy
    seconds: float  # time that the rollout took


class Actor:
    """One thread that acts in its own environments.

    A policy in its first queue asks for one rollout, which the actor puts into the second. An exception ends the
    thread, and takes the place of its rollout.
    """

    def __init__(
        self,
        env: HostEnvironment,
        program: ActorProgram,
        device: jax.Device,
        num_envs: int,
        length: int,
        shardings: Rollout,
    ) -> None:
        self._env, self._program, self.device = env, program, device
        self._num_envs, self._length, self._shardings = num_envs, length, shardings
        self._policies: queue.SimpleQueue[ActingPolicy | None] = queue.SimpleQueue()
        self._rollouts: queue.SimpleQueue[tuple[Rollout, Timing] | BaseException] = queue.SimpleQueue()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def waiting(self) -> int:
        """The number of rollouts that the learner has not taken yet."""
        return self._rollouts.qsize()

    def start(self, key: jax.Array, name: str) -> None:
        """Start the thread."""
        # A daemon: an environment that never returns must not keep the process alive.
        self._thread = threading.Thread(target=self._run, args=(jax.device_put(key, self.device),), name=name)
        self._thread.daemon = True
        self._thread.start()

    def ask(self, policy: ActingPolicy) -> None:
        """Ask for one more rollout, acted by a policy on this actor's device."""
        self._policies.put(policy)

    def take(self) -> tuple[Rollout, Timing]:
        """Wait for the next rollout."""
        taken = self._rollouts.get()
        if isinstance(taken, BaseException):
            raise taken
        return taken

    def stop(self) -> None:
        """Ask the thread to end after its current step."""
        self._stopping.set()
        self._policies.put(None)

    def join(self, timeout: float) -> None:
        """Wait for the thread to end. `timeout`: in seconds."""
        if self._thread is not None:
            self._thread.join(max(timeout, 0.0))

    def _run(self, key: jax.Array) -> None:
        try:
            reset_key, key = jax.random.split(key)
            num_agents = self._env.num_agents
            env_keys = jax.random.split(reset_key, self._num_envs * num_agents)
            batch = self._env.open(self._num_envs)
            state = self._program.start(batch.reset(self._env.seeds(env_keys[::num_agents])), env_keys)
            number, asked = 0, time.perf_counter()
            while (policy := self._policies.get()) is not None:
                started = time.perf_counter()
                played = self._play(batch, policy.shared, state, jax.random.fold_in(key, number))
                if played is None:
                    return
                state, rollout = played
                now = time.perf_counter()
                self._rollouts.put((rollout, Timing(policy.updates, started - asked, now - started)))
                number, asked = number + 1, now
        except BaseException as error:
            self._rollouts.put(error)

    def _play(self, batch: Any, shared: Any, first: Any, key: jax.Array) -> tuple[Any, Rollout] | None:
        """Play one rollout; return None if the run ended meanwhile."""
        program, state = self._program, first
        recording, choice, action = program.begin(shared, state, key)
        for _ in range(self._length - 1):
            if self._stopping.is_set():
                return None
            recording, state, choice, action = program.advance(shared, recording, state, choice, batch.step(action))
        recording, state = program.finish(recording, state, choice, batch.step(action))
        rollout = Rollout(Trajectory(recording.transitions, first.carry), recording.episodes)
        return state, jax.block_until_ready(jax.device_put(rollout, self._shardings))


class Pipeline:
    """The actors and the learner.

    Rollout `k` of every actor is acted by the policy after `k - lag` updates, and `lag + 1` rollouts by the first one,
    whatever the threads' timing: results depend only on the seed. The policies in the actors' queues bound the number
    of rollouts under way, so that neither side can run ahead of the other.
    """

    def __init__(
        self,
        make_actors: Callable[[], Sequence[Actor]],
        learn: Callable[..., Any],
        copy_shared: Callable[[Any], Any],
        lag: int,
        steps_per_update: int,
        every_updates: int | None = None,
    ) -> None:
        self._every_updates = every_updates
        self._make_actors, self._learn, self._copy_shared = make_actors, learn, copy_shared
        self._lag, self._steps_per_update = lag, steps_per_update
        self._actors: Sequence[Actor] = ()
        self._updates = 0  # since the actors started
        self._limit: int | None = None
        # Of each update of an interval, means over the actors: rollouts that waited, seconds that the learner waited,
        # lag, the largest lag, seconds that an actor waited, and that its rollout took.
        self._taken: list[tuple[Any, ...]] = []

    @contextlib.contextmanager
    def running(self, num_updates: int) -> Iterator[None]:
        """Limit the rollouts to those that a run can learn from, and stop the actors at its end."""
        self._limit = num_updates
        try:
            yield
        finally:
            self._limit = None
            self.close()

    def train(
        self, state: LearnerState, hyperparams: Hyperparams, num_updates: np.int32, new_interval: np.bool_
    ) -> tuple[LearnerState, IntervalMetrics]:
        """Update on the next rollouts of all actors."""
        if not self._actors:
            self._start(state)
        if new_interval:
            self._taken = []
        blocks: list[RunningSums] = []
        for number in range(num_updates):
            waiting = np.mean([actor.waiting for actor in self._actors])
            start = time.perf_counter()
            rollouts, timings = zip(*(actor.take() for actor in self._actors), strict=True)
            waited = time.perf_counter() - start
            lags = [self._updates - timing.updates for timing in timings]
            idle, seconds = np.mean([timing[1:] for timing in timings], axis=0)
            self._taken.append((waiting, waited, np.mean(lags), max(lags), idle, seconds))
            state, interval = self._learn(state, hyperparams, rollouts, new_interval)
            new_interval = np.bool_(False)
            jax.block_until_ready(state.shared)
            self._updates += 1
            self._publish(state, 1)
            if self._every_updates is not None:
                # The sums after the last update of each block remain.
                blocks[number // self._every_updates :] = [jax.device_get(interval.blocks)]
        if blocks:
            interval = interval._replace(blocks=jax.tree.map(lambda *leaves: np.concatenate(leaves), *blocks))
        return state, interval  # type: ignore[possibly-undefined]

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the queues in the current interval, means unless the name says otherwise."""
        waiting, waited, lag, _, idle, seconds = np.mean(self._taken, axis=0).tolist()
        return {
            "sebulba/policy_lag": lag,
            "sebulba/policy_lag_max": float(max(taken[3] for taken in self._taken)),
            "sebulba/rollouts_waiting": waiting,
            "sebulba/learner_wait_seconds": waited,
            "sebulba/actor_wait_seconds": idle,
            "sebulba/rollout_seconds": seconds,
            # While they act, all actors together.
            "sebulba/actor_steps_per_second": self._steps_per_update / seconds,
        }

    def close(self) -> None:
        """Stop the actors and wait for their current steps; the next call of `train` starts new ones."""
        deadline = time.perf_counter() + CLOSE_SECONDS
        for actor in self._actors:
            actor.stop()
        for actor in self._actors:
            actor.join(deadline - time.perf_counter())
        self._actors = ()

    def _start(self, state: LearnerState) -> None:
        self._actors, self._updates = self._make_actors(), 0
        # Continues where a restored learner is, so that no rollout repeats the random numbers of another.
        key = jax.random.fold_in(jax.device_get(state.shards.key)[0], _ACTOR_STREAM)
        for index, actor in enumerate(self._actors):
            actor.start(jax.random.fold_in(key, index), name=f"actor {index}")
        self._publish(state, self._lag + 1)

    def _publish(self, state: LearnerState, num_rollouts: int) -> None:
        """Give every actor the policy, for the next rollouts that have none."""
        last = self._updates + self._lag + 1
        first = last - num_rollouts
        if self._limit is not None:
            last = min(last, self._limit)
        if first >= last:
            return
        shared = self._copy_shared(state.shared)
        copies = {device: jax.device_put(shared, device) for device in {actor.device for actor in self._actors}}
        for actor in self._actors:
            for _ in range(first, last):
                actor.ask(ActingPolicy(copies[actor.device], self._updates))
