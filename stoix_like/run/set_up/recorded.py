"""Recorded data of a run, read and checked before anything compiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.arch_config import OfflineConfig
from stoix_like.base_types import Observation
from stoix_like.config import RunConfig
from stoix_like.data.check import check_data, with_dtypes
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import KEY, content_hash, open_data
from stoix_like.envs.environment import VectorEnvironment
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.wrappers.base import agent_action
from stoix_like.errors import ConfigError
from stoix_like.run.set_up.memory_estimate import gib
from stoix_like.schema import INT32_MAX
from stoix_like.utils.replay import Data, DataFile, SequenceConfig, StreamReplayConfig

# Keys that change no step of an environment, or only its rewards, which are recorded as the environment gives them, or
# only the training environments: data are recorded in evaluation environments; or paths of a machine.
_TRAINING_ALONE = {
    "assets", "auto_reset", "clip_actions", "eval_opponent", "pool_size", "random_start_steps", "randomize_evaluation",
    "rescale_actions", "reset_ratio", "reward_clip", "reward_scale", "staggered_starts", "timeout", "vectorization",
}  # fmt: skip


class Recorded(NamedTuple):
    """Recorded data of a run."""

    data: Data | None = None  # the data, as host arrays; None without any
    content: str = ""  # the hash of their file
    notes: tuple[str, ...] = ()  # what they are, for the user


def read_recorded(config: RunConfig, env: VectorEnvironment, memory: int) -> Recorded:
    """Read the data that a run learns from, and refuse what it cannot learn from. `memory`: bytes of each device."""
    part = config.system.find_part(DataFile)
    if part is None or part.data is None:
        return Recorded()
    hyperparams = config.arch.population.hyperparams or {}
    varied = {"data_fraction", "final_data_fraction"} & hyperparams.keys()
    if varied and isinstance(config.arch, OfflineConfig):
        raise ConfigError(f"arch.population.hyperparams.{min(varied)} has no effect with arch=offline: leave it out")
    shares = hyperparams.get("data_fraction")
    if isinstance(shares, Sequence) and 1.0 in shares and len(shares) > 1:
        raise ConfigError(
            "arch.population.hyperparams.data_fraction has 1, with which a single run has no replay buffer, but members"
            " that differ in it have one: use smaller shares, or train it with system.data_fraction=1"
        )
    path, file = part.data, open_data(part.data)
    spaces = env.observation_space, env.unwrapped.action_space, _name_of(config, file.header.environment)
    check_data(file.header, *spaces)
    _check_steps(file.header, config.env)
    needed = sum(math.prod(array.shape) * array.dtype.itemsize for array in file.shapes.values())
    if needed > memory:
        raise ConfigError(
            f"{KEY}={path} needs {gib(needed)} on every device, but only {gib(memory)} is available: use a smaller data"
            " set"
        )
    found = with_dtypes(file.read(), env.observation_space)
    check_data(found, *spaces)
    _check_length(found, config, path)
    reward = _learned_rewards(found.reward, config.env)
    notes = list(_notes(found.header, config))
    share = config.resolved["system"].get("final_data_fraction")
    if share is not None and isinstance(config.arch, OfflineConfig):
        notes.append(f"system.final_data_fraction={share} has no effect with arch=offline, where all is recorded")
    taken = _observed(found.observation, env, path), agent_action(env, found.action), reward
    rows = np.flatnonzero(found.valid).astype(np.int32)
    data = Data(*taken, found.terminated, found.truncated, found.valid, rows)
    return Recorded(data, content_hash(path), tuple(notes))


def _name_of(config: RunConfig, recorded: str) -> str:
    """Return the name of the scenario, or of the task where the data have this one, as data of others may."""
    task = config.environment_name
    return task if recorded and f"/{task}".endswith(f"/{recorded}") else config.scenario_name


def _check_steps(header: DataHeader, env: EnvConfig) -> None:
    """Refuse data with longer or shorter steps than the run's."""
    recorded = header.arguments.get("action_repeat", 1)
    if header.run and recorded != env.action_repeat:
        raise ConfigError(
            f"{KEY}={header.path}: the data were recorded with env.action_repeat={recorded}, and the run has"
            f" {env.action_repeat}: use env.action_repeat={recorded}"
        )


def _check_length(found: DataSet, config: RunConfig, path: str) -> None:
    """Refuse data with fewer steps than a sequence, or more than an index can reach."""
    length, keys = 1, ""
    if (part := config.system.find_part(SequenceConfig)) is not None:
        length, keys = part.num_steps, part.length_keys
    elif (stream := config.system.find_part(StreamReplayConfig)) is not None:
        length, keys = stream.sequence_length, f"system.sequence_length={stream.sequence_length}"
    if (steps := found.header.steps) < length:
        raise ConfigError(f"{KEY}={path}: {steps} steps are fewer than the {length} of a sequence, {keys}: record more")
    if len(found.valid) > INT32_MAX:
        raise ConfigError(f"{KEY}={path}: {len(found.valid):,} rows are more than a 32-bit index can reach: use fewer")


def _learned_rewards(reward: np.ndarray, env: EnvConfig) -> np.ndarray:
    """Scale and clip recorded rewards as in training."""
    reward = reward if env.reward_scale == 1.0 else reward * np.float32(env.reward_scale)
    return reward if env.reward_clip is None else np.clip(reward, -env.reward_clip, env.reward_clip)


def _observed(recorded: Observation, env: VectorEnvironment, path: str) -> Observation:
    """Return what the agent observes of what was recorded; refuse data that lack something."""
    keys = jax.eval_shape(lambda: jax.random.split(jax.random.key(0), env.num_agents))
    observed = jax.eval_shape(env.reset, keys)[1].observation
    for name in ("action_mask", "step_count"):
        if getattr(observed, name) is None:
            recorded = recorded._replace(**{name: None})
        elif getattr(recorded, name) is None:
            raise ConfigError(
                f"{KEY}={path}: the data have no {name}, which the run observes: record data with the same env keys"
            )
    return recorded


def _notes(header: DataHeader, config: RunConfig) -> Iterator[str]:
    """Yield what the data are, and where their environment was set up in another way."""
    returns = "" if header.return_mean is None else f", mean return {header.return_mean:.6g}"
    yield f"{KEY}={header.path}: {header.steps:,} steps in {header.episodes:,} episodes{returns}"
    yield from header.notes
    if not header.run:
        return
    yield from notes_on_arguments("the data were recorded", header.arguments, config)


def notes_on_arguments(what: str, arguments: Mapping[str, Any], config: RunConfig) -> Iterator[str]:
    """Yield differences between an environment's setup and the run's, apart from keys that only training uses."""
    own, default = config.env_arguments, dataclasses.asdict(EnvConfig())
    # The last action is observed as the network gave it.
    alone = _TRAINING_ALONE - ({"rescale_actions"} if own.get("observe_last_action") else set())
    for name in sorted((own.keys() | arguments.keys()) - alone):
        there, value = (each.get(name, default.get(name)) for each in (arguments, own))
        if there != value:
            yield f"{what} with env.{name}={there}, and the run has {value}"
