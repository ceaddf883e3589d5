"""Checks of what may change when a run resumes."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from yaml import YAMLError

from stoix_like.composition import parse_overrides
from stoix_like.config import flatten
from stoix_like.errors import ConfigError
from stoix_like.run.host.devices import device_names
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.config_file import without_gone
from stoix_like.storage.recorded_runs import is_below

# Written by Hydra.
MULTIRUN = "multirun.yaml"
# The number of shards may not change, but how devices and update batches make it up may.
CHANGEABLE = (
    "arch.total_timesteps", "arch.num_evaluation", "arch.num_devices", "system.data", "system.teacher",
    "arch.distributed", "arch.actor.device_ids", "arch.learner.device_ids", "arch.update_batch_size", "arch.on_nan",
    "arch.compile_cache", "arch.profile", "arch.resume_from", "arch.absolute_metric", "arch.stop_at_return",
    "callbacks", "env.timeout", "env.assets", "checkpoint", "logger",
)  # fmt: skip
# What a callback that stopped a run stopped it for: with another value, the run continues.
_STOPPING = ("arch.total_timesteps", "arch.num_evaluation", "arch.stop_at_return")


def stopped_by(setup: RunSetup, host_state: Mapping[str, Any]) -> str | None:
    """Return the name of the callback that stopped a run; None if none did, or under other conditions or callbacks."""
    name: str | None = host_state["progress"].get("stopped_by")
    now, then = setup.config.resolved, host_state["config"]
    flat_now, flat_then = dict(flatten(now)), dict(flatten(then))
    same = all(_is_same(flat_now.get(key), flat_then.get(key)) for key in _STOPPING)
    # The command line passes none: there, the run's cannot have changed.
    present = any(type(callback).__name__ == name for callback in setup.callbacks)
    same &= present or not setup.config.custom_callbacks
    return name if same and now.get("callbacks") == then.get("callbacks") else None


def check_same_config(setup: RunSetup, config: Mapping[str, Any]) -> None:
    """Refuse to resume with a configuration that changed."""
    now, then = (dict(flatten(each)) for each in (setup.config.resolved, config))
    # Keys that the version which started the run did not have.
    for path in ("arch", "env", "system"):
        added = dict(_plain_defaults(getattr(setup.config, path), path))
        then |= {key: value for key, value in added.items() if key not in then and key in now}
    changed = [
        f"{key} was {then.get(key, 'not set')} and is {now.get(key, 'not set')}"
        for key in sorted(now.keys() | then.keys())
        if not _is_same(now.get(key), then.get(key)) and not is_below(key, CHANGEABLE)
    ]
    if changed:
        raise ConfigError(
            f"the configuration differs from that of the run: {'; '.join(changed)}. Only these keys may change:"
            f" {', '.join(CHANGEABLE)}. A new run starts from its parameters with arch.init_from=RUN_DIR"
        )


def _is_same(now: Any, then: Any) -> bool:
    """Compare two values of a key; earlier versions recorded numbers as the strings that were given."""
    if isinstance(then, str) and isinstance(now, (int, float)):
        with contextlib.suppress(ValueError):
            return float(then) == now
    return bool(now == then)


def check_same_sweep(sweep_dir: Path, overrides: Sequence[str]) -> None:
    """Refuse to continue a multirun with other overrides: its jobs are numbered by them."""
    path = sweep_dir / MULTIRUN
    try:
        # Hydra writes overrides as they were given, with what they interpolate.
        then: Any = OmegaConf.to_container(OmegaConf.select(OmegaConf.load(path), "hydra.overrides.task"))
    except (OSError, ValueError, YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}; choose another hydra.sweep.dir") from error
    before, now = map(_numbering, (then, overrides))
    if before != now:
        raise ConfigError(
            f"hydra.sweep.dir={sweep_dir} holds the multirun of {' '.join(before) or 'the defaults'}: continue it with"
            " the same overrides, or choose another directory"
        )


def check_unchanged(setup: RunSetup, host_state: Mapping[str, Any]) -> None:
    """Refuse to resume a checkpoint with a configuration that does not continue it."""
    check_same_config(setup, without_gone(host_state["config"]))
    updates, plan = host_state["progress"]["updates"], setup.plan
    if setup.config.keeps_best and host_state["progress"]["history"] and "best" not in host_state:
        key = "arch.absolute_metric" if setup.config.arch.absolute_metric else "checkpoint.keep_best"
        raise ConfigError(
            f"{key}=true: the run has kept no best parameters so far, and those of earlier evaluations are gone: use"
            " checkpoint.keep_best=false arch.absolute_metric=false, or start a new run"
        )
    if host_state["num_shards"] != plan.num_shards:
        raise ConfigError(
            f"the run has {plan.num_shards} shard(s) here (devices × arch.update_batch_size), but its checkpoint has"
            f" {host_state['num_shards']}: set arch.num_devices, or arch.learner.device_ids with arch=sebulba"
        )
    then = host_state.get("contents", {})
    for key in sorted(key for key in setup.contents.keys() | then.keys() if setup.contents.get(key) != then.get(key)):
        place = setup.config.resolved["system"].get(key.removeprefix("system."))
        raise ConfigError(f"{key}={place} is not what the run has learned from so far: use the same content")
    if updates > plan.num_updates:
        spent = plan.warmup_steps + updates * plan.steps_per_update
        raise ConfigError(
            f"arch.total_timesteps={setup.config.arch.total_timesteps} is less than the {spent} steps already trained:"
            f" use at least {spent}"
        )


def other_conditions(setup: RunSetup, host_state: Mapping[str, Any]) -> list[str]:
    """Report packages and devices that differ from those that wrote a checkpoint."""
    now, then = setup.config.versions, host_state.get("versions", {})
    versions = [f"{name} {then[name]} → {now.get(name)}" for name in then if then[name] != now.get(name)]
    here = sorted(set(device_names(setup.mesh)))
    there = sorted(set(host_state.get("devices", here)))
    devices = [] if here == there else [f"{', '.join(there)} → {', '.join(here)}"]
    return [
        f"resumed {what} ({', '.join(changed)}): results may differ from those of an uninterrupted run"
        for what, changed in (("with other versions", versions), ("on other devices", devices))
        if changed
    ]


def _plain_defaults(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the defaults of the fields of a group that have one and are no mapping."""
    for field in dataclasses.fields(group):
        key, value = f"{path}.{field.name}", getattr(group, field.name)
        if dataclasses.is_dataclass(value):
            # The keys of the parts of a system are keys of the system.
            yield from _plain_defaults(value, path if path == "system" else key)
        elif isinstance(field.default, bool | int | float | str | None):
            yield key, field.default


def _numbering(overrides: Sequence[str]) -> list[str]:
    """Return the overrides that number the jobs of a multirun: all but overrides of one value that may change."""
    return [
        str(override.input_line)
        for override in parse_overrides(overrides)
        if override.is_sweep_override() or not is_below(override.key_or_group, CHANGEABLE)
    ]
