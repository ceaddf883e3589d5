"""Set keys of the configuration to wrong values: a clean set-up, or one line and exit code 2."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from tiny_runs import REFUSED, Bench, Outcome, complaints, composed, overrides

MEMORY = 4 * 2**30  # bytes beyond those of the imports
SECONDS = 30  # of CPU time
VALUES = (
    *("abc", "''", "null", "true", "no", "???", "'${env.env_name}'", "/nowhere/x", "s3://x"),
    *("[]", "{}", "[1, 2]", "[a]", "{a: 1}", "{uniform: 3}", "[null]", "[[[[1]]]]", "[" * 300 + "]" * 300),
    *("{_target_: abc}", "{_target_: os.getcwd}", "{_target_: 3}"),
    *("0", "-1", "1", "0.5", "1.5", "-0.0", "nan", "inf", "-inf", "1e-300", "1e400", "1" + "0" * 400),
    *("1e5", "2147483647", "2147483648", "1e9", "1e10", "9223372036854775808", "1e18", "1e40"),
)
UNKNOWN = 0.1  # probability of an unknown key
VALUE = "VALUE"
POPULATION = "arch.population={size: 4, hyperparams: {KEY: VALUE}}"
PBT = "arch.population={size: 4, hyperparams: {KEY: [1, 1, 1, 1]}, pbt: {every_evals: 1, bounds: {KEY: VALUE}}}"
# Valid arguments of the callbacks that a configuration can name.
CALLBACKS = {
    "StopAtReturn": {"episode_return": "1"},
    "StopWithoutImprovement": {"evaluations": "1", "min_improvement": "0"},
    "AddMetrics": {"function": "os.getcwd"},
    "EvaluatePolicy": {"function": "os.getcwd", "every_evals": "1"},
}


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Set up one configuration with one wrong value, with limits of memory and time."""
    arguments = draw(rng, bench.in_turn(bench.once("places", lambda: list(places())), index))
    bench.commands.append(f"(ulimit -v {MEMORY // 1024}; stoix-like train {shlex.join(arguments)})")
    done = bench.call("fuzz:probe", arguments, RLIMIT_AS=MEMORY, RLIMIT_CPU=SECONDS)
    problems = complaints(done)
    if not problems and done.code == REFUSED and len(done.err.strip().splitlines()) != 1:
        problems = [f"refused in {len(done.err.strip().splitlines())} lines: {done.err.strip()[:200]!r}"]
    verdict = "" if problems else " (refused)" if done.code == REFUSED else " (set up)"
    return Outcome(f"{' '.join(arguments)}{verdict}", problems, bench.commands)


def places() -> Iterator[tuple[str, ...]]:
    """Yield overrides with room for a value: every key of every group, of populations, and of callbacks."""
    from omegaconf import OmegaConf

    from stoix_like.composition import group_choices

    seen = set()
    for group in ("system", "network", "arch", "checkpoint", "logger", "env"):
        choices = group_choices(group)
        if group == "env":  # one of each suite, whose environments have the same keys
            choices = list({name.partition("/")[0]: name for name in choices}.values())
        for choice in choices:
            # Probe environments are traced quickly.
            base = overrides(choice)[:2] if group == "system" else (f"{group}={choice}",)
            for key in keys(OmegaConf.to_container(composed(*base), resolve=False)):
                own, _, name = key.partition(".")
                if own == group != "network" or key not in seen:
                    yield (*base, f"{key}={VALUE}")
                if own == "system" and name and key not in seen:
                    yield (*base, POPULATION.replace("KEY", name))
                    yield (*base, PBT.replace("KEY", name))
                seen.add(key)
    for callback, valid in CALLBACKS.items():
        for name in valid:
            given = ", ".join(f"{key}: {value}" for key, value in {**valid, name: VALUE}.items())
            yield (f"callbacks=[{{_target_: stoix_like.callbacks.{callback}, {given}}}]",)


def keys(node: Any, path: str = "") -> Iterator[str]:
    """Yield every key of nested mappings, groups and leaves alike."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        yield key
        if isinstance(value, dict):
            yield from keys(value, key)


def draw(rng: random.Random, place: tuple[str, ...]) -> list[str]:
    """Put a wrong value in its place, or make the key unknown."""
    *base, last = (word.replace(VALUE, rng.choice(VALUES)) for word in place)
    if rng.random() < UNKNOWN:
        last = f"{rng.choice(('', '+', '++'))}{last.replace('=', f'_{rng.randrange(100)}=', 1)}"
    return [*base, last]


def probe(arguments: list[str]) -> None:
    """Set up a run as the command line does before it trains; exit as the command line does."""
    from stoix_like import devices
    from stoix_like.composition import compose_config
    from stoix_like.config import parse_config
    from stoix_like.errors import ConfigError
    from stoix_like.run.set_up.setup import set_up

    try:
        run = parse_config(compose_config(arguments))
        devices.reserve(run.arch.devices_needed or 1)
        set_up(run)
    except ConfigError as error:
        print(f"stoix-like: {error}", file=sys.stderr)
        sys.exit(REFUSED)
