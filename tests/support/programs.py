"""Training without the host loop: without evaluation and logging, and with only two programs to compile."""

import jax
import numpy as np

from stoix_like.architectures import anakin
from stoix_like.architectures.types import ProgramSpec
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.run.programs import make_keys, traced_hyperparams
from stoix_like.run.setup import set_up


def make_program(overrides):
    """Set up a run; return the setup, the program, and the arguments of `program.init`."""
    setup = set_up(parse_config(compose_config(["arch.num_devices=1", *overrides])))
    config, plan, population = setup.config, setup.plan, setup.population
    constants = population.of(0) if population.num_members == 1 else {}
    spec = ProgramSpec(
        population.num_members, plan.envs_per_shard, config.system.rollout_length, config.system.warmup_steps
    )
    program = anakin.make_program(
        lambda hyperparams: setup.build_system(constants | hyperparams),
        setup.env,
        setup.mesh,
        spec,
    )
    keys = make_keys(setup)
    return setup, program, (traced_hyperparams(population), keys.agent, keys.shards)


def train(overrides):
    """Train a run for its whole budget; return the setup and the last learner state."""
    setup, program, arguments = make_program(overrides)
    updates = np.int32(setup.plan.num_updates)
    state, interval = program.train(program.init(*arguments), arguments[0], updates, np.bool_(True))
    assert (np.asarray(jax.device_get(interval.healthy_updates)) == setup.plan.num_updates).all()
    return setup, state
