"""Check that a code change leaves every result unchanged, byte by byte.

Train every system but disco_rl/ff_disco103, whose weights are a download, briefly, alone, as a population, and on 2
devices x 2 update batches, with the code of a git revision and with that of the working tree, and compare the
`metrics.jsonl` files, except for wall-clock times. Systems of `offline` learn from random steps.

    python scripts/byte_check.py main
"""

from __future__ import annotations

import argparse
import concurrent.futures
import difflib
import functools
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Collection
from pathlib import Path

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import Discrete
from stoix_like.envs.spaces import fits

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts/soak"))

import tiny_runs  # noqa: E402
from tiny_data import offline, write_random  # noqa: E402

LEFT_OUT = "disco_rl/ff_disco103"
# The only fields of a record that differ between two equal runs.
TIMES = ("wall_seconds", "steps_per_second")
COMMON = (
    "logger=silent",
    "arch.compile_cache=false",
    "arch.total_num_envs=8",
    "arch.num_evaluation=2",
    "arch.num_eval_episodes=4",
    "arch.max_eval_steps=100",
    "checkpoint.keep=0",
    "env.time_limit=50",
)
# Of a system, at most these: epochs and minibatches repeat, and the batch divides over the shards of every layout.
SIZES = tiny_runs.SIZES | {
    "epochs": 4,
    "num_minibatches": 2,
    "total_buffer_size": 1024,
    "total_batch_size": 16,
    "sequence_length": 8,
    "online_sequences": 4,
}
LAYOUTS = {
    "alone": ("arch.num_devices=1",),
    "population": (
        "arch.num_devices=1",
        "arch.population.size=3",
        "arch.population.hyperparams={gamma: [0.9, 0.95, 0.99]}",
    ),
    "shards": ("arch.num_devices=2", "arch.update_batch_size=2"),
}
# Features that are off by default: wrappers, automatic resets, normalisation, delayed updates, correlated noise.
VARIANTS = {
    "ppo-pool": ("ppo/ff_ppo", "env.auto_reset=pool", "env.frame_stack=3", "env.step_count=true"),
    "ppo-optimistic": ("ppo/ff_ppo", "env.auto_reset=optimistic", "env.reward_scale=0.5", "env.reward_clip=0.4"),
    "ppo-cached": ("ppo/ff_ppo", "env=gymnax/breakout", "env.auto_reset=cached", "env.flatten_observation=true"),
    "ppo-pendulum": ("ppo/ff_ppo", "env=gymnax/pendulum", "system.normalize_observations=true"),
    "ppo-multi-discrete": ("ppo/ff_ppo", "env=probe/multi_discrete", "arch.evaluation_greedy=false"),
    "sac-delayed": ("sac/ff_sac", "system.policy_frequency=2", "system.noise_correlation=0.7"),
    "td3-n-step": ("ddpg/ff_td3", "system.n_step=3", "system.store_next_observation=false"),
}


def main() -> None:
    """Train with both versions of the code and compare; exit with 1 if anything differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("revision", help="a branch, a tag or a commit to compare with")
    parser.add_argument("--only", default="", help="only cases whose name contains this text")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel runs (default: one per core)")
    parser.add_argument(
        "--keep",
        type=lambda text: Path(text).resolve(),
        help="a directory that keeps the runs of the revision for the next call",
    )
    parser.add_argument(
        "--ignore", nargs="+", default=(), metavar="METRIC", help="metrics to leave out, such as new ones"
    )
    args = parser.parse_args()
    ignored = {*TIMES, *args.ignore}
    cases = {name: overrides for name, overrides in all_cases().items() if args.only in name}
    if not cases:
        parser.error(f"--only {args.only}: no case has this text in its name; use one of {', '.join(all_cases())}")
    with tempfile.TemporaryDirectory() as scratch:
        commit = git("rev-parse", args.revision).strip()
        before = (args.keep or Path(scratch)) / commit
        source, changed = Path(scratch) / "before", Path(scratch) / "after"
        extract(commit, source)
        # A copy, so that the working tree may change meanwhile.
        for directory in ("stoix_like", "configs"):
            shutil.copytree(ROOT / directory, changed / directory)
        with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
            runs = {
                name: (
                    pool.submit(records, source, before / name, overrides, ignored),
                    pool.submit(records, changed, Path(scratch) / "runs" / name, overrides, ignored),
                )
                for name, overrides in cases.items()
            }
            different = [name for name, pair in runs.items() if not report(name, *(run.result() for run in pair))]
    print(f"{len(cases) - len(different)} of {len(cases)} runs are equal, byte by byte; {LEFT_OUT} is left out")
    sys.exit(bool(different))


def all_cases() -> dict[str, tuple[str, ...]]:
    """Return the overrides of every run, by its name."""
    files = sorted((ROOT / "configs" / "system").glob("*/[!_]*.yaml"))
    systems = [system for file in files if (system := f"{file.parent.name}/{file.stem}") != LEFT_OUT]
    cases = {f"{system} {layout}": (system, *LAYOUTS[layout]) for system in systems for layout in LAYOUTS}
    cases |= {
        f"{name} {layout}": (*variant, *LAYOUTS[layout]) for name, variant in VARIANTS.items() for layout in LAYOUTS
    }
    return {name: overrides_of(*case) for name, case in cases.items()}


def overrides_of(system: str, *overrides: str) -> tuple[str, ...]:
    """Return the overrides of one run."""
    sizes, env, discounts = settings_of(system)
    chosen = () if any(override.startswith("env=") for override in overrides) else (env,)
    # Cloning has no discount to vary.
    fitting = (override for override in overrides if discounts or "{gamma:" not in override)
    words = (f"system={system}", *chosen, *COMMON, *sizes, *fitting)
    return (*words, "arch=offline", f"system.data={random_data(env)}") if offline(system) else words


@functools.cache
def random_data(env: str) -> Path:
    """Write random steps of an environment, the same in every call, and return the file."""
    path = Path(tempfile.mkdtemp(prefix="byte-check-"), "random.npz")
    write_random(path, (env, "env.time_limit=50"))
    return path


@functools.cache
def settings_of(system: str) -> tuple[tuple[str, ...], str, bool]:
    """Return the sizes of the runs of a system, an environment that it takes, and whether it has a discount."""
    composed = compose_config([f"system={system}"])
    has_replay = "total_buffer_size" in composed.system
    given = SIZES if has_replay else {**SIZES, "rollout_length": 16}
    sizes = {name: min(size, composed.system[name]) for name, size in given.items() if composed.system.get(name)}
    env = "cartpole" if fits(parse_config(composed).system, Discrete(2)) else "pendulum"
    budget = f"arch.total_timesteps={640 if has_replay else 1024}"
    words = (budget, *(f"system.{name}={size}" for name, size in sizes.items()))
    return words, f"env=gymnax/{env}", "gamma" in composed.system


def extract(commit: str, directory: Path) -> None:
    """Extract the files of a commit."""
    directory.mkdir()
    archive = directory.with_suffix(".tar")
    git("archive", "--output", str(archive), commit)
    with tarfile.open(archive) as files:
        files.extractall(directory, filter="data")


def records(source: Path, run_dir: Path, overrides: tuple[str, ...], ignored: Collection[str]) -> list[str]:
    """Train with the code in `source`; return the lines of `metrics.jsonl` without the ignored metrics."""
    metrics = run_dir / "metrics.jsonl"
    if not (run_dir / "summary.json").exists():
        shutil.rmtree(run_dir, ignore_errors=True)  # what an earlier call left unfinished
        environment = {**os.environ, "PYTHONPATH": str(source), "JAX_NUM_CPU_DEVICES": "2", "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-c", "from stoix_like.cli import main; main()", "train", *overrides]
        done = subprocess.run(
            [*command, f"hydra.run.dir={run_dir}"],
            cwd=source,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return [f"exit {done.returncode}: {done.stderr.strip()[-2000:]}"]
    kept = []
    for line in metrics.read_text().splitlines():
        record = json.loads(line)
        kept.append(json.dumps({name: value for name, value in record.items() if name not in ignored}))
    return kept


def report(name: str, before: list[str], after: list[str]) -> bool:
    """Print whether two runs are equal, and how they differ; return whether they are equal."""
    failures = [line for line in (*before, *after) if line.startswith("exit ")]
    equal = before == after and not failures
    print(f"{'equal' if equal else 'BOTH FAIL' if len(failures) == 2 else 'DIFFERENT':9} {name}", flush=True)
    if before == after and failures:
        print(f"    both: {after[-1][:600]}")
    elif not equal:
        for line in difflib.unified_diff(before, after, "before", "after", lineterm="", n=0):
            print(f"    {line[:600]}")
    return equal


def git(*arguments: str) -> str:
    """Run git and return its output."""
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True).stdout


if __name__ == "__main__":
    main()
