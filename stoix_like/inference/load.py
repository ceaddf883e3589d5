"""Trained parameters, loaded from a run directory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from stoix_like.config import parse_config, with_env
from stoix_like.errors import ConfigError, DamagedError
from stoix_like.inference.hub import local_run
from stoix_like.run.compile import make_keys, traced_hyperparams
from stoix_like.run.setup import RunSetup, set_up
from stoix_like.storage import checkpoint
from stoix_like.storage.config_file import read_config

# Inference logs nothing, and copies nothing.
_INFERENCE = ("logger=silent", "+checkpoint.mirror=null")


class TrainedRun(NamedTuple):
    """A trained run: its directory, and its environments, networks, system and sizes."""

    run_dir: Path
    setup: RunSetup


class TrainedState(NamedTuple):
    """Trained state; of a population, with a leading axis `[P]`.

    Attributes:
        shared: the agent's shared state: parameters, statistics and counters.
        env_steps: environment steps that each member was trained for, `[]` or `[P]`.
        episode_return: mean evaluation return of these parameters, `[]` or `[P]`; NaN if they were not evaluated.
        hyperparams: by name, the hyperparameters of each member at that time.
    """

    shared: Any
    env_steps: np.ndarray
    episode_return: np.ndarray
    hyperparams: Mapping[str, Sequence[float]] = {}

    def hyperparams_of(self, member: int) -> dict[str, float]:
        """Return the hyperparameters of one member."""
        return {name: float(values[member]) for name, values in self.hyperparams.items()}


class TrainedMember(NamedTuple):
    """Trained state of one member.

    Attributes:
        shared: the agent's shared state, without a population axis.
        member: index of the member, 0 without a population.
        env_steps: environment steps that the member was trained for.
        hyperparams: the hyperparameters of the member at that time.
    """

    shared: Any
    member: int
    env_steps: int
    hyperparams: dict[str, float]


def open_run(run_dir: str | Path, trust: bool = False, env: Any = None) -> TrainedRun:
    """Read a run's configuration and build its parts, on one device.

    Args:
        run_dir: the directory of the run, or its address: on the Hugging Face Hub, `hf://owner/name`, or on an object
            store, `s3://bucket/run`.
        trust: whether the configuration may name code outside this package.
        env: the environment of a run that was trained on an object passed from Python.

    Returns:
        The run.

    Raises:
        ConfigError: if the directory holds no run, or its configuration names untrusted code.
    """
    directory = local_run(run_dir)
    run = with_env(parse_config(read_config(directory, _INFERENCE, trust)), env)
    return TrainedRun(directory, set_up(run._replace(arch=run.arch.on_one_device())))


def load_shared(run: TrainedRun, which: str = "best") -> TrainedState:
    """Load the trained state of every member.

    Args:
        run: the run, from `open_run`.
        which: `best`, each member's parameters with the best evaluation; `last`; or the environment steps of a
            checkpoint.

    Returns:
        The state; `best` and `last` come from the newest intact checkpoint.

    Raises:
        ConfigError: if the checkpoint does not exist or is damaged.
    """
    run_dir, steps = run.run_dir, checkpoint.steps(run.run_dir)
    if not steps:
        raise ConfigError(f"run_dir={run_dir} holds no checkpoint: evaluate a run that saved one")
    if which not in ("best", "last") and which not in map(str, steps):
        raise ConfigError(f"which={which} is unknown: use best, last, or one of {', '.join(map(str, steps))}")
    item = "best" if which == "best" else "shared"
    shapes, found = {item: _shapes(run.setup)}, None
    for step in reversed(steps) if which in ("best", "last") else [int(which)]:
        try:
            found = checkpoint.read(run_dir, step, shapes)
            break
        except DamagedError as error:
            print(f"skipping the damaged checkpoint at {step:,} env steps: {error}", file=sys.stderr)
    if found is None:
        raise ConfigError(f"which={which}: all matching checkpoints of {run_dir} are damaged: use another one")
    if item not in found.items:
        raise ConfigError(
            f"which=best: {run_dir} holds no best parameters (checkpoint.keep_best=false, arch.absolute_metric=false):"
            " use last"
        )
    env_steps, returns = _steps_and_returns(found, item)
    shape = (size,) if (size := run.setup.population.num_members) > 1 else ()
    return TrainedState(
        found.items[item],
        np.broadcast_to(env_steps, shape),
        np.broadcast_to(returns, shape),
        _hyperparams(run.setup, found, item),
    )


def load_member(run: TrainedRun, which: str, member: int | str | None) -> TrainedMember:
    """Load the trained state of one member.

    Args:
        run: the run, from `open_run`.
        which: see `load_shared`.
        member: see `choose_member`.

    Returns:
        The state of the member.

    Raises:
        ConfigError: if the checkpoint or the member does not exist.
    """
    state = load_shared(run, which)
    index = choose_member(state, member)
    shared = take_member(state.shared, index) if run.setup.population.num_members > 1 else state.shared
    return TrainedMember(shared, index, int(np.atleast_1d(state.env_steps)[index]), state.hyperparams_of(index))


def choose_member(state: TrainedState, member: int | str | None) -> int:
    """Return the index of a member of a population.

    Args:
        state: the state of all members.
        member: index of the member; `best` or None for the one with the highest evaluation return, or the first one if
            none was evaluated.

    Returns:
        The index of the member, 0 without a population.

    Raises:
        ConfigError: if the member does not exist.
    """
    returns = np.atleast_1d(state.episode_return)
    if isinstance(member, str) and member.isdigit():
        member = int(member)
    if member in (None, "best"):
        return int(np.where(np.isnan(returns), -np.inf, returns).argmax())
    if not isinstance(member, int) or not 0 <= member < returns.size:
        raise ConfigError(f"member={member} does not exist: use best, or 0 to {returns.size - 1}")
    return member


def take_member(tree: Any, member: int) -> Any:
    """Select one member of a tree.

    Args:
        tree: arrays `[P, ...]`.
        member: index of the member, 0 to P - 1.

    Returns:
        Arrays `[...]`.
    """
    return jax.tree.map(lambda leaf: leaf[member], tree)


def _steps_and_returns(found: checkpoint.Checkpoint, item: str) -> tuple[Any, Any]:
    """Return the environment steps and the evaluation return of each member's state."""
    if item == "best":
        best = found.host_state["best"]
        return best["env_steps"], best["episode_return"]
    last = found.host_state["progress"]["history"][-1]
    # A run that stopped between two evaluations did not evaluate its last parameters.
    return found.step, last["eval/episode_return_mean"] if last["env_steps"] == found.step else np.nan


def _hyperparams(setup: RunSetup, found: checkpoint.Checkpoint, item: str) -> Mapping[str, Sequence[float]]:
    """Return the hyperparameters by name, which population-based training changes on the way."""
    if not setup.evolves:
        return setup.population.hyperparams
    return found.host_state["best" if item == "best" else "progress"]["hyperparams"] or setup.population.hyperparams


def _shapes(setup: RunSetup) -> Any:
    """Return the shapes of the shared state of all members, placed on one device."""
    env, size = setup.env, setup.plan.envs_per_shard
    sharding = jax.sharding.SingleDeviceSharding(setup.mesh.devices.flat[0])
    population = setup.population

    def init(hyperparams: dict[str, Any], key: jax.Array) -> Any:
        _, timestep = env.reset(jax.random.split(key, size))
        return setup.build_system(hyperparams).init(key, timestep).shared

    each = jax.vmap(init) if population.num_members > 1 else init
    shapes = jax.eval_shape(each, traced_hyperparams(population), jax.eval_shape(lambda: make_keys(setup)).agent)
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes)
