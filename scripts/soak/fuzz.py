"""Set keys of the configuration to wrong values: a clean set-up, or one line and exit code 2."""

from __future__ import annotations

import random
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from tiny_runs import REFUSED, Bench, Outcome, complaints, overrides, systems

MEMORY = 4 * 2**30  # bytes beyond those of the imports
SECONDS = 30  # of CPU time
VALUES = (
    *("abc", "''", "null", "true", "no", "???", "'${env.env_name}'"),
    *("[]", "{}", "[1, 2]", "{a: 1}", "[[[[1]]]]", "[null]"),
    *("0", "-1", "1", "0.5", "1.5", "-0.0", "nan", "inf", "-inf", "1e-300", "1e400"),
    *("1e5", "2147483647", "2147483648", "1e9", "1e10", "9223372036854775808", "1e18", "1e40"),
)
PROBES = 0.75
UNKNOWN = 0.1  # probability of an unknown key


def attempt(bench: Bench, rng: random.Random, index: int) -> Outcome:
    """Set up one configuration with one wrong value, with limits of memory and time."""
    system = rng.choice(systems())
    # Most set-ups use a probe environment, which is traced quickly; the others use gymnax.
    env = overrides(system)[1:2] if rng.random() < PROBES else ()
    arguments = [f"system={system}", *env, draw(rng, system)]
    bench.commands.append(f"(ulimit -v {MEMORY // 1024}; stoix-like train {shlex.join(arguments)})")
    done = bench.call("fuzz:probe", arguments, RLIMIT_AS=MEMORY, RLIMIT_CPU=SECONDS)
    problems = complaints(done)
    if not problems and done.code == REFUSED and len(done.err.strip().splitlines()) != 1:
        problems = [f"refused in {len(done.err.strip().splitlines())} lines: {done.err.strip()[:200]!r}"]
    verdict = "" if problems else " (refused)" if done.code == REFUSED else " (set up)"
    return Outcome(f"{' '.join(arguments)}{verdict}", problems, bench.commands)


def draw(rng: random.Random, system: str) -> str:
    """Draw an override: a key of the configuration and a wrong value, or an unknown key."""
    from omegaconf import OmegaConf

    from stoix_like.composition import compose_config

    config = OmegaConf.to_container(compose_config([f"system={system}"]), resolve=False)
    key, value = rng.choice(list(keys(config))), rng.choice(VALUES)
    if rng.random() < UNKNOWN:
        return f"{rng.choice(('', '+', '++'))}{key}_{rng.randrange(100)}={value}"
    return f"{key}={value}"


def keys(node: Any, path: str = "") -> Iterator[str]:
    """Yield every key of nested mappings, groups and leaves alike."""
    for name, value in node.items():
        key = f"{path}.{name}" if path else str(name)
        yield key
        if isinstance(value, dict):
            yield from keys(value, key)


def probe(arguments: list[str]) -> None:
    """Set up a run as the command line does before it trains; exit as the command line does."""
    from stoix_like.composition import compose_config
    from stoix_like.config import parse_config
    from stoix_like.errors import ConfigError
    from stoix_like.run import devices
    from stoix_like.run.setup import set_up

    try:
        run = parse_config(compose_config(arguments))
        devices.reserve(run.arch.devices_needed or 1)
        set_up(run)
    except ConfigError as error:
        print(f"stoix-like: {error}", file=sys.stderr)
        sys.exit(REFUSED)
