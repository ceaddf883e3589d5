"""Ids of gymnasium in place of the choice of an environment: `env=CartPole-v1`."""

from __future__ import annotations

import contextlib
import functools
import re
import sys
from pathlib import Path

from stoix_like.envs.suites import load_suite
from stoix_like.errors import MissingExtraError

# What a file of an environment is made of: `env=jumanji` for `jumanji/snake`, `env=gymnasium/_atari` for Atari games.
_BASE = re.compile(r"- /env/(\S+)@_here_")


@functools.cache
def with_id(name: str, directory: Path) -> list[str]:
    """Return the overrides for an id of gymnasium, and say once what they are.

    Args:
        name: the id.
        directory: that of the YAML files of environments.
    """
    overrides, own = (
        [f"env={suite}", f"env.scenario.name={name}"] for suite in (_suite_of(name, directory), "gymnasium")
    )
    other = ", on the host" if overrides == own else f"; gymnasium's own: {' '.join(own)}"
    print(f"env={name} is {' '.join(overrides)}{other}", file=sys.stderr)
    return overrides


def _suite_of(name: str, directory: Path) -> str:
    """Return the choice of `env` for an id: gymnax, if it has the id, or the suite of whose files one alone has it."""
    if name.startswith("ALE/"):
        return "gymnasium/_atari"
    with contextlib.suppress(MissingExtraError):
        if name in load_suite("gymnax").scenarios():
            return "gymnax"
    texts = (path.read_text(encoding="utf-8") for path in directory.glob("*/*.yaml"))
    bases = {base for text in texts if f"\n  name: {name}\n" in text for base in _BASE.findall(text)}
    return min(bases) if bases and "gymnasium" not in bases else "gymnasium"
