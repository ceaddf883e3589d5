"""Random generators of environments in Python."""

from __future__ import annotations

import contextlib
import pickle
import random
from typing import Any

import numpy as np

_KINDS = (np.random.Generator, np.random.RandomState, random.Random)


def unseeded(env: Any, name: str) -> tuple[str, ...]:
    """Return a fault for each generator of an environment that `reset(seed=)` does not seed; resets the environment."""
    env = getattr(env, "unwrapped", env)
    # gymnasium's own is built by the first reset.
    own = [key for key, value in vars(env).items() if isinstance(value, _KINDS) and key != "_np_random"]

    def states(seed: int) -> list[bytes]:
        env.reset(seed=seed)
        return [pickle.dumps(getattr(env, key)) for key in own]

    # What a reset raises is raised by the first step of a run, too.
    with contextlib.suppress(Exception):
        return tuple(
            f"{name}.{key} is a random generator that reset(seed=) does not seed, and copies of an environment draw the"
            " same numbers: seed it there, or draw from gymnasium's self.np_random"
            for key, one, other, again in zip(own, *map(states, (1, 2, 1) if own else ()), strict=True)
            if one == other or one != again
        )
    return ()
