"""Training without the host's loop: no evaluation, no logging, two programs to compile."""

import jax
import numpy as np

from stoix_like.config import compose_config, typed
from stoix_like.runner import anakin
from stoix_like.runner.prepared import make_system, prepare
from stoix_like.runner.programs import make_keys, traced_hyperparams


def make_program(overrides):
    """A prepared run, its program, and the arguments that the program begins with."""
    prepared = prepare(typed(compose_config(["arch.num_devices=1", *overrides])))
    run, plan, population = prepared.run, prepared.plan, prepared.population
    constants = population.of(0) if population.size == 1 else {}
    layout = anakin.Layout(population.size, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps)
    program = anakin.make_program(
        lambda hyperparams: make_system(prepared, constants | hyperparams),
        prepared.env,
        prepared.mesh,
        layout,
    )
    keys = make_keys(prepared)
    return prepared, program, (traced_hyperparams(population), keys.agent, keys.shards)


def train(overrides):
    """The prepared run and the learner state after the whole budget."""
    prepared, program, arguments = make_program(overrides)
    updates = np.int32(prepared.plan.num_updates)
    state, window = program.train(program.init(*arguments), arguments[0], updates, np.bool_(True))
    assert (np.asarray(jax.device_get(window.healthy_updates)) == prepared.plan.num_updates).all()
    return prepared, state
