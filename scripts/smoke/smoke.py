"""Train every system on every kind of environment for two updates, and print what works and what is refused.

    make smoke                                               # all systems, in a quarter of an hour
    make smoke ARGS="--systems sac/ff_sac --kinds image memory"
    python scripts/smoke --into docs/guides/systems.md       # the table into a page, between the markers

On the first kind that a system takes, it trains as a population of two members: the run is restored from the checkpoint
of its first update and must end bit-identical, and the policy of a member is exported and compared with the exported
function. On the other kinds, two updates run. A kind that does not apply to a system has an empty cell. Exits with 1 if
anything failed.
"""

from __future__ import annotations

import argparse
import collections
import copy
import functools
import gc
import multiprocessing
import os
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import yaml
from kinds import KINDS, RECURRENT, WITH_GOALS, networks_for
from omegaconf import DictConfig, OmegaConf
from tiny_data import offline, write_random
from tiny_runs import COMPILED, SIZES

import results

if TYPE_CHECKING:
    from stoix_like.run.set_up.setup import RunSetup

RESUMED = "population, resumed, exported"
OK, REFUSED, FAILED = "✓", "–", "FAILED"
NUM_ENVS = 4
RUN = (
    *COMPILED,
    "logger=silent",
    f"arch.total_num_envs={NUM_ENVS}",
    "arch.num_evaluation=2",
    "arch.num_eval_episodes=2",
    "arch.max_eval_steps=5",
    "arch.absolute_metric=false",
    "checkpoint.keep=3",
)


class Outcome(NamedTuple):
    """The result of a system on a kind of environment: its state, the reason, and the seconds that it took."""

    system: str
    kind: str
    state: str
    reason: str
    seconds: float


def main() -> None:
    """Run the smoke test."""
    from stoix_like import weights
    from stoix_like.composition import group_choices

    systems = group_choices("system")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--systems", nargs="+", choices=systems, default=systems, metavar="SYSTEM")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    cores = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cores, help="processes (default: one per core)")
    parser.add_argument("--into", type=Path, help="page whose text between the markers of results.py is replaced")
    args = parser.parse_args()
    if args.into and (len(args.systems), len(args.kinds)) != (len(systems), len(KINDS)):
        parser.error(f"--into={args.into} replaces the whole table: leave --systems and --kinds out, or --into")
    if args.into and not weights.default_path().exists():
        parser.error("--into: the row of disco_rl/ff_disco103 needs its weights: stoix-like fetch disco103")
    start = time.monotonic()
    outcomes = []
    with multiprocessing.get_context("spawn").Pool(args.jobs) as pool:
        for some in pool.imap_unordered(functools.partial(try_system, kinds=args.kinds), args.systems):
            outcomes += some
            print(f"{some[0].system}: {sum(outcome.seconds for outcome in some):.0f} s", file=sys.stderr, flush=True)
            for outcome in some:
                if outcome.state == FAILED:
                    print(f"  {outcome.kind} failed: {outcome.reason}", file=sys.stderr, flush=True)
    text = table(sorted(outcomes), args.kinds)
    results.replace_block(args.into, text) if args.into else print(text)
    counts = collections.Counter(outcome.state for outcome in outcomes)
    slowest = sorted(outcomes, key=lambda outcome: -outcome.seconds)[:5]
    print(f"\n{counts[OK]} work, {counts[REFUSED]} are refused, {counts[FAILED]} failed", end="; ")
    print(f"{time.monotonic() - start:.0f} s with {args.jobs} processes; slowest:")
    print("\n".join(f"  {outcome.seconds:5.1f} s  {outcome.system}, {outcome.kind}" for outcome in slowest))
    sys.exit(counts[FAILED] > 0)


def try_system(system: str, kinds: Sequence[str]) -> list[Outcome]:
    """Try a system on all kinds, in full on the first that it takes."""
    import jax

    outcomes: list[Outcome] = []
    runs: dict[tuple[str, ...], Outcome] = {}
    gc.disable()  # a tenth of the time of tracing
    for kind in kinds:
        full = not any(outcome.state == OK for outcome in outcomes)
        choices = tuple(commands(system, kind))
        if not choices:
            continue
        # A system only for continuous actions has the same vectors in two kinds.
        run = tuple(" ".join(words) for words in choices)
        outcome = runs[run]._replace(kind=kind, seconds=0.0) if run in runs else attempt(system, kind, choices, full)
        runs[run] = outcome
        outcomes.append(outcome)
        if full and outcome.state != REFUSED:
            outcomes.append(outcome._replace(kind=RESUMED, seconds=0.0))
    jax.clear_caches()
    gc.collect()
    gc.freeze()  # what is left, mostly modules, is not searched again
    return outcomes


def attempt(system: str, kind: str, choices: Sequence[Sequence[str]], full: bool) -> Outcome:
    """Try a system on one kind of environment; `full`: as a population that is saved, resumed and exported."""
    from stoix_like.config import parse_config
    from stoix_like.errors import ConfigError
    from stoix_like.run.set_up.setup import set_up

    start, refusal = time.monotonic(), ""
    check: Callable[[RunSetup], None] = check_resume_and_export if full else check_updates
    state = REFUSED
    data = tempfile.TemporaryDirectory(prefix="smoke-data-")
    try:
        for words in choices:
            try:
                if offline(system):
                    words = with_data(words, Path(data.name, "random.npz"))
                setup = set_up(parse_config(compose([*words, f"arch.population.size={2 if full else 1}"])))
            except ConfigError as error:
                refusal = refusal or str(error)
                continue
            check(setup)
            state = OK
            break
    except Exception as error:  # anything but a refusal is a failure
        where = traceback.extract_tb(error.__traceback__)[-1]
        refusal, state = f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})", FAILED
    finally:
        data.cleanup()
    return Outcome(system, kind, state, "" if state == OK else refusal, time.monotonic() - start)


def compose(words: Sequence[str]) -> DictConfig:
    """Compose a configuration as Hydra does, but the same choices of groups, which take most of the time, only once."""
    groups = tuple(word for word in words if "." not in word.partition("=")[0])
    config = copy.deepcopy(choose(*groups))
    for word in words:
        key, _, value = word.lstrip("+").partition("=")
        if word not in groups:
            OmegaConf.update(config, key, yaml.safe_load(value), force_add=True)
    return config


@functools.cache
def choose(*groups: str) -> DictConfig:
    """Compose the configuration of some choices."""
    from stoix_like.composition import compose_config

    return compose_config(groups)


def with_data(words: Sequence[str], path: Path) -> list[str]:
    """Return the overrides of a run of two updates on random data, which are written once."""
    if not path.exists():
        write_random(path, words)
    others = [word for word in words if not word.startswith(("arch.total_timesteps=", "arch.total_num_envs="))]
    return [*others, "arch=offline", f"arch.total_timesteps={2 * SIZES['epochs']}", f"system.data={path}"]


def commands(system: str, kind: str) -> Iterator[list[str]]:
    """Yield overrides of a tiny run, one list per network that may fit; none where the kind does not apply."""
    default, sizes, is_continuous, needs_goals = about(system)
    if kind not in (kinds := WITH_GOALS if needs_goals else KINDS):
        return
    if kinds[kind].recurrent and not default.startswith(RECURRENT):
        return
    warmup = SIZES["warmup_steps"] if "warmup_steps" in sizes else 0
    steps = NUM_ENVS * (warmup + 2 * SIZES["rollout_length"])
    environment, continuous = kinds[kind].environment, kinds[kind].continuous
    for network in networks_for(default, kinds[kind]):
        yield [
            f"system={system}",
            f"network={network}",
            "env=own",
            *RUN,
            *(f"system.{name}={SIZES[name]}" for name in sizes),
            f"arch.total_timesteps={steps}",
            f"env._target_={environment.__module__}.{environment.__name__}",
            f"+env.kwargs.continuous={is_continuous if continuous is None else continuous}",
        ]


@functools.cache
def about(system: str) -> tuple[str, list[str], bool, bool]:
    """Return the default network of a system, the names of its sizes, whether it takes continuous actions only, and
    whether it needs goals."""
    from stoix_like.composition import compose_config
    from stoix_like.config import parse_config
    from stoix_like.envs import Discrete
    from stoix_like.envs.spaces import fits

    composed = compose_config([f"system={system}"], return_hydra_config=True)
    network = composed.hydra.runtime.choices["network"]
    sizes = [name for name in SIZES if name in composed.system]
    config = parse_config(composed).system
    return network, sizes, not fits(config, Discrete(2)), config.needs_goals


def check_updates(setup: RunSetup) -> None:
    """Train two updates."""
    import jax
    import numpy as np

    from stoix_like.assembly import inputs_of
    from stoix_like.run.programs.functions import make_keys, run_programs, traced_hyperparams

    programs, inputs = run_programs(setup), inputs_of(setup.spec)
    keys, hyperparams = make_keys(setup), traced_hyperparams(setup.population)
    state = next(programs).function(hyperparams, keys.agent, keys.shards, inputs)
    _, metrics = next(programs).function(state, hyperparams, np.int32(2), np.bool_(True), inputs)
    if offline(setup.config.system_name):
        metrics = metrics._replace(episodes=())
    finite = {
        jax.tree_util.keystr(path): bool(np.all(np.isfinite(leaf))) for path, leaf in jax.tree.leaves_with_path(metrics)
    }
    assert all(finite.values()), f"metrics are not finite: {finite}"


def check_resume_and_export(setup: RunSetup) -> None:
    """Train two updates, train the second again from the checkpoint after the first, and export a policy."""
    import stoix_like
    from stoix_like.loggers import MultiLogger
    from stoix_like.run.training_loop import TrainingLoop
    from stoix_like.storage import checkpoint
    from stoix_like.storage.checksums import checksums
    from stoix_like.storage.run_directory import RunDirectory

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
        stoix_like.load_policy(run_dir, which="last").export(Path(place, "policy.stablehlo"))


def table(outcomes: Sequence[Outcome], kinds: Sequence[str]) -> str:
    """Return the table of the systems and kinds in Markdown, with the refusals below."""
    states = {(outcome.system, outcome.kind): outcome for outcome in outcomes}
    reasons: dict[str, int] = {}
    columns = [*kinds, RESUMED]
    rows = [["system", *columns], ["---"] * (1 + len(columns))]
    for system in dict.fromkeys(outcome.system for outcome in outcomes):
        cells = []
        for kind in columns:
            outcome = states.get((system, kind))
            cell = outcome.state if outcome else ""
            if outcome and outcome.state == REFUSED:
                # Systems are refused for the same reason, each by its name.
                reason = re.sub(rf"system={system}(?!\w)", "a system", outcome.reason)
                cell += f" [{reasons.setdefault(reason, len(reasons) + 1)}]"
            cells.append(cell)
        rows.append([f"`{system}`", *cells])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([*lines, "", *(f"{number}. {reason}" for reason, number in reasons.items())])
