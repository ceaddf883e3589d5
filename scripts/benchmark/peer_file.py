"""Train a single file in its own process, without this package. The argument is the path of the file.

A line of standard input trains another seed, without evaluations; `returns N` as the second argument trains N seeds in
one program instead, with the evaluations of the file.
"""

import importlib.util
import itertools
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import numpy as np
from worker import serve, timed


def main() -> None:
    """Compile, then measure once for every line of standard input."""
    script = load(Path(sys.argv[1]))
    if sys.argv[2:3] == ["returns"]:
        program = jax.jit(jax.vmap(partial(script.train, script.Config())))
        seeds = np.arange(int(sys.argv[3]), dtype=np.int32)
        serve(lambda: {"returns": program(seeds)[1][:, -1].tolist()})
    else:
        serve(timed_training(script))


def timed_training(script: ModuleType) -> Callable[[], dict[str, Any]]:
    """Return a function that trains with the seed of the file, then with the next one, and so on."""
    config = script.Config()
    (algorithm,) = (kind(config) for kind in vars(script).values() if hasattr(kind, "evaluate"))

    @jax.jit
    def train(seed: jax.Array) -> Any:
        params_key, key, _ = script.split_seed(seed)
        return jax.lax.fori_loop(
            0, config.num_updates, lambda _, x: algorithm.update(x), algorithm.init(params_key, key)
        )

    compiled = train.lower(np.int32(0)).compile()
    seeds = itertools.count(config.seed)

    def run() -> dict[str, Any]:
        seed = np.int32(next(seeds))
        with timed() as clock:
            jax.block_until_ready(compiled(seed))
        return {"wall": clock.wall, "cpu": clock.cpu}

    return run


def load(path: Path) -> ModuleType:
    """Import a file by its path."""
    specification = importlib.util.spec_from_file_location(path.stem, path)
    assert specification
    assert specification.loader
    module = importlib.util.module_from_spec(specification)
    sys.modules[path.stem] = module  # where dataclasses look for the types of fields
    specification.loader.exec_module(module)
    return module


if __name__ == "__main__":
    main()
