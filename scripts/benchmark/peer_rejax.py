"""Measure a training run of rejax, in rejax's own virtual environment. The settings are JSON, see `scenarios.py`.

One compiled function initialises and trains the agent, vmapped over seeds for several members. Evaluation during
training is off, and the evaluation of the result is not timed.
"""

import itertools
import json
import sys
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import rejax
from worker import serve, timed


def main() -> None:
    """Compile, then train with another seed for every line of standard input."""
    settings = json.loads(sys.argv[1])
    members = settings["members"]
    create = settings["create"] | {"eval_freq": settings["create"]["total_timesteps"]}
    algorithm = getattr(rejax, settings["algorithm"]).create(**create)
    silent = algorithm.replace(eval_callback=lambda *_: jnp.zeros(()))
    train = partial(type(silent).train, silent)
    with timed() as compiling:
        program = jax.jit(jax.vmap(train) if members > 1 else train).lower(keys(0, members)).compile()
    seeds = itertools.count(1)

    def run() -> dict[str, Any]:
        seed = next(seeds)
        with timed() as clock:
            state, _ = jax.block_until_ready(program(keys(seed, members)))
        evaluate = partial(algorithm.eval_callback, algorithm)
        _, returns = (jax.vmap(evaluate) if members > 1 else evaluate)(state, keys(seed, members))
        # It rounds the budget up to whole rollouts.
        steps = int(jnp.sum(state.global_step))
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": steps, "return": float(returns.mean())}

    serve(run, compile=compiling.wall, jax=jax.__version__, device=jax.devices()[0].device_kind)


def keys(seed: int, members: int) -> jax.Array:
    """Return one key per member; a lone member's key has no axis."""
    key = jax.random.PRNGKey(seed)
    return jax.random.split(key, members) if members > 1 else key


if __name__ == "__main__":
    main()
