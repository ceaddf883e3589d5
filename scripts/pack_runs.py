"""Pack finished runs as one data set in the layout of the Hugging Face Hub: `scripts/results.py --pack DIR RUNS`.

`runs.jsonl` has one row per run, and `runs/NAME` is a run directory with configuration, metrics, summary and best
policy, for `stoix-like evaluate`, `load_policy` and `scripts/results.py`. Optimisers and replay are left out, and
absolute paths, except for their last part.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import yaml

import results
from stoix_like.errors import ConfigError, DamagedError
from stoix_like.policies.load import TrainedRun, TrainedState, choose_member, load_shared, open_run
from stoix_like.policies.make import make_policy
from stoix_like.storage import checkpoint
from stoix_like.storage.returns import lacks_best
from stoix_like.storage.run_files import CONFIG, ENVIRONMENT, METRICS, SUMMARY
from stoix_like.utils.jax_utils import named, replace_named, take_member, used_inputs

INDEX, CARD = "runs.jsonl", "README.md"
_FILES = (CONFIG, ENVIRONMENT, METRICS, SUMMARY, ".hydra/config.yaml", ".hydra/overrides.yaml")
# The directories of an absolute path at the start of a word.
_DIRECTORIES = re.compile(r"""(?<![^\s"'=,:\[({])(?:file:/*(?=/)|~)?/(?=[^\s"'/])(?:[^\s"'/,]*/)*(?=[^\s"'/])""")
_METADATA = {
    "license": "apache-2.0",
    "pretty_name": "Runs of stoix_like",
    "tags": ["reinforcement-learning", "jax", "stoix_like"],
    "configs": [{"config_name": "default", "data_files": INDEX}],
}
_TEXT = """# Runs of stoix_like

`runs.jsonl` has one row per run, with its command and its returns by seed. Each `directory` is a run directory:

    stoix-like evaluate runs/NAME
    python -c "import stoix_like; print(stoix_like.load_policy('runs/NAME'))"

The column `policy` says which seeds have one: every seed, the best seed, or none, where the run would have more than
{max_kb} kB. Parameters that no action depends on, such as critics, are NaN. A packed run cannot be resumed.
"""


def pack(directory: Path, runs: Sequence[Path], max_kb: int = 300) -> list[str]:
    """Write the data set to a new directory; return the runs that were left out, each with the reason.

    `max_kb`: the largest size of a run, in 1,000 bytes.
    """
    if directory.exists() and any(directory.iterdir()):
        raise ConfigError(f"--pack {directory} holds files: choose a new directory; packed runs can be packed again")
    rows, cells, refused = [], [], list[str]()
    for run in runs:
        try:
            members = results.read_counted(run)
            formatted = [results.format_row(group, None) for group in results.group(members)]
            row = _row(members)
            place = directory / row["directory"]
            if place.exists():
                raise ConfigError("it is packed already, from another directory")
            row["policy"] = _write(run, place, max_kb)
        except (ConfigError, DamagedError) as error:
            refused.append(f"{run}: {error}")
            continue
        rows.append(row)
        for one in formatted:
            del one["command"]  # long, and in the index
            cells.append({**one, "policy": row["policy"] or "none", "directory": row["directory"]})
    if rows:
        (directory / INDEX).write_text("".join(json.dumps(row) + "\n" for row in rows))
        front, table = yaml.safe_dump(_METADATA, sort_keys=False), "\n".join(results.format_table(cells))
        (directory / CARD).write_text(f"---\n{front}---\n\n{_TEXT.format(max_kb=max_kb)}\n{table}\n")
    return refused


def relative(text: str) -> str:
    """Return a text with only the last part of each absolute path."""
    return _DIRECTORIES.sub("", text)


def _row(members: Sequence[results.Member]) -> dict[str, Any]:
    """Return the row of a run in the index; runs of equal configurations have equal names."""
    run = members[0].run
    env_steps, config = int(run.config["arch"]["total_timesteps"]), relative((run.directory / CONFIG).read_text())
    names = (name.split("/")[-1] for name in (run.system, run.environment, results.format_steps(env_steps)))
    digest = hashlib.sha256(config.encode()).hexdigest()[:6]
    return {
        "directory": f"runs/{'-'.join(names)}-seed{members[0].seed}-{digest}",
        "system": run.system,
        "environment": run.environment,
        "env_steps": env_steps,
        "seeds": [member.seed for member in members],
        "hyperparams": [json.dumps(member.recorded.hyperparams) for member in members],
        "final_returns": [None if math.isnan(member.final) else member.final for member in members],
        "best_returns": [member.best for member in members],
        "versions": run.summary.get("versions"),
        "devices": run.summary.get("devices"),
        "command": relative(results.commands(members)[0]),
    }


def _write(run_dir: Path, place: Path, max_kb: int) -> str | None:
    """Write a packed run; return the seeds with a policy, None if no policy is small enough."""
    run = open_run(run_dir)
    state = load_shared(run)
    best = choose_member(state, None)
    names = _needed(run, state, best)
    for path in filter(Path.exists, (run_dir / name for name in _FILES)):
        copy = place / path.relative_to(run_dir)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(relative(path.read_text()))
    if not _fits(place, max_kb):
        shutil.rmtree(place)
        raise ConfigError(f"it has more than {max_kb} kB without a policy")
    for kept, members in (("every seed", slice(None)), ("best seed", best)):
        _write_policy(run, state, names, members, place)
        if _fits(place, max_kb):
            return kept
        shutil.rmtree(place / checkpoint.DIRECTORY)
    return None


def _fits(place: Path, max_kb: int) -> bool:
    return sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) <= 1000 * max_kb


def _needed(run: TrainedRun, state: TrainedState, member: int) -> frozenset[str]:
    """Return the names of the arrays that actions depend on; of a system that plans, all but the optimisers'."""
    shared = take_member(state.shared, member) if state.env_steps.ndim else state.shared
    leaves, names = named(shared), frozenset[str]()
    if run.setup.config.system.policy_hyperparams:
        return frozenset(name for name in leaves if not name.startswith("opt_states"))
    for greedy in {False, run.setup.config.system.has_mode}:
        policy = make_policy(run.setup, shared, state.hyperparams_of(member), greedy=greedy)
        arrays = policy.random_arguments(jax.random.key(0), run.setup.spec.num_agents)

        def act(given: Any, policy: Any = policy, arrays: Any = arrays) -> Any:
            return policy.with_state(replace_named(shared, given), 0).act_on(arrays, jax.random.key(0))

        names |= used_inputs(act, leaves)
    return names


def _write_policy(run: TrainedRun, state: TrainedState, names: frozenset[str], members: Any, place: Path) -> None:
    """Write a checkpoint of the best parameters, with NaN in the place of others, which compresses well."""

    def kept(name: str, leaf: jax.Array) -> jax.Array:
        nothing = jnp.full_like(leaf, jnp.nan)
        if name not in names:
            return nothing
        return nothing.at[members].set(leaf[members]) if state.env_steps.ndim else leaf

    floats = {name: leaf for name, leaf in named(state.shared).items() if jnp.issubdtype(leaf.dtype, jnp.inexact)}
    best = replace_named(state.shared, {name: kept(name, leaf) for name, leaf in floats.items()})
    step = checkpoint.steps(run.run_dir)[-1]
    host_state = checkpoint.read_host_state(run.run_dir, step)
    # Of members without best parameters, the last ones are loaded, which `state` already has.
    items = ("best", "shared") if "best" in host_state and lacks_best(host_state).any() else ("best",)
    writer = checkpoint.Writer(place, keep=1)
    writer.save(step, dict.fromkeys(items, best), json.loads(relative(json.dumps(host_state))))
    writer.close()
    if not writer.usable:
        raise ConfigError(f"{place}: the policy was not written")
    # The devices that each array was on; the loader chooses its own.
    (place / checkpoint.DIRECTORY / str(step) / "best/_sharding").unlink()
    for path in place.rglob("commit_success.txt"):
        path.write_text(relative(path.read_text()))
