"""Influence of the varied hyperparameters of a population, by the data flow of its traced functions.

A hyperparameter that nothing depends on makes equal members: the exponent of priorities without priorities, the
constant of an optimiser that is not chosen, the bound of the other action space.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from stoix_like.arch_config import OfflineConfig
from stoix_like.architectures.acting import start_episodes
from stoix_like.architectures.rollout import rollout
from stoix_like.assembly import SystemParts
from stoix_like.base_types import Agent, Axes, RolloutState
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError
from stoix_like.networks.requirements import shares_torso
from stoix_like.run.population.members import KEY
from stoix_like.systems.off_policy.actor_critic import OffPolicyLocal
from stoix_like.utils.jax_utils import used_inputs


class Influence(NamedTuple):
    """Hyperparameters by what depends on them."""

    init: frozenset[str] = frozenset()  # the initial state of the agent
    updates: frozenset[str] = frozenset()  # acting and learning; metrics do not count
    stored: frozenset[str] = frozenset()  # what is added to the replay buffer
    evaluation: frozenset[str] = frozenset()  # the actions in evaluation

    def notes(
        self, names: Iterable[str], networks: SimpleNamespace, key: str = f"{KEY}.hyperparams"
    ) -> tuple[str, ...]:
        """Return notes for the user about hyperparameters that do little or nothing."""
        something = self.init | self.updates | self.evaluation
        notes = [f"{key}.{name} has no effect in this configuration" for name in names if name not in something]
        critic = getattr(networks, "critic_network", None)
        if "vf_coef" in names and critic is not None and not shares_torso(critic):
            notes.append(
                f"{key}.vf_coef acts only through system.max_grad_norm and the constant of the optimiser: actor and"
                " critic share no parameters, and the optimiser ignores the scale of a loss"
            )
        return tuple(notes)

    def check_copies(self, names: Iterable[str]) -> None:
        """Refuse what copies of population-based training would not learn with."""
        for name in names:
            if name in self.stored:
                reason = "acts on what the replay buffer stores, and a copy continues with its own buffer"
            elif name in self.updates:
                continue
            elif name in self.init:
                reason = "acts only on the initial state, and a copy continues from that of another member"
            elif name in self.evaluation:
                reason = "acts only on evaluations, whose returns select the members"
            else:
                reason = "has no effect in this configuration"
            raise ConfigError(f"{KEY}.hyperparams.{name} {reason}: omit it, or set {KEY}.pbt.every_evals=null")


def find_influence(setup: SystemParts, env: VectorEnvironment, names: Iterable[str]) -> Influence:
    """Trace a system as a function of hyperparameters, and compile nothing."""
    # Averages over shards need a mesh, and change no dependency.
    setup = setup._replace(spec=setup.spec._replace(axes=Axes(())))
    hyperparams = {name: jax.ShapeDtypeStruct((), jnp.float32) for name in names}
    key, config = jax.eval_shape(jax.random.key, 0), setup.config.system
    offline = isinstance(setup.config.arch, OfflineConfig)

    def start(hyperparams: Mapping[str, Any], key: jax.Array) -> tuple[Agent, RolloutState]:
        system = setup.build_system(dict(hyperparams))
        state = start_episodes(env, system, jax.random.split(key, setup.spec.num_envs))
        return system.init(key, state.timestep), state

    def update(hyperparams: Mapping[str, Any], agent: Agent, state: RolloutState, key: jax.Array) -> Any:
        system = setup.build_system(dict(hyperparams))
        if offline:  # nothing acts
            return system.update(agent, setup.spec.data.trajectory(1), key)[0]
        state, (trajectory, _) = rollout(env, system.act, agent.shared, state, key, config.rollout_length, False)
        agent, _ = system.update(system.observe(agent, trajectory), trajectory, key)
        return agent, state.carry

    def store(hyperparams: Mapping[str, Any], agent: Agent, state: RolloutState, key: jax.Array) -> Any:
        # Other values act, which are there wherever those of a member are.
        system, acting = (
            setup.build_system(dict(each)) for each in (hyperparams, jax.tree.map(jnp.ones_like, hyperparams))
        )
        _, (trajectory, _) = rollout(env, acting.act, agent.shared, state, key, config.rollout_length, False)
        local = system.observe(agent, trajectory).local
        return local.buffer if isinstance(local, OffPolicyLocal) else local

    def evaluate(hyperparams: Mapping[str, Any], agent: Agent, state: RolloutState, key: jax.Array) -> Any:
        return setup.build_system(dict(hyperparams)).eval_act(agent.shared, state, key)[1]

    args = (*jax.eval_shape(start, hyperparams, key), key)
    return Influence(
        init=used_inputs(start, hyperparams, key),
        updates=used_inputs(update, hyperparams, *args),
        stored=used_inputs(store, hyperparams, *args) if config.has_replay else frozenset(),
        evaluation=used_inputs(evaluate, hyperparams, *args),
    )
