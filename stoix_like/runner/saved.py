"""Runs read back from their directories, wherever these come from."""

from __future__ import annotations

import importlib
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.config import override_config, typed
from stoix_like.errors import ConfigError
from stoix_like.runner import checkpoint
from stoix_like.runner.prepared import Prepared, make_system, prepare
from stoix_like.runner.programs import make_keys, traced_hyperparams

CONFIG = "config.yaml"
# What a configuration may name, and so have executed, without being trusted.
TRUSTED = ("stoix_like.networks.", "flax.linen.")
TRUSTED_SYSTEMS = "stoix_like.systems."
# What may change when a run goes on: none of it decides what is learnt until then.
CHANGEABLE = (
    "arch.total_timesteps",
    "arch.num_evaluation",
    "arch.on_nan",
    "arch.compile_cache",
    "arch.resume_from",
    "arch.absolute_metric",
    "checkpoint",
    "logger",
)
# A policy is the same on one device, wherever it was trained, and nobody listens.
_ALONE = (
    "arch.num_devices=1",
    "arch.update_batch_size=1",
    "arch.population.axis=vmap",
    "logger.tensorboard.enabled=false",
    "logger.wandb.enabled=false",
)


class SavedRun(NamedTuple):
    """A run that was trained, ready to be looked at: environments, networks, system, sizes."""

    run_dir: Path
    prepared: Prepared


class Loaded(NamedTuple):
    """Shared state of an agent, of a population with a leading axis `[P]`, and after how many steps it was so.

    Attributes:
        shared: parameters and all else that acting needs.
        env_steps: environment steps of each member, `[]` or `[P]`.
    """

    shared: Any
    env_steps: np.ndarray


def open_run(run_dir: str | Path, trust: bool = False, overrides: Sequence[str] = ()) -> SavedRun:
    """Read a run's configuration and make its parts, on one device.

    Args:
        run_dir: the directory of the run.
        trust: execute what its configuration names, wherever it comes from.
        overrides: `["env.time_limit=1000"]`.

    Returns:
        The run.

    Raises:
        ConfigError: there is no run, or its configuration names what is not trusted.
    """
    directory = Path(run_dir).absolute()
    config = read_config(directory, (*_ALONE, *overrides), trust)
    return SavedRun(directory, prepare(typed(config)))


def load_shared(saved: SavedRun, which: str = "best") -> Loaded:
    """The trained part of a run.

    Args:
        saved: from `open_run`.
        which: `best`, each member's parameters that evaluated best; `last`; or the environment steps of a checkpoint.

    Returns:
        The agent's shared state.

    Raises:
        ConfigError: there is no such checkpoint, or it is damaged.
    """
    run_dir, steps = saved.run_dir, checkpoint.steps(saved.run_dir)
    if not steps:
        raise ConfigError(f"{run_dir} holds no checkpoint")
    if which not in ("best", "last") and which not in map(str, steps):
        raise ConfigError(f"which={which} is not known: use best, last, or one of {', '.join(map(str, steps))}")
    item = "best" if which == "best" else "shared"
    step = steps[-1] if which in ("best", "last") else int(which)
    try:
        found = checkpoint.read(run_dir, step, {item: _shapes(saved.prepared)})
    except checkpoint.DamagedError as error:
        raise ConfigError(f"a checkpoint is damaged: {error}") from error
    if item not in found.items:
        raise ConfigError(f"which=best: {run_dir} did not keep it (checkpoint.keep_best=false): use last")
    size = saved.prepared.population.size
    taken = np.asarray(found.session["best"]["env_steps"] if item == "best" else [step] * size)
    return Loaded(found.items[item], taken if size > 1 else taken.reshape(()))


def _shapes(prepared: Prepared) -> Any:
    """The agent's shared state, of every member, as shapes on one device."""
    env, size = prepared.env, prepared.plan.envs_per_shard
    sharding = jax.sharding.SingleDeviceSharding(prepared.mesh.devices.flat[0])
    population = prepared.population

    def init(hyperparams: dict[str, Any], key: jax.Array) -> Any:
        _, timestep = env.reset(jax.random.split(key, size))
        return make_system(prepared, hyperparams).init(key, timestep).shared

    each = jax.vmap(init) if population.size > 1 else init
    shapes = jax.eval_shape(each, traced_hyperparams(population), make_keys(prepared).agent)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)


def check_is_run(run_dir: Path) -> None:
    """Refuse a directory that holds no run.

    Args:
        run_dir: the directory.

    Raises:
        ConfigError: naming it.
    """
    if not (run_dir / CONFIG).is_file():
        raise ConfigError(f"{run_dir} holds no run: there is no {CONFIG}")


def read_config(run_dir: Path, overrides: Sequence[str] = (), trust: bool = False) -> DictConfig:
    """Read the configuration of a run.

    Args:
        run_dir: the directory of the run.
        overrides: of keys that are there; `logger` and `checkpoint` can also be chosen as groups.
        trust: do not look what it names.

    Returns:
        The configuration.

    Raises:
        ConfigError: there is none, it cannot be read, or it names what is not trusted.
    """
    check_is_run(run_dir)
    path = run_dir / CONFIG
    try:
        config = OmegaConf.load(path)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, DictConfig):
        raise ConfigError(f"{path} holds no configuration")
    if not trust:
        check_trusted(typing.cast(dict[str, Any], OmegaConf.to_container(config)), str(path))
    return override_config(config, overrides)


def check_trusted(config: Mapping[str, Any], where: str) -> None:
    """Refuse a configuration by which reading it, or making what it names, would execute foreign code.

    Args:
        config: plain values.
        where: what to call it.

    Raises:
        ConfigError: naming the key and the value.
    """
    for key, value in _flatten(config):
        name = key.rpartition(".")[2]
        if name == "_target_" and not _is_trusted(value):
            allowed = " and ".join(f"{prefix}*" for prefix in TRUSTED)
            refused = f"{where}: {key}={value} is executed when the run is loaded, and only {allowed} are trusted"
        elif key == "system.module" and not str(value).startswith(TRUSTED_SYSTEMS):
            refused = (
                f"{where}: {key}={value} is imported when the run is loaded, and only {TRUSTED_SYSTEMS}* is trusted"
            )
        elif isinstance(value, str) and "${" in value:
            refused = f"{where}: {key}={value} would be looked up when the run is loaded"
        else:
            continue
        raise ConfigError(f"{refused}: read it, and if you trust it, use --trust (trust=True)")


def _is_trusted(target: Any) -> bool:
    """Whether a name begins as it should, and what it names was made there and not only imported."""
    if not str(target).startswith(TRUSTED):
        return False
    module, _, name = str(target).rpartition(".")
    try:
        made_in = getattr(getattr(importlib.import_module(module), name), "__module__", "")
    except (ImportError, AttributeError):
        return True  # Making it will say better what is wrong.
    return f"{made_in}.".startswith(TRUSTED)


def check_unchanged(prepared: Prepared, session: Mapping[str, Any]) -> None:
    """Refuse to go on with another run than the one that was saved.

    Args:
        prepared: the run that is to go on.
        session: the host's side of the checkpoint.

    Raises:
        ConfigError: naming the keys that differ, or a budget that is spent already.
    """
    now, then = dict(_flatten(prepared.run.resolved)), dict(_flatten(session["config"]))
    changed = [
        f"{key} was {then.get(key, 'not there')} and is {now.get(key, 'not there')}"
        for key in sorted(now.keys() | then.keys())
        if now.get(key) != then.get(key) and not any(key == free or key.startswith(f"{free}.") for free in CHANGEABLE)
    ]
    if changed:
        raise ConfigError(
            f"this is not the run that was saved: {'; '.join(changed)}. Only {', '.join(CHANGEABLE)} may change"
        )
    updates, plan = session["progress"]["updates"], prepared.plan
    if session["num_shards"] != plan.num_shards:
        raise ConfigError(
            f"the run was saved on {session['num_shards']} shard(s), devices x arch.update_batch_size, and here are"
            f" {plan.num_shards}: set arch.num_devices"
        )
    if updates > plan.num_updates:
        spent = plan.warmup_steps + updates * plan.steps_per_update
        raise ConfigError(
            f"arch.total_timesteps={prepared.run.arch.total_timesteps} is less than the {spent} steps that are done"
        )


def _flatten(node: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every plain value with its key, `network.actor_network.pre_torso.layer_sizes.0`."""
    if isinstance(node, (list, tuple)):
        node = dict(enumerate(node))
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from _flatten(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, node
