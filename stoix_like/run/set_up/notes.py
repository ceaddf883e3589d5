"""Notes on what a configuration has without effect, or with one that a user may not expect."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np

from stoix_like.arch_config import OfflineConfig, PBTConfig, PopulationConfig
from stoix_like.config import RunConfig, flatten
from stoix_like.envs.custom import unused_methods
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.ids import preprocessed_id
from stoix_like.envs.spaces import Box, Dict
from stoix_like.envs.worlds import WORLD
from stoix_like.networks.requirements import unused_dropout
from stoix_like.schema import get_value


def notes_on_parts(config: RunConfig, env: VectorEnvironment, networks: SimpleNamespace) -> Iterator[str]:
    """Yield notes on the environments, the networks and the system of a run."""
    yield from env.unwrapped.faults
    yield from unused_methods(env)
    name = config.env.scenario.name
    game = preprocessed_id(name) if config.env.env_name == "gymnasium" else ""
    if not name.endswith(game):
        yield f"env.scenario.name={name} is the raw game: env={game} has the usual preprocessing of Atari"
    yield from _of_worlds(config, env, networks)
    yield from _of_searches(config)
    data = next((value for name, value in flatten(config.resolved["system"]) if name == "data"), None)
    if data is not None and config.system_name.startswith("offline/") and not isinstance(config.arch, OfflineConfig):
        yield f"system.data={data} is mixed with rollouts of the policy: arch=offline learns from the data alone"
    for rate in unused_dropout(networks, config.system):
        yield f"{rate} has no effect: system={config.system_name} trains without dropout there"
    yield from config.system.notes(env.action_space)


def notes_on_population(population: PopulationConfig) -> Iterator[str]:
    """Name the settings of selections that are not made."""
    default, path = PBTConfig(), "arch.population.pbt"
    for key, value in vars(population.pbt).items() if population.pbt.every_evals is None else ():
        if value != getattr(default, key):
            yield f"{path}.{key}={value} has no effect with {path}.every_evals=null"


def _of_worlds(config: RunConfig, env: VectorEnvironment, networks: SimpleNamespace) -> Iterator[str]:
    """Yield a note where a shared critic cannot tell agents with different rewards apart."""
    read = (config.network.get("observations") or {}).get("critic")
    has_critic = not {"critic_network", "q_network"}.isdisjoint(vars(networks))
    space = env.observation_space
    world = space.spaces.get(WORLD) if isinstance(space, Dict) else None
    # Numbers of agents are appended only to vectors of floats.
    vector = isinstance(world, Box) and len(world.shape) == 1 and np.issubdtype(world.dtype, np.floating)
    numbered = config.env.agent_ids != "none" and vector
    apart = env.team_reward or not config.share_networks or numbered
    if env.num_agents > 1 and not apart and has_critic and read in (WORLD, f"agent_view.{WORLD}"):
        yield (
            f"network.observations.critic={read}: where all agents observe the same world, the critic cannot tell them"
            " apart, and their rewards may differ: use env.agent_ids=one_hot where the world is a vector, or"
            " env.team_reward=true"
        )


def _of_searches(config: RunConfig) -> Iterator[str]:
    """Yield a note where a search in the environment knows what observations hide."""
    env = config.env
    keys = ("observation_mask", "observation_noise", "observation_delay", "observation_flicker")
    hiding = [f"env.{key}={getattr(env, key)}" for key in keys if getattr(env, key) != getattr(EnvConfig, key)]
    hiding += [f"env={config.environment_name}"] if env.env_name == "memory" else []
    if hiding and config.system.needs_model:
        evaluates = any(get_value(config.system, name) for name in config.system.policy_hyperparams)
        yield (
            f"{', '.join(hiding)}: the search of system={config.system_name} starts from the state of the environment,"
            f" and knows what observations hide{', in evaluations too' * evaluates}: MuZero and recurrent systems do"
            " not"
        )
