"""Train, save, resume and export every system on every kind of environment, and print what works and what is refused.

    python scripts/smoke                                     # all systems, in minutes
    python scripts/smoke --systems sac/ff_sac --kinds image continuous
    python scripts/smoke --into docs/guides/systems.md       # the table into a page, between the markers

Each run trains two updates and evaluates after each. It is then restored from the checkpoint of its first update, and
must end bit-identical; its policy is exported, and the exported function compared with it. A population of two members
follows on the first kind that a system takes. Exits with 1 if anything failed.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import results
from kinds import KINDS, networks_for
from tiny_runs import SIZES

POPULATION = "population"
OK, REFUSED, FAILED = "yes", "refused", "FAILED"
RUN = (
    "logger=silent",
    "arch.num_devices=1",
    "arch.hoist_randomness=false",
    "arch.num_evaluation=2",
    "arch.num_eval_episodes=2",
    "arch.max_eval_steps=5",
    "arch.absolute_metric=false",
    "checkpoint.keep=3",
)


class Outcome(NamedTuple):
    """What became of a system on a kind of environment: its state, why, and the seconds that it took."""

    system: str
    kind: str
    state: str
    reason: str
    seconds: float


def main() -> None:
    """Run the smoke test."""
    from stoix_like.composition import group_choices

    systems = group_choices("system")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM")
    parser.add_argument("--kinds", nargs="+", choices=[*KINDS, POPULATION], default=[*KINDS, POPULATION])
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="processes (default: one a core)"
    )
    parser.add_argument("--into", type=Path, help="page whose text between the markers of results.py is replaced")
    args = parser.parse_args()
    start = time.monotonic()
    jobs = [(system, tuple(args.kinds)) for system in args.systems]
    context = multiprocessing.get_context("spawn")
    with context.Pool(args.jobs, maxtasksperchild=8) as pool:
        outcomes = []
        for found in pool.imap_unordered(try_system, jobs):
            outcomes += found
            for outcome in found:
                if outcome.state == FAILED:
                    print(f"{outcome.system} on {outcome.kind}: {outcome.reason}", file=sys.stderr, flush=True)
    outcomes.sort()
    text = table(outcomes, args.kinds)
    results.replace_block(args.into, text) if args.into else print(text)
    counts = collections.Counter(outcome.state for outcome in outcomes)
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    print(f"\n{counts[OK]} work, {counts[REFUSED]} are refused, {counts[FAILED]} failed", end="; ")
    print(f"{time.monotonic() - start:.0f} s with {args.jobs} processes; slowest:")
    print("\n".join(f"  {outcome.seconds:5.1f} s  {outcome.system} on {outcome.kind}" for outcome in slowest))
    sys.exit(counts[FAILED] > 0)


def try_system(job: tuple[str, tuple[str, ...]]) -> list[Outcome]:
    """Try a system on all kinds, and as a population of two."""
    system, kinds = job
    outcomes = [try_kind(system, kind) for kind in kinds if kind != POPULATION]
    works = [outcome.kind for outcome in outcomes if outcome.state == OK]
    if POPULATION in kinds and works:
        outcomes.append(try_kind(system, works[0], members=2))
    return outcomes


def try_kind(system: str, kind: str, members: int = 1) -> Outcome:
    """Try a system on one kind of environment."""
    from stoix_like.errors import ConfigError

    start, refusal = time.monotonic(), ""
    name = kind if members == 1 else POPULATION
    state = REFUSED
    try:
        for words in commands(system, kind):
            try:
                train_and_resume([*words, f"arch.population.size={members}"])
                state = OK
                break
            except ConfigError as error:
                refusal = refusal or str(error)
    except Exception as error:  # whatever a system raises is what is looked for
        where = traceback.extract_tb(error.__traceback__)[-1]
        refusal, state = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})", FAILED
    return Outcome(system, name, state, "" if state == OK else refusal, time.monotonic() - start)


def commands(system: str, kind: str) -> Iterator[list[str]]:
    """Yield overrides of a tiny run, one list per network that may fit."""
    from stoix_like.composition import compose_config

    composed = compose_config([f"system={system}"], return_hydra_config=True)
    sizes = [f"system.{name}={size}" for name, size in SIZES.items() if name in composed.system]
    environment, num_envs = KINDS[kind].environment, 4
    warmup = SIZES["warmup_steps"] if "warmup_steps" in composed.system else 0
    steps = num_envs * (warmup + 2 * SIZES["rollout_length"])
    words = [f"system={system}", *RUN, *sizes, f"arch.total_num_envs={num_envs}", f"arch.total_timesteps={steps}"]
    for network in networks_for(composed.hydra.runtime.choices["network"], KINDS[kind]):
        yield [*words, f"network={network}", f"env._target_={environment.__module__}.{environment.__name__}"]


def train_and_resume(words: Sequence[str]) -> None:
    """Train two updates, train the second again from the checkpoint after the first, and export the policy."""
    import jax

    import stoix_like
    from stoix_like.composition import compose_config
    from stoix_like.config import parse_config
    from stoix_like.loggers import MultiLogger
    from stoix_like.run.setup import set_up
    from stoix_like.run.training_loop import TrainingLoop
    from stoix_like.storage import checkpoint
    from stoix_like.storage.checksums import checksums
    from stoix_like.storage.run_directory import RunDirectory

    setup = set_up(parse_config(compose_config(list(words))))
    with tempfile.TemporaryDirectory(prefix="smoke-") as place:
        run_dir = Path(place, "run")
        directory = RunDirectory(run_dir, setup.processes)
        with directory.own(setup.config.checkpoint):
            directory.write_config(setup.config.resolved)
            loop = TrainingLoop(setup, MultiLogger([]), checkpoint.Writer(run_dir, 3), directory=directory)
            loop.train()
            whole = checksums({"state": checkpoint.named(loop.state)})
            loop.writer.wait()
            first, last = checkpoint.steps(run_dir)[-2:]
            loop.restore(checkpoint.read(run_dir, first, loop.targets()))
            assert loop.env_steps == first < last
            loop.train()
            assert checksums({"state": checkpoint.named(loop.state)}) == whole, "the resumed run differs"
            loop.writer.close()
        policy = stoix_like.load_policy(run_dir, which="last")
        policy.export(Path(place, "policy.stablehlo"))
    jax.clear_caches()


def table(outcomes: Sequence[Outcome], kinds: Sequence[str]) -> str:
    """Return the table of the systems and kinds in Markdown, with the refusals below."""
    states = {(outcome.system, outcome.kind): outcome for outcome in outcomes}
    reasons: dict[str, int] = {}
    rows = [["system", *kinds], ["---"] * (1 + len(kinds))]
    for system in dict.fromkeys(outcome.system for outcome in outcomes):
        cells = []
        for kind in kinds:
            outcome = states.get((system, kind))
            if outcome is None or outcome.state == OK:
                cells.append("" if outcome is None else "✓")
            elif outcome.state == REFUSED:
                cells.append(f"– [{reasons.setdefault(outcome.reason, len(reasons) + 1)}]")
            else:
                cells.append(FAILED)
        rows.append([f"`{system}`", *cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"{number}. {reason}" for reason, number in reasons.items())])
