"""Train every task of MuJoCo Playground for two updates with the installed jax, and write the table of the guide.

    python scripts/playground_tasks.py --assets DIRECTORY --into docs/guides/environments.md

Each task is a process. Tasks that the record has for this jax are skipped, and robots without models.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

import jax
from mujoco_playground import dm_control_suite, locomotion, manipulation

RECORD = Path(__file__).with_suffix(".json")
FAMILIES = {"DeepMind Control": dm_control_suite, "locomotion": locomotion, "manipulation": manipulation}
BEGIN, END = "<!-- tasks of Playground -->\n", "<!-- end of tasks -->"
TINY = (
    *("+experiment=_ppo_brax", "env=playground", "arch.total_num_envs=2", "arch.total_timesteps=8"),
    # Start states as by the wrapper of the suite; programs are smaller without a reset in each step.
    *("env.auto_reset=cached", "arch.num_evaluation=1", "arch.num_eval_episodes=1", "arch.max_eval_steps=2"),
    *("arch.absolute_metric=false", "arch.num_devices=1", "system.rollout_length=2", "system.epochs=1"),
    "system.num_minibatches=1",
)
Record = dict[str, dict[str, str]]
"""By task and version of jax, why a task does not train; empty if it does."""


def main() -> None:
    """Train the tasks that the record lacks, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assets", nargs="*", default=[], help="directories like a checkout of mujoco_menagerie")
    parser.add_argument("--into", type=Path, help="page of the documentation that has the table")
    asked = parser.parse_args()
    record: Record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    for name in (name for family in FAMILIES.values() for name in family.ALL_ENVS):
        if jax.__version__ not in record.setdefault(name, {}):
            reason = train(name, asked.assets)
            print(name, reason or "trains", flush=True)
            if reason is not None:
                record[name][jax.__version__] = reason
                RECORD.write_text(json.dumps(record, indent=1) + "\n")
    if asked.into:
        before, _, rest = asked.into.read_text().partition(BEGIN)
        asked.into.write_text(f"{before}{BEGIN}{''.join(table(record))}{rest[rest.index(END) :]}")


def train(name: str, directories: Iterable[str]) -> str | None:
    """Return why a task does not train for two updates, empty if it does, and None without models for it."""
    in_suite = name in dm_control_suite.ALL_ENVS
    for assets in [None] if in_suite else directories:
        overrides = [f"env.scenario.name={name}", *([f"env.assets={assets}"] if assets else [])]
        with tempfile.TemporaryDirectory() as directory:
            program = Path(sys.executable).with_name("stoix-like")
            command = [program, "train", *TINY, *overrides, f"hydra.run.dir={directory}"]
            run = subprocess.run(command, capture_output=True, text=True, check=False)
        reason = "" if run.returncode == 0 else run.stderr.strip().splitlines()[-1]
        if "of mujoco_menagerie" not in reason and "does not fit" not in reason:
            return reason
    return None


def table(record: Record) -> Iterable[str]:
    """Yield the lines of the table, and of what does not train."""
    versions = sorted({version for results in record.values() for version in results})
    yield "\nTasks that train for two updates on a CPU, of those tried by `python scripts/playground_tasks.py`:\n\n"
    yield f"| | {' | '.join(f'jax {version}' for version in versions)} |\n"
    yield f"|---|{'---|' * len(versions)}\n"
    for title, family in FAMILIES.items():
        tried = [[record[name][v] for name in family.ALL_ENVS if v in record.get(name, {})] for v in versions]
        counts = (f"{len([one for one in reasons if not one])} of {len(reasons)}" for reasons in tried)
        yield f"| {title} | {' | '.join(counts)} |\n"
    yield "\n"
    for name, results in record.items():
        for version, reason in results.items():
            if reason:
                yield f"- {name}, jax {version}: {reason}\n"


if __name__ == "__main__":
    main()
