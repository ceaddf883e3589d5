"""An episode of a trained run, with what the search of every step found."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.architectures.acting import game_keys, start_episodes
from stoix_like.base_types import RolloutState, SearchOutput
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Space
from stoix_like.errors import ConfigError
from stoix_like.inference.evaluation import with_simulations
from stoix_like.policies.load import load_member, open_run
from stoix_like.policies.visits import check_seed


class SearchedEpisode(NamedTuple):
    """An episode of T steps."""

    name: str  # `search/ff_az on gymnax/CartPole-v1`; of several agents, with the one that the other fields are of
    action_space: Space  # the space of one action
    legend: Legend  # names of the actions
    found: SearchOutput  # `[T, ...]`, what the searches found, as host arrays
    reward: np.ndarray  # `[T]`, as the environment counts them


def search_episode(
    run_dir: str | Path,
    which: str | int = "best",
    member: int | Any = "best",
    *,
    seed: int = 0,
    simulations: int | None = None,
    trust: bool = False,
) -> SearchedEpisode:
    """Play an episode of evaluation, and keep what the search of every step found."""
    check_seed(seed)
    run = open_run(run_dir, trust)
    setup = run.setup._replace(config=with_simulations(run.setup.config, simulations))
    chosen = load_member(run, which, member)
    system = setup.build_system(chosen.hyperparams)
    search = system.search
    if search is None:
        raise ConfigError(f"{setup.name}: evaluations of this run do not search: add --simulations 16")
    env = setup.env

    @jax.jit
    def step(shared: Any, state: RolloutState, key: jax.Array) -> tuple[RolloutState, SearchOutput]:
        search_key, env_key = jax.random.split(key)
        found = search(shared, state, search_key)
        carry = system.eval_act(shared, state, search_key)[0]  # of the same search
        env_state, timestep = env.step(game_keys(env, env_key), state.env_state, found.action)
        return RolloutState(env_state, timestep, carry), found

    with contextlib.closing(env):
        start_key, key = jax.random.split(jax.random.key(seed))
        state = jax.jit(lambda key: start_episodes(env, system, game_keys(env, key)))(start_key)
        steps, rewards, shared = [], [], jax.device_put(chosen.shared)
        for number in range(setup.config.arch.max_eval_steps):
            state, found = step(shared, state, jax.random.fold_in(key, number))
            on_host, reward, finished = jax.device_get((found, state.timestep.reward, state.timestep.episode.finished))
            steps.append(jax.tree.map(lambda leaf: leaf[0], on_host))
            rewards.append(float(reward[0]))
            if finished[0]:
                break
    found = jax.tree.map(lambda *leaves: np.stack(leaves), *steps)
    name = setup.name if env.num_agents == 1 else f"{setup.name}, agent 0"
    return SearchedEpisode(name, env.action_space, env.legend(), found, np.asarray(rewards))
