"""Training without the host's loop: no evaluation, no logging, two programs to compile."""

import jax
import numpy as np

from stoix_like.architectures.anakin import make_program as lay_out
from stoix_like.architectures.types import ProgramSpec
from stoix_like.config import compose_config, parse_config
from stoix_like.run.compile import make_keys, traced_hyperparams
from stoix_like.run.setup import set_up


def make_program(overrides):
    """A setup run, its program, and the arguments that the program begins with."""
    setup = set_up(parse_config(compose_config(["arch.num_devices=1", *overrides])))
    run, plan, population = setup.run, setup.plan, setup.population
    constants = population.of(0) if population.num_members == 1 else {}
    layout = ProgramSpec(
        population.num_members, plan.envs_per_shard, run.system.rollout_length, run.system.warmup_steps
    )
    program = lay_out(
        lambda hyperparams: setup.build_system(constants | hyperparams),
        setup.env,
        setup.mesh,
        layout,
    )
    keys = make_keys(setup)
    return setup, program, (traced_hyperparams(population), keys.agent, keys.shards)


def train(overrides):
    """The setup run and the learner state after the whole budget."""
    setup, program, arguments = make_program(overrides)
    updates = np.int32(setup.plan.num_updates)
    state, window = program.train(program.init(*arguments), arguments[0], updates, np.bool_(True))
    assert (np.asarray(jax.device_get(window.healthy_updates)) == setup.plan.num_updates).all()
    return setup, state
