"""Base classes of wrappers: what is forwarded, what is counted, and what maps only observations or rewards."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.base_types import Observation, PyTree, TimeStep
from stoix_like.envs.environment import EnvFacts, State, VectorEnvironment
from stoix_like.envs.legends import Legend
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box


class Wrapper(VectorEnvironment):
    """Base class that forwards every call to `env`; subclasses override what they change."""

    # Whether episodes start and end as in the wrapped environments.
    keeps_ends: ClassVar[bool] = False
    # Whether rewards are still `goal_reward` of the goals that the agent observes.
    keeps_goals: ClassVar[bool] = True

    def __init_subclass__(cls, keeps_ends: bool | None = None, **kwargs: Any) -> None:
        """Take nothing for granted of methods that may end episodes."""
        super().__init_subclass__(**kwargs)
        if keeps_ends is not None:
            cls.keeps_ends = keeps_ends
        elif "keeps_ends" not in vars(cls) and not {"reset", "on_start", "step", "at_step"}.isdisjoint(vars(cls)):
            cls.keeps_ends = False

    def __init__(self, env: VectorEnvironment) -> None:
        self.env = env
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self.on_host = env.on_host
        self.keeps_parameters = env.keeps_parameters
        self.take_facts(env)

    def take_facts(self, env: EnvFacts) -> None:
        super().take_facts(env)
        if not self.keeps_goals:
            self.goal_reward = None

    def reset(self, keys: jax.Array) -> tuple[State, TimeStep]:
        return self.on_start(*self.env.reset(keys))

    def next_episodes(self, keys: jax.Array, state: State) -> tuple[State, TimeStep]:
        return self.on_start(*self.env.next_episodes(keys, self.inner_state(state)))

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        return self.env.step(keys, state, self.inner_action(action))

    def start_rollout(self, key: jax.Array, state: State) -> State:
        return self.with_inner_state(state, self.env.start_rollout(key, self.inner_state(state)))

    def release(self, state: State) -> None:
        self.env.release(self.inner_state(state))

    def against(self, opponent: Any) -> VectorEnvironment:
        return self.rebased(self.unwrapped.against(opponent))

    def check(self) -> None:
        self.env.check()

    def close(self) -> None:
        self.env.close()

    def scene(self) -> Scene | None:
        return self.env.scene()

    def legend(self) -> Legend:
        return self.env.legend()

    @property
    def truncates_after(self) -> int | None:
        return self.env.truncates_after if self.keeps_ends else None

    @property
    def unwrapped(self) -> VectorEnvironment:
        return self.env.unwrapped

    def rebased(self, base: VectorEnvironment) -> VectorEnvironment:
        wrapper = copy.copy(self)
        wrapper.env = self.env.rebased(base)
        wrapper.keeps_parameters = base.keeps_parameters
        wrapper.take_facts(wrapper.env)
        return wrapper

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        """Wrap the start of an episode. `timestep`: their first time step `[N, ...]`."""
        return env_state, timestep

    def inner_action(self, action: jax.Array) -> jax.Array:
        """Convert actions for the wrapped environments.

        `action`: `[N, ...]`, elements of `action_space`.
        Returns `[N, ...]`, elements of the wrapped environments' `action_space`.
        """
        return action

    def outer_action(self, action: np.ndarray) -> np.ndarray:
        """Convert actions of the wrapped environments, the inverse of `inner_action` as far as there is one."""
        return action

    def inner_state(self, state: State) -> State:
        """Return the state of the wrapped environments."""
        return state

    def with_inner_state(self, state: State, inner: State) -> State:
        """Replace the state of the wrapped environments in `state`."""
        return inner

    def native_action(self, action: jax.Array) -> jax.Array:
        return self.env.native_action(self.inner_action(action))

    def native_state(self, state: State) -> State:
        return self.env.native_state(self.inner_state(state))


def layers(env: VectorEnvironment) -> Iterator[Wrapper]:
    """Iterate over the wrappers of environments, the outermost first."""
    while isinstance(env, Wrapper):
        yield env
        env = env.env


def agent_action(env: VectorEnvironment, action: Any) -> Any:
    """Convert actions `[N, ...]` in the units of the suite for environments, the inverse of `native_action`."""
    return env.outer_action(agent_action(env.env, action)) if isinstance(env, Wrapper) else action


class StatefulWrapper(Wrapper):
    """Base class of wrappers with state: a named tuple with `env_state`, the state of the wrapped environments."""

    def inner_state(self, state: State) -> State:
        return state.env_state

    def with_inner_state(self, state: State, inner: State) -> State:
        return state._replace(env_state=inner)


class CountedState(NamedTuple):
    """The state of the wrapped environments, and `steps` `[N]` int32 since the episode started."""

    env_state: State
    steps: jax.Array


class CountingWrapper(StatefulWrapper):
    """Base class of wrappers that need the number of steps since the episode started."""

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[CountedState, TimeStep]:
        steps = jnp.zeros(timestep.reward.shape, jnp.int32)
        return CountedState(env_state, steps), self.at_step(timestep, steps)

    def step(self, keys: jax.Array, state: CountedState, action: jax.Array) -> tuple[CountedState, TimeStep]:
        env_state, timestep = self.env.step(keys, state.env_state, action)
        steps = state.steps + 1
        return CountedState(env_state, steps), self.at_step(timestep, steps)

    @abstractmethod
    def at_step(self, timestep: TimeStep, steps: jax.Array) -> TimeStep:
        """Change a time step `[N, ...]` after `steps` `[N]` of its episode."""


class ObservationWrapper(Wrapper, keeps_ends=True):
    """Base class of wrappers that change the agent's view and nothing else."""

    keeps_goals = False

    def on_start(self, env_state: State, timestep: TimeStep) -> tuple[State, TimeStep]:
        return env_state, with_observation(timestep, **self.converted(timestep.observation)._asdict())

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, with_observation(timestep, **self.converted(timestep.observation)._asdict())

    def converted(self, observation: Observation) -> Observation:
        """Convert observations `[N, ...]` of the wrapped environments."""
        return observation._replace(agent_view=self.view(observation.agent_view))

    @abstractmethod
    def view(self, view: PyTree) -> PyTree:
        """Convert views `[N, ...]` of the wrapped environments to elements of `observation_space`."""


class RewardWrapper(Wrapper, keeps_ends=True):
    """Base class of wrappers that change rewards and nothing else."""

    def take_facts(self, env: EnvFacts) -> None:
        super().take_facts(env)
        if (inner := env.goal_reward) is not None:

            def goal_reward(achieved: PyTree, desired: PyTree) -> tuple[jax.Array, jax.Array]:
                reward, terminated = inner(achieved, desired)
                return self.reward(reward), terminated

            self.goal_reward = goal_reward

    def step(self, keys: jax.Array, state: State, action: jax.Array) -> tuple[State, TimeStep]:
        env_state, timestep = self.env.step(keys, state, action)
        return env_state, timestep._replace(reward=self.reward(timestep.reward))

    @abstractmethod
    def reward(self, reward: jax.Array) -> jax.Array:
        """Convert rewards `[N]` of the wrapped environments."""


def unstacked(space: Any) -> Any:
    """Return an observation space with stacks of frames that need not be successive."""
    return replace(space, stacked=1) if isinstance(space, Box) else space


def with_observation(timestep: TimeStep, **changes: PyTree) -> TimeStep:
    """Replace fields of the observation `[N, ...]` of a time step before automatic resets."""
    # Wrappers below the automatic reset see the true successor in both fields.
    observation = timestep.observation._replace(**changes)
    return timestep._replace(observation=observation, next_observation=observation)
