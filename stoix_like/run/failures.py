"""Diverged members, and the parameters of a run without a usable checkpoint."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.types import IntervalMetrics, LearnerState
from stoix_like.envs.spaces import Box
from stoix_like.processes import Processes
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.checkpoint import Writer
from stoix_like.storage.files import replaced
from stoix_like.storage.run_files import PARAMETERS
from stoix_like.utils.jax_utils import named


def divergences(
    setup: RunSetup, interval: IntervalMetrics, state: LearnerState, updates: tuple[int, int], known: Collection[int]
) -> dict[int, str]:
    """Describe what became non-finite in an interval."""
    failures = {}
    for member, healthy_updates in enumerate(np.atleast_1d(interval.healthy_updates)):
        if updates[0] + int(healthy_updates) == updates[1] or member in known:
            continue
        bad = [f"train/{name}" for name, flags in interval.bad_metrics.items() if np.atleast_1d(flags)[member]]
        what, update = bad[0] if bad else "a parameter", updates[0] + int(healthy_updates) + 1
        given = [f"{each} of {setup.config.environment_name}" for each in _bad_inputs(setup, interval, state, member)]
        # In later updates, a diverged policy may act with NaN, and earn it.
        earned = isinstance(setup.env.action_space, Box) and update < updates[1]
        clauses = [what, *given] if earned else [*given, what]
        failures[member] = f"{' and '.join(clauses)} became non-finite in update {update}"
    return failures


def _bad_inputs(setup: RunSetup, interval: IntervalMetrics, state: LearnerState, member: int) -> list[str]:
    """Return what is not finite: statistics or the last one of observations, returns of the interval or under way."""
    statistics = {name: leaf for name, leaf in named(state.shared).items() if name.startswith("statistics")}
    views, returns = [*setup.processes.fetch(statistics).values()], [interval.episodes.return_sum.total]
    # Actors have their own episodes; the host checks their rewards.
    if (rollout_state := state.shards.rollout_state) != ():
        timestep = setup.processes.fetch(rollout_state.timestep)
        views += jax.tree.leaves(timestep.observation.agent_view)
        returns.append(timestep.episode.episode_return)
    return [
        what
        for what, arrays in (("an observation", views), ("a reward", returns))
        if not all(np.isfinite(np.reshape(each, (setup.population.num_members, -1))[member]).all() for each in arrays)
    ]


def last_good(writer: Writer | None) -> str:
    """Name the newest checkpoint of a diverged run."""
    if writer is not None:
        writer.wait()
        if writer.newest is not None:
            return f"the last good checkpoint is {writer.directory / str(writer.newest)}"
    return "no checkpoint had been written"


def rescue(shared: Any, writer: Writer, processes: Processes) -> str:
    """Write the trained parameters where no checkpoint could be written; return where they are."""
    # Parts of some systems hold random keys, which numpy has no type for.
    leaves = {name: leaf for name, leaf in named(shared).items() if not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)}
    path, arrays = writer.run_dir / PARAMETERS, processes.fetch(leaves)

    def write() -> str:
        try:
            with replaced(path) as file:
                np.savez(file, **arrays)
        except OSError as error:
            return f"its parameters could not be written either ({error}); free space or choose another directory"
        return f"its parameters and statistics are in {path}, by path, for numpy.load"

    return processes.first(write)
