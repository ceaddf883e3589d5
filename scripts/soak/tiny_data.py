"""Data sets of random steps, for systems that learn from nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

STEPS = 64


def offline(system: str) -> bool:
    """Return whether a system learns only from data, or only from a teacher."""
    return system.startswith("offline/")


def write_random(path: Path, overrides: Sequence[str]) -> None:
    """Write the whole episodes of one environment, or of its first agent, among its first random steps.

    Args:
        path: the file to write.
        overrides: of a run in this environment.
    """
    import jax
    import jax.numpy as jnp
    import numpy as np

    from stoix_like.architectures.acting import random_act
    from stoix_like.architectures.rollout import rollout
    from stoix_like.base_types import RolloutState
    from stoix_like.composition import compose_config
    from stoix_like.config import parse_config
    from stoix_like.data.dataset import DataHeader, from_steps
    from stoix_like.data.files import write_data
    from stoix_like.envs import factory

    env = factory.make(parse_config(compose_config(overrides)).env)

    def stay(shared: Any, state: Any, key: Any) -> Any:
        action = jax.vmap(env.action_space.sample)(jax.random.split(key, env.num_agents))
        return (), jnp.zeros_like(action), ()

    @jax.jit
    def play(key: Any) -> Any:
        state, timestep = env.reset(jax.random.split(key, env.num_agents))
        act = random_act(stay, env)
        return rollout(env, act, None, RolloutState(state, timestep, ()), key, STEPS)[1].trajectory.transitions

    steps = jax.tree.map(lambda leaf: np.asarray(leaf)[:, 0], play(jax.random.key(0)))
    ends = np.flatnonzero(steps.terminated | steps.truncated)
    take = partial(jax.tree.map, lambda leaf: leaf[: ends[-1] + 1])
    last = jax.tree.map(lambda leaf: leaf[ends], steps.next_observation)
    fields = take((steps.observation, steps.action, steps.reward, steps.terminated, steps.truncated))
    write_data(path, from_steps(DataHeader(), *fields, last))
