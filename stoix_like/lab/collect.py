"""Data sets from trained runs: `stoix-like collect`."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.dtypes import canonicalize_dtype

from stoix_like.architectures.acting import Act, noisy_act, random_act
from stoix_like.data import minari
from stoix_like.data.check import check_data
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import check_file, write_data
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.spaces import Box, Dict, Mixed, Tuple, entries
from stoix_like.errors import ConfigError
from stoix_like.lab import replay_data
from stoix_like.policies.load import TrainedRun, load_member, open_run
from stoix_like.policies.visits import Player, Rows, check_seed, num_first
from stoix_like.run.host.devices import set_compile_cache
from stoix_like.storage.run_files import CONFIG

FORMATS = ("npz", "minari")
NUM_ENVS = 32
"""Episodes that are played side by side by default."""
_POLICY = re.compile(r"(best|last|sampled|random|[0-9]+)|mix:(0?\.[0-9]+|[01](\.0*)?)")
# Folded into the key of the seed, so that no training or evaluation starts in the same states.
_STREAM = 0xDA7A


class _Behaviour(NamedTuple):
    """Parameters that act, whether by the mode of the policy (None: as in evaluations), and share of random actions."""

    which: str
    greedy: bool | None
    random: float


def collect(
    run_dir: str | Path,
    steps: int = 100_000,
    *,
    policy: str | int = "best",
    noise: float = 0.0,
    replay: bool = False,
    member: int | str | None = "best",
    seed: int = 0,
    num_envs: int = NUM_ENVS,
    out: str | Path | None = None,
    format: str = "npz",
    trust: bool = False,
    env: Any = None,
) -> DataSet:
    """Record whole episodes of a trained run, in its evaluation environments and with their rewards.

    Episodes are played side by side, and kept in the order of their numbers until they have enough steps. So short ones
    are no likelier than long ones. Those that reach `arch.max_eval_steps` are truncated there.

    Args:
        run_dir: the directory of the run, or its address, see `evaluate`.
        steps: the fewest steps; the episode that reaches them is the last one.
        policy: `best` and `last` act as evaluations do, with the parameters that evaluated best and the last ones; the
            environment steps of a kept checkpoint, with those; `sampled` samples the last policy; `random` takes
            uniformly random legal actions; `mix:0.3` takes one with a probability of 0.3 per step, and otherwise the
            action of `best`.
        noise: deviation of normal noise on continuous actions, in units of half their range; they are clipped.
        replay: take the replay buffer of the last checkpoint instead, all of it.
        member: member of a population: `best`, or its index.
        seed: seed of the start states and of everything random, below 2**32.
        num_envs: episodes that are played side by side.
        out: the file to write; None writes none.
        format: `npz`, or `minari`: a directory of Minari.
        trust: allow the run's configuration to name code from outside this package.
        env: the environment of a run that was trained on an object passed from Python.

    Returns:
        The data set.

    Raises:
        ConfigError: an argument is invalid, or there is no such run, checkpoint, member or replay buffer.
        HostEnvironmentError: an environment on the host failed.
    """
    policy = str(policy)  # environment steps may be a number
    behaviour = _check(policy, noise, replay, seed)
    if format not in FORMATS:
        raise ConfigError(f"format={format} is unknown: use {' or '.join(FORMATS)}")
    if out is not None:
        out = Path(out).expanduser()
        (minari.check_minari if format == "minari" else check_file)(out)
    run = open_run(run_dir, trust, env)
    spaces = run.setup.env.observation_space, run.setup.env.unwrapped.action_space
    names = [*entries(spaces[0]), *entries(spaces[1], "action")]
    if out is not None and format == "minari" and (slashed := [name for name in names if "/" in name]):
        raise ConfigError(f"format=minari separates names by slashes, and the run has {slashed[0]}: use npz")
    space = run.setup.env.action_space
    if noise and not (space.is_continuous.any() if isinstance(space, Mixed) else isinstance(space, Box)):
        raise ConfigError(f"noise={noise:g} has no effect on {run.setup.config.environment_name}: use policy=mix:0.3")
    set_compile_cache(run.setup.config.arch.compile_cache)
    with contextlib.closing(run.setup.env):
        if replay:
            data, note = replay_data.read_replay(run, member)
            data = data._replace(action=_vectors(run.setup.env, run.setup.env.native_action(jnp.asarray(data.action))))
        else:
            data, note = _play(run, behaviour, noise, member, steps, seed, num_envs)
    agents = run.setup.env.num_agents
    if agents > 1:
        note += f"; games of {agents} agents, of which each episode is what one observed, did and earned"
    acted = "replay" if replay else f"{policy}+noise:{noise:g}" if noise else policy
    header = dataclasses.replace(_identity(run, acted, replay), notes=(note, *data.header.notes), path=str(out or ""))
    data = data._replace(header=header).with_statistics()
    check_data(data, *spaces, header.environment, key="out")
    if out is not None and format == "minari":
        minari.write_minari(out, data, *spaces)
    elif out is not None:
        write_data(out, data)
    return data


def _check(policy: str, noise: float, replay: bool, seed: int) -> _Behaviour:
    if replay and (policy != "best" or noise):
        raise ConfigError(f"replay=True takes what was stored, and policy={policy}, noise={noise:g} would act: use one")
    check_seed(seed)
    found = _POLICY.fullmatch(policy)
    if found is None:
        raise ConfigError(
            f"policy={policy} is unknown: use best, last, sampled, random, mix:0.3, or the environment steps of a kept"
            " checkpoint"
        )
    if found[2]:
        return _Behaviour("best", None, float(found[2]))
    if policy in ("sampled", "random"):
        return _Behaviour("last", False if policy == "sampled" else None, float(policy == "random"))
    return _Behaviour(policy, None, 0.0)


def _play(
    run: TrainedRun, behaviour: _Behaviour, noise: float, member: int | str | None, steps: int, seed: int, num_envs: int
) -> tuple[DataSet, str]:
    """Play episodes until they have enough steps; return them, and a sentence about who played."""
    setup, env = run.setup, run.setup.env
    trained = load_member(run, behaviour.which, member)
    system = setup.build_system(trained.hyperparams, behaviour.greedy)
    act: Act = random_act(system.eval_act, env, behaviour.random) if behaviour.random else system.eval_act
    act = noisy_act(act, env, noise) if noise else act
    player = Player(env, system, act, num_envs, setup.config.arch.max_eval_steps)
    key = jax.random.fold_in(jax.random.key(seed), _STREAM)
    batches: list[DataSet] = []
    missing, cut = steps, 0
    while missing > 0:
        rows = player.play(trained.shared, jax.random.fold_in(key, len(batches)), missing)
        batch, num_cut = _episodes(rows, missing, env.num_agents)
        batches.append(batch._replace(action=_vectors(env, batch.action)))
        missing, cut = missing - int(batch.valid.sum()), cut + num_cut
    data = jax.tree.map(lambda *parts: np.concatenate(parts), *(each[1:] for each in batches))
    limit = f"; {cut:,} episode(s) truncated by arch.max_eval_steps" if cut else ""
    budget = f"{trained.env_steps:,} {setup.config.arch.step_unit}"
    by = "" if behaviour.random == 1.0 else f"{trained.selected}, after {budget}; "
    return DataSet(DataHeader(), *data), f"{by}seed {seed}{limit}"


def _episodes(rows: Rows, steps: int, num_agents: int = 1) -> tuple[DataSet, int]:
    """Join the first episodes that have enough steps; return them, and how many of them reached the limit."""
    lengths = rows.valid.sum(axis=1)
    first = np.arange(len(lengths)) < num_first(lengths, steps, num_agents)
    index = np.arange(rows.valid.shape[1])[None]
    kept = first[:, None] & (index <= lengths[:, None])
    endless = rows.valid & (index == lengths[:, None] - 1) & ~rows.terminated & ~rows.truncated
    rows = rows._replace(truncated=rows.truncated | endless)
    return DataSet(DataHeader(), *jax.tree.map(lambda leaf: leaf[kept], rows)), int(endless[first].sum())


def _identity(run: TrainedRun, policy: str, replay: bool) -> DataHeader:
    """Return the header of data of a run; its evaluations, unlike its replay buffer, may leave out randomisation."""
    config = run.setup.config
    absent = () if replay or config.env.randomize_evaluation else ("randomization", "randomize_every")
    return DataHeader(
        environment=config.scenario_name,
        arguments={name: value for name, value in config.env_arguments.items() if name not in absent},
        system=config.system_name,
        run=hashlib.sha256((run.run_dir / CONFIG).read_bytes()).hexdigest(),
        policy=policy,
        versions=config.versions,
    )


def _vectors(env: VectorEnvironment, action: Any) -> np.ndarray:
    """Return actions of the environment as one array, the parts of a `Mixed` space side by side."""
    space = env.unwrapped.action_space
    if isinstance(space, Dict | Tuple):
        return np.asarray(Mixed(space).join(jax.tree.leaves(action)))
    return np.asarray(action, canonicalize_dtype(space.dtype))
