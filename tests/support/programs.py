"""Training without the host loop, evaluation and logging, with two programs to compile; equations of programs."""

import itertools
from types import SimpleNamespace

import jax
import jax.extend
import numpy as np

from stoix_like.assembly import inputs_of
from stoix_like.run.programs.functions import make_keys, run_programs, traced_hyperparams
from support.set_ups import setup_of


def make_program(overrides):
    setup = setup_of("arch.num_devices=1", *overrides)
    init, train = itertools.islice(run_programs(setup), 2)
    keys = make_keys(setup)
    program = SimpleNamespace(init=init.function, train=train.function)
    return setup, program, (traced_hyperparams(setup.population), keys.agent, keys.shards, inputs_of(setup.spec))


def train(overrides):
    """Train a run for its whole budget; return the setup and the last learner state."""
    setup, program, arguments = make_program(overrides)
    updates = np.int32(setup.plan.num_updates)
    state, interval = program.train(
        program.init(*arguments), arguments[0], updates, np.bool_(True), inputs_of(setup.spec)
    )
    assert (np.asarray(jax.device_get(interval.healthy_updates)) == setup.plan.num_updates).all()
    return setup, state


def equations(jaxpr):
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(sub)


def branches(jaxpr):
    """Shapes of the predicates of all `cond` equations."""
    return [eqn.invars[0].aval.shape for eqn in equations(jaxpr) if eqn.primitive.name == "cond"]
