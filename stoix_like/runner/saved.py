"""Runs read back from their directories, wherever these come from."""

from __future__ import annotations

import importlib
import re
import sys
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np
import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from stoix_like.config import GROUPS, override_config, typed
from stoix_like.errors import ConfigError
from stoix_like.runner import checkpoint
from stoix_like.runner.prepared import Prepared, make_system, prepare
from stoix_like.runner.programs import make_keys, traced_hyperparams

CONFIG = "config.yaml"
# What a configuration may have executed without being trusted: layers and networks, and two functions that make them.
TRUSTED_MODULES = re.compile(r"(stoix_like\.networks|flax\.linen)(\.[A-Za-z]\w*)*")
TRUSTED_FUNCTIONS = ("stoix_like.networks.heads.policy_head", "stoix_like.networks.base.chained_torsos")
TRUSTED_SYSTEMS = re.compile(r"stoix_like\.systems(\.[A-Za-z]\w*)+")
# What may change when a run goes on. The number of shards may not, which devices and update batches make together.
CHANGEABLE = (
    "arch.total_timesteps",
    "arch.num_evaluation",
    "arch.num_devices",
    "arch.update_batch_size",
    "arch.population.axis",
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
        episode_return: what these parameters returned when they were evaluated, `[]` or `[P]`; NaN where they were not.
    """

    shared: Any
    env_steps: np.ndarray
    episode_return: np.ndarray


def open_run(run_dir: str | Path, trust: bool = False) -> SavedRun:
    """Read a run's configuration and make its parts, on one device.

    Args:
        run_dir: the directory of the run.
        trust: execute what its configuration names, wherever it comes from.

    Returns:
        The run.

    Raises:
        ConfigError: there is no run, or its configuration names what is not trusted.
    """
    directory = Path(run_dir).absolute()
    config = read_config(directory, _ALONE, trust)
    return SavedRun(directory, prepare(typed(config)))


def load_shared(saved: SavedRun, which: str = "best") -> Loaded:
    """The trained part of a run.

    Args:
        saved: from `open_run`.
        which: `best`, each member's parameters that evaluated best; `last`; or the environment steps of a checkpoint.

    Returns:
        The agent's shared state; `best` and `last` from the newest checkpoint that is whole.

    Raises:
        ConfigError: there is no such checkpoint, or it is damaged.
    """
    run_dir, steps = saved.run_dir, checkpoint.steps(saved.run_dir)
    if not steps:
        raise ConfigError(f"{run_dir} holds no checkpoint")
    if which not in ("best", "last") and which not in map(str, steps):
        raise ConfigError(f"which={which} is not known: use best, last, or one of {', '.join(map(str, steps))}")
    item = "best" if which == "best" else "shared"
    shapes, found = {item: _shapes(saved.prepared)}, None
    for step in reversed(steps) if which in ("best", "last") else [int(which)]:
        try:
            found = checkpoint.read(run_dir, step, shapes)
            break
        except checkpoint.DamagedError as error:
            print(f"the checkpoint after {step:,} env steps cannot be used: {error}", file=sys.stderr)
    if found is None:
        raise ConfigError(f"which={which}: no checkpoint of {run_dir} can be used")
    if item not in found.items:
        raise ConfigError(
            f"which=best: {run_dir} did not keep it (checkpoint.keep_best=false, arch.absolute_metric=false): use last"
        )
    env_steps, returns = _when_and_how_good(found, item)
    shape = (size,) if (size := saved.prepared.population.size) > 1 else ()
    return Loaded(found.items[item], np.broadcast_to(env_steps, shape), np.broadcast_to(returns, shape))


def _when_and_how_good(found: checkpoint.Checkpoint, item: str) -> tuple[Any, Any]:
    """The environment steps of what was loaded, and the return of its evaluation, of each member."""
    if item == "best":
        best = found.session["best"]
        return best["env_steps"], best["episode_return"]
    last = found.session["progress"]["history"][-1]
    # Stopped between two evaluations, the parameters are not those of the last one.
    return found.step, last["eval/episode_return_mean"] if last["env_steps"] == found.step else np.nan


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
    config = _load(run_dir)
    if not trust:
        check_trusted(_plain(config), str(run_dir / CONFIG))
    return override_config(config, overrides)


def plain_config(run_dir: Path) -> dict[str, Any]:
    """The configuration of a run as plain values, by which nothing is looked up or executed.

    Args:
        run_dir: the directory of the run.

    Returns:
        The values.

    Raises:
        ConfigError: there is none, or it cannot be read.
    """
    return _plain(_load(run_dir))


def _plain(config: DictConfig) -> dict[str, Any]:
    return typing.cast(dict[str, Any], OmegaConf.to_container(config))


def _load(run_dir: Path) -> DictConfig:
    check_is_run(run_dir)
    path = run_dir / CONFIG
    try:
        config = OmegaConf.load(path)
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, DictConfig) or not all(isinstance(config.get(group), DictConfig) for group in GROUPS):
        raise ConfigError(f"{path} is not the configuration of a run, which has {', '.join(GROUPS)}")
    return config


def check_trusted(config: Mapping[str, Any], where: str) -> None:
    """Refuse a configuration by which reading it, or making what it names, would execute foreign code.

    Args:
        config: plain values.
        where: what to call it.

    Raises:
        ConfigError: naming the key and the value.
    """
    for key, value in _flatten(config):
        names = key.split(".")
        if "_target_" in names and not (names[-1] == "_target_" and _is_trusted(value)):
            refused = (
                f"{where}: {key}={value} is executed when the run is loaded, and only the modules of"
                " stoix_like.networks and flax.linen are trusted"
            )
        elif names[:2] == ["system", "module"] and not (names[2:] == [] and _fits(TRUSTED_SYSTEMS, value)):
            refused = (
                f"{where}: {key}={value} is imported when the run is loaded, and only stoix_like.systems is trusted"
            )
        elif isinstance(value, str) and "${" in value:
            refused = f"{where}: {key}={value} would be looked up when the run is loaded"
        else:
            continue
        raise ConfigError(f"{refused}: read it, and if you trust it, use --trust (trust=True)")


def _is_trusted(target: Any) -> bool:
    """Whether a name is that of a flax module which was made where it says, or of one of the known functions."""
    if target in TRUSTED_FUNCTIONS:
        return True
    if not _fits(TRUSTED_MODULES, target):
        return False
    module, _, name = target.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):
        return False
    is_module = isinstance(found, type) and issubclass(found, nn.Module)
    return is_module and _fits(TRUSTED_MODULES, found.__module__)


def _fits(pattern: re.Pattern[str], name: Any) -> bool:
    return isinstance(name, str) and pattern.fullmatch(name) is not None


def check_same_config(prepared: Prepared, config: Mapping[str, Any]) -> None:
    """Refuse to go on with another run than the one that was begun.

    Args:
        prepared: the run that is to go on.
        config: plain values of the configuration that it had.

    Raises:
        ConfigError: naming the keys that differ.
    """
    now, then = dict(_flatten(prepared.run.resolved)), dict(_flatten(config))
    changed = [
        f"{key} was {then.get(key, 'not there')} and is {now.get(key, 'not there')}"
        for key in sorted(now.keys() | then.keys())
        if now.get(key) != then.get(key) and not any(key == free or key.startswith(f"{free}.") for free in CHANGEABLE)
    ]
    if changed:
        raise ConfigError(
            f"this is not the run that was saved: {'; '.join(changed)}. Only {', '.join(CHANGEABLE)} may change"
        )


def check_unchanged(prepared: Prepared, session: Mapping[str, Any]) -> None:
    """Refuse to go on with another run than the one that was saved.

    Args:
        prepared: the run that is to go on.
        session: the host's side of the checkpoint.

    Raises:
        ConfigError: naming the keys that differ, or a budget that is spent already.
    """
    check_same_config(prepared, session["config"])
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
