"""Periodic resets of networks that learn from replay; the replay buffer stays.

Source: Nikishin et al. 2022, The Primacy Bias in Deep Reinforcement Learning, arXiv:2205.07802.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.base_types import (
    Agent,
    EpisodeMetrics,
    Metrics,
    PyTree,
    System,
    SystemConfig,
    SystemSpec,
    TimeStep,
    Trajectory,
)
from stoix_like.errors import ConfigError
from stoix_like.schema import INT32_MAX, Part, between, one_of, replace_values
from stoix_like.systems.parts.state import get_part, with_part
from stoix_like.utils.jax_utils import apply_where
from stoix_like.utils.training import is_schedule

Path = tuple[Any, ...]

NAME = "resets"
_OPTIMISERS = ("opt_states", "opt_state")
# With what the rule of Disco103 knows of the agent.
_LEARNED = ("params", *_OPTIMISERS, "lifetime", "moments")


@dataclass(frozen=True, kw_only=True)
class PeriodicResets(Part):
    """Periodic resets of networks."""

    reset_every: Annotated[int | None, between(1, INT32_MAX)] = None  # gradient steps between two resets
    reset: Annotated[str, one_of("full", "last_layers")] = "full"  # what is reset: `full` or `last_layers`

    def check(self, config: SystemConfig, num_envs: int, num_shards: int) -> None:
        if self.reset_every is None and self.reset != "full":
            raise ConfigError(f"system.reset={self.reset} has no effect: set system.reset_every to gradient steps")
        if self.reset_every is not None and self.reset_every <= (steps := config.gradient_steps):
            raise ConfigError(
                f"system.reset_every={self.reset_every} would reset in each update of {steps} gradient step(s): use"
                f" more than {steps}"
            )


class Resets(NamedTuple):
    """Gradient steps since the last reset, and the key of the next one."""

    steps: jax.Array
    key: jax.Array


def with_resets(
    build: Callable[[SystemConfig, SystemSpec], System],
    config: SystemConfig,
    hyperparams: Mapping[str, Any],
    spec: SystemSpec,
) -> System:
    """Build a system, with periodic resets of its networks where a part of its hyperparameters sets them.

    A reset precedes the first update before which `reset_every` gradient steps are complete, so that new networks are
    updated before they are evaluated or returned:

    - `full`: new parameters and optimisers, of the temperature, too, targets that are copies, and what Disco103's rule
      knows of the agent;
    - `last_layers`: new heads and optimisers.

    Counters, schedules of learning rates, statistics and the replay buffer stay.
    """
    member = replace_values(config, hyperparams)
    system = build(member, spec)
    part = config.find_part(PeriodicResets)
    if part is None or (every := part.reset_every) is None:
        return system

    # What is learned from is no part of a new agent, and the inputs of a program may not be constants of this function.
    bare = spec._replace(data=None, teacher=None)

    # One member after the other, see `map_init`.
    @jax.custom_batching.sequential_vmap  # type: ignore[untyped-decorator]
    def fresh(hyperparams: Mapping[str, Any], key: jax.Array, timestep: TimeStep) -> PyTree:
        return build(replace_values(config, hyperparams), bare).init(key, timestep).shared

    reset = {"full": _reset_all, "last_layers": _reset_heads}[part.reset]

    def init(key: jax.Array, timestep: TimeStep) -> Agent:
        key, reset_key = jax.random.split(key)
        agent = system.init(key, timestep)
        if not hasattr(agent.shared, "parts"):
            raise ConfigError(
                f"system.reset_every={every} needs a shared state with a field parts: add `parts: PyTree = ()` to"
                f" {type(agent.shared).__name__}, or use null"
            )
        return agent._replace(shared=with_part(agent.shared, NAME, Resets(jnp.zeros((), jnp.int32), reset_key)))

    def update(agent: Agent, trajectory: Trajectory, key: jax.Array) -> tuple[Agent, Metrics]:
        resets = get_part(agent.shared, NAME)

        def renew(before: tuple[PyTree, Resets]) -> tuple[PyTree, Resets]:
            shared, (steps, reset_key) = before
            reset_key, fresh_key = jax.random.split(reset_key)
            new = fresh(dict(hyperparams), fresh_key, _example(trajectory))
            return reset(shared, new), Resets(steps % every, reset_key)

        shared, resets = apply_where(resets.steps >= every, renew, (agent.shared, resets))
        agent, metrics = system.update(agent._replace(shared=shared), trajectory, key)
        resets = resets._replace(steps=resets.steps + member.gradient_steps)
        return agent._replace(shared=with_part(agent.shared, NAME, resets)), metrics

    return system._replace(init=init, update=update)


def _example(trajectory: Trajectory) -> TimeStep:
    """Return an empty time step `[N, ...]` of the environments of a rollout."""
    steps = trajectory.transitions
    first = jax.tree.map(lambda leaf: jnp.zeros_like(leaf[0]), steps._replace(extras=()))
    episode = EpisodeMetrics(first.reward, jnp.zeros(first.reward.shape, jnp.int32), first.terminated)
    return TimeStep(first.observation, first.reward, first.terminated, first.truncated, first.observation, episode)


def _reset_all(shared: PyTree, fresh: PyTree, names: Collection[str] = _LEARNED) -> PyTree:
    """Take everything that is learned, or some of it, from a new agent, but for the counts of schedules."""
    old, new = ({name: getattr(state, name) for name in shared._fields if name in names} for state in (shared, fresh))
    learned = jax.tree.map(lambda old, new: old if is_schedule(old) else new, old, new, is_leaf=is_schedule)
    return shared._replace(**learned)


def _reset_heads(shared: PyTree, fresh: PyTree) -> PyTree:
    """Take the heads of all networks, and the optimisers, from a new agent.

    If only the moments of heads started at zero, the bias correction by the old step count would make the first steps
    several times as large as the learning rate.
    """
    if not any(_in_head(path) for path, _ in jax.tree.leaves_with_path(shared.params)):
        raise ConfigError(
            "system.reset=last_layers: the networks of this system have no heads of their own: use system.reset=full"
        )
    trees = shared.params, fresh.params
    params = jax.tree.map_with_path(lambda path, old, new: new if _in_head(path) else old, *trees)
    return _reset_all(shared, fresh, _OPTIMISERS)._replace(params=params)


def _in_head(path: Path) -> bool:
    return any(str(getattr(entry, "key", "")).endswith("_head") for entry in path)
