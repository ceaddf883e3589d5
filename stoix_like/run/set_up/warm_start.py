"""Warm starts: parameters and statistics of another run, from `arch.init_from`.

Only arrays are read from the other run, and nothing that its configuration names is executed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.arch_config import step_unit
from stoix_like.errors import ConfigError, DamagedError, naming
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage import checkpoint, remote, run_files
from stoix_like.storage.config_file import plain_config
from stoix_like.storage.returns import named_best, returns_of
from stoix_like.utils.jax_utils import named, shapes_on

# Fields of `Agent.shared` that a warm start takes over; optimiser states and counters start afresh.
_FIELDS = ("params", "slow_critic", "statistics", "return_statistics", "return_scale")
# What some systems also learn: the temperature and multipliers of V-MPO, the weight of PPO's penalty. They come from
# a run that has them, and start afresh after one of another system.
_LEARNED = ("own.duals", "own.kl_coef")
KEY = "arch.init_from"

Shapes = Mapping[str, jax.ShapeDtypeStruct]
"""Shapes by path, such as `params.actor_params.params.torso.Dense_0.kernel`."""


class Source(NamedTuple):
    """A checkpoint to start from."""

    run_dir: Path  # the directory of the other run
    step: int  # environment steps of the checkpoint
    item: str  # `best`, or `shared` (the last parameters) if the run has no best ones
    shapes: Shapes  # shapes of the item's arrays
    member: int | None  # the member with the highest evaluation return; None without a population
    env_steps: int  # environment steps that the parameters were trained for, or gradient steps
    unit: str  # which of both, `env steps` or `gradient steps`

    @property
    def note(self) -> str:
        """A note for the user."""
        kind = "best" if self.item == "best" else "last"
        member = "" if self.member is None else f" of member {self.member}"
        return f"{KEY}={self.run_dir}: {kind} parameters{member}, trained for {self.env_steps:,} {self.unit}"

    def read(self) -> dict[str, np.ndarray]:
        """Read the parameters and statistics."""
        targets = shapes_on(jax.sharding.SingleDeviceSharding(jax.local_devices()[0]), dict(self.shapes))
        try:
            items = checkpoint.read(self.run_dir, self.step, {self.item: targets}).items
        except DamagedError as error:
            raise ConfigError(f"{KEY}={self.run_dir} is damaged: {error}") from error
        arrays = {path: leaf for path, leaf in items[self.item].items() if _is_taken_over(path)}
        return {path: np.asarray(leaf if self.member is None else leaf[self.member]) for path, leaf in arrays.items()}


def find(setup: RunSetup) -> Source | None:
    """Find the checkpoint that a run starts from, and check that it fits; None without `arch.init_from`."""
    if setup.config.arch.init_from is None:
        return None
    with naming(KEY):
        run_dir = remote.local_copy(setup.config.arch.init_from, items=("best", "shared")).absolute()
        run_files.check_is_run(run_dir)
        unit = step_unit(plain_config(run_dir))
    for step in reversed(checkpoint.steps(run_dir)):
        try:
            source = _source(run_dir, step, unit)
        except DamagedError as error:
            print(f"skipping the damaged checkpoint at {step:,} {unit}: {error}", file=sys.stderr)
            continue
        _check_fits(setup, source)
        return source
    raise ConfigError(f"{KEY}={run_dir} holds no readable checkpoint: use a run that saved one")


def read(setup: RunSetup, source: Source) -> dict[str, np.ndarray]:
    """Read the parameters and statistics, see `Source.read`; of a newer checkpoint if this one has been replaced."""
    try:
        return source.read()
    except ConfigError:
        # Several processes would have to agree on the checkpoint.
        newer = find(setup) if setup.processes.count == 1 else None
        if newer is None or newer.step <= source.step:
            raise
        print(f"instead of a checkpoint that is no longer there: {newer.note}", file=sys.stderr)
        return newer.read()


def place(arrays: Mapping[str, np.ndarray], shared: Any) -> dict[str, jax.Array]:
    """Place an agent's parameters and statistics on the devices. `shared`: shapes and shardings of its shared state."""

    def copied(value: np.ndarray, like: Any) -> jax.Array:
        # By a program: a buffer that the host may share must not be donated.
        return jax.jit(jnp.copy, out_shardings=like.sharding)(np.broadcast_to(value, like.shape))

    return {name: copied(arrays[name], like) for name, like in named(shared).items() if name in arrays}


def _source(run_dir: Path, step: int, unit: str) -> Source:
    host_state = checkpoint.read_host_state(run_dir, step)
    with naming(f"{KEY}={run_dir}"):
        found = returns_of(host_state, step, best=True)
    named = named_best(run_dir, step)
    member = (found.best_member if named is None else named) if found.returns.ndim else None
    place = () if member is None else member
    item = "shared" if found.lacking[place] else "best"
    shapes = checkpoint.read_shapes(run_dir, step, item)
    env_steps = step if found.lacking[place] else int(np.asarray(host_state["best"]["env_steps"])[place])
    return Source(run_dir, step, item, shapes, member, env_steps, unit)


def _check_fits(setup: RunSetup, source: Source) -> None:
    """Compare the parameters with the new run's, by path."""
    axes = 0 if source.member is None else 1
    there = {path: (leaf.shape[axes:], leaf.dtype) for path, leaf in source.shapes.items() if _is_taken_over(path)}
    here = {path: (leaf.shape, leaf.dtype) for path, leaf in named(setup.shared).items() if _is_taken_over(path)}
    prefix = f"{KEY}={source.run_dir}"
    if not any(path.startswith("params") for path in here):
        raise ConfigError(
            f"{prefix}: system={setup.config.system_name} has no params in its shared state to start from"
        )
    for path in sorted(here.keys() | there.keys()):
        if _field(path) in _LEARNED and (path in there) != (path in here):
            continue
        if path not in there or path not in here:
            lacking = "that run" if path in here else "this run"
            raise ConfigError(
                f"{prefix}: {lacking} has no {path}: use the same system, the same network and the same"
                " system.normalize_observations and normalize_rewards"
            )
        if there[path] != here[path]:
            (shape, dtype), (wanted, wanted_dtype) = there[path], here[path]
            raise ConfigError(
                f"{prefix}: {path} is {dtype}{list(shape)} there and {wanted_dtype}{list(wanted)} here: use the same"
                " network, and an environment with the same spaces"
            )


def _is_taken_over(path: str) -> bool:
    return _field(path) in (*_FIELDS, *_LEARNED)


def _field(path: str) -> str:
    """Return the field of the shared state that a path belongs to; of what an algorithm adds, `own` and its field."""
    return ".".join(path.split(".")[: 2 if path.startswith("own.") else 1])
