"""Hyperparameters that training depends on, by the data flow of its traced functions.

Others make equal members: the exponent of priorities without priorities, or the bound of the other action space.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from stoix_like.arch_config import OfflineConfig
from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.assembly import SystemParts
from stoix_like.base_types import Axes
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.utils.jax_utils import used_inputs


def effective(setup: SystemParts, env: VectorEnvironment, names: Collection[str]) -> frozenset[str]:
    """Return the hyperparameters that the initial state or the first update depends on; nothing is compiled."""
    # Averages over shards need a mesh, and change no dependency.
    setup = setup._replace(spec=setup.spec._replace(axes=Axes(())))
    offline, length = isinstance(setup.config.arch, OfflineConfig), setup.config.system.rollout_length

    def train(hyperparams: Mapping[str, Any], key: jax.Array) -> Any:
        system = setup.build_system(dict(hyperparams))
        state = start_episodes(env, system, jax.random.split(key, setup.spec.num_envs))
        initial = system.init(key, state.timestep)
        if offline:  # nothing acts
            return initial, system.update(initial, setup.spec.data.trajectory(1), key)[0]
        state, (trajectory, _) = rollout(env, system.act, initial.shared, state, key, length, False)
        agent, _ = system.update(system.observe(initial, trajectory), trajectory, key)
        return initial, agent, state.carry

    hyperparams = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    return used_inputs(train, hyperparams, jax.eval_shape(jax.random.key, 0))


def notes(effective: Collection[str], names: Collection[str], key: str = "arch.population.hyperparams") -> list[str]:
    """Return notes for the user about hyperparameters without an effect."""
    return [f"{key}.{name} has no effect on training in this configuration" for name in names if name not in effective]
