"""The replay buffer of a checkpoint as a data set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from stoix_like.base_types import SystemConfig
from stoix_like.data.dataset import DataHeader, DataSet, from_steps
from stoix_like.errors import ConfigError, DamagedError
from stoix_like.policies.load import TrainedRun, choose_member, load_shared
from stoix_like.schema import flat_hints, get_value
from stoix_like.storage import checkpoint
from stoix_like.systems.parts.teacher import Kickstarting, TeacherConfig
from stoix_like.utils.jax_utils import named, path_name
from stoix_like.utils.replay import ReplayConfig, Step
from stoix_like.utils.replay.frames import FrameReplayState

# Of rewards that were scaled, and scaled back.
_ROUNDING = 1e-5
_INFERRED = (
    "the buffer does not say which steps were truncated: those whose successor is not the next observation count as"
    " truncated, and an episode continues where the next one starts with its last successor"
)


def read_replay(run: TrainedRun, member: int | str | None) -> tuple[DataSet, str]:
    """Read the replay buffer of the last checkpoint of a run.

    The oldest episode of each environment may lack its start. The newest one is truncated after its last step.
    """
    config = run.setup.config
    stored = config.system.find_part(ReplayConfig)
    if stored is None:
        raise ConfigError(
            f"replay=True: {config.system_name} has no replay buffer of steps: collect with policy=best, or train"
            " sac/ff_sac, ddpg/ff_td3 or q_learning/ff_dqn"
        )
    if stored.only_data:
        raise ConfigError(f"replay=True: the run learned only from its data: use system.data={stored.data}")
    labels = config.system.find_part(TeacherConfig)
    if labels is not None and labels.teacher is not None and not isinstance(labels, Kickstarting):
        raise ConfigError(
            "replay=True: the buffer holds what the teacher would have done, and not what was played: collect with"
            " policy=best"
        )
    if not config.checkpoint.replay:
        raise ConfigError(
            "replay=True: checkpoint.replay=false left the replay buffer out of the checkpoints: train with"
            " checkpoint.replay=true"
        )
    if config.env.reward_clip is not None:
        raise ConfigError(
            f"replay=True: env.reward_clip={config.env.reward_clip:g} clipped the stored rewards: collect with"
            " policy=best, or train without it"
        )
    state = load_shared(run, "last")
    index = choose_member(state, member)
    local, step = _read_local(run)
    if state.env_steps.ndim:
        local = jax.tree.map(lambda leaf: leaf[index], local)
    buffer = _find_buffer(local)
    if buffer is None:
        raise ConfigError(
            f"replay=True: {config.system_name} on {config.environment_name} stores sequences or single frames, not"
            " steps: collect with policy=best"
        )
    hyperparams = state.hyperparams_of(index)
    num_rows = config.arch.total_num_envs * run.setup.env.num_agents
    data = _rows(buffer, num_rows, stored_scale(config.system, hyperparams) * config.env.reward_scale)
    largest = hyperparams.get("max_abs_reward", getattr(config.system, "max_abs_reward", np.inf))
    if np.abs(data.reward * config.env.reward_scale).max(initial=0.0) > largest * (1.0 - _ROUNDING):
        raise ConfigError(
            f"replay=True: rewards reach system.max_abs_reward={largest:g}, which clips stored ones: collect with"
            " policy=best, or train with a larger one"
        )
    return data, f"replay buffer after {step:,} env steps"


def stored_scale(config: SystemConfig, hyperparams: Mapping[str, float]) -> float:
    """Return the factor by which the system multiplied the rewards of its buffer."""
    if config.stores_raw_rewards or "reward_scale" not in flat_hints(type(config)):
        return 1.0
    return float(hyperparams.get("reward_scale", get_value(config, "reward_scale")))


def _read_local(run: TrainedRun) -> tuple[Any, int]:
    """Read the local state of all shards, as host arrays, and the environment steps before it."""
    setup, sharding = run.setup, jax.sharding.SingleDeviceSharding(run.mesh.devices.flat[0])

    def init(key: jax.Array) -> Any:
        _, timestep = setup.env.reset(jax.random.split(key, setup.spec.num_envs))
        return setup.build_system().init(key, timestep).local

    step = checkpoint.steps(run.run_dir)[-1]
    try:
        stored = checkpoint.read_shapes(run.run_dir, step, "local")

        def target(path: Any, leaf: Any) -> jax.ShapeDtypeStruct:
            # Arrays without elements are not stored.
            shape = stored[path_name(path)].shape if leaf.size else (*leading, *leaf.shape)
            return jax.ShapeDtypeStruct(shape, leaf.dtype, sharding=sharding)

        of_a_shard = jax.eval_shape(init, jax.random.key(0))
        name, leaf = next(iter(named(of_a_shard).items()))
        leading = stored[name].shape[: len(stored[name].shape) - leaf.ndim]
        shapes = jax.tree_util.tree_map_with_path(target, of_a_shard)
        return jax.device_get(checkpoint.read(run.run_dir, step, {"local": shapes}).items["local"]), step
    except (DamagedError, LookupError) as error:
        raise ConfigError(f"replay=True: {run.run_dir} holds no replay buffer that can be read: {error}") from error


def _find_buffer(local: Any) -> Any:
    """Return the buffer of a local state; None if it does not store steps with their observations."""

    def is_buffer(node: Any) -> bool:
        return hasattr(node, "experience") or isinstance(node, FrameReplayState)

    buffer = next((node for node in jax.tree.leaves(local, is_leaf=is_buffer) if is_buffer(node)), None)
    return buffer if isinstance(getattr(buffer, "experience", None), Step) else None


def _rows(buffer: Any, num_rows: int, scale: float) -> DataSet:
    """Convert the rings of all shards to steps, one environment after the other."""
    lead = buffer.current_index.ndim
    indices, full = buffer.current_index.ravel(), buffer.is_full.ravel()
    shards = jax.tree.map(lambda leaf: leaf.reshape(len(indices), *leaf.shape[lead:]), buffer.experience)
    length, has_rows = shards.reward.shape[2], shards.truncated is not None
    # A ring starts with its oldest step.
    ends = zip(indices, full, strict=True)
    order = [np.roll(np.arange(length), -at) if wraps else np.arange(at) for at, wraps in ends]
    if not sum(map(len, order)):
        raise ConfigError("replay=True: the replay buffer holds no step yet: train longer, or collect with policy=best")
    steps = jax.tree.map(lambda leaf: np.stack([part[:, at] for part, at in zip(leaf, order, strict=True)]), shards)
    if not has_rows:  # `[S, 1, T * N, ...]` instead of `[S, N, T, ...]`
        shape = len(indices), -1, num_rows // len(indices)
        steps = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[3:]).swapaxes(1, 2), steps)
    truncated = steps.truncated if has_rows else _infer_truncated(steps)
    notes = () if has_rows else (_INFERRED,)
    truncated[:, :, -1] |= ~steps.terminated[:, :, -1]
    steps = steps._replace(truncated=truncated, reward=steps.reward / np.float32(scale), extras=None)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), steps)
    last = jax.tree.map(lambda x: x[flat.terminated | flat.truncated], flat.next_observation)
    stored = flat.observation, flat.action, flat.reward, flat.terminated, flat.truncated
    return from_steps(DataHeader(notes=notes), *stored, last)


def _infer_truncated(steps: Step) -> np.ndarray:
    """Return which steps `[S, N, T]` were truncated: those with another successor than the next step's observation."""

    def differs(observation: np.ndarray, successor: np.ndarray) -> np.ndarray:
        changed = successor[:, :, :-1] != observation[:, :, 1:]
        return changed.any(axis=tuple(range(3, changed.ndim)))

    found = jax.tree.leaves(jax.tree.map(differs, steps.observation, steps.next_observation))
    ended = np.concatenate([np.any(found, axis=0), np.zeros_like(steps.terminated[:, :, :1])], axis=2)
    return ended & ~steps.terminated
