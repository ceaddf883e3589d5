"""Tests of steps that are taken periodically."""

from functools import partial

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_runs import SMALL
from programs import make_program

from stoix_like.systems.off_policy import periodically


def test_periodically_takes_a_step_every_period_calls():
    """Six calls with period 3 take two steps; the mean of the metrics equals the mean over the two steps, 10 and 20."""
    reported, value = [], jnp.zeros(())
    for count in range(6):
        value, metrics = periodically(lambda x: (x + 10.0, {"value": x + 10.0}), value, jnp.asarray(count), 3)
        reported.append(float(metrics["value"]))
    assert float(value) == 20.0
    assert reported == [0.0, 0.0, 30.0, 0.0, 0.0, 60.0]


def equations(jaxpr):
    """Yield every equation of a program, nested ones included."""
    for eqn in jaxpr.eqns:
        yield eqn
        for sub in jax.extend.core.jaxprs_in_params(eqn.params):
            yield from equations(sub)


def branches(jaxpr):
    """Shapes of the predicates of all `cond` equations."""
    return [eqn.invars[0].aval.shape for eqn in equations(jaxpr) if eqn.primitive.name == "cond"]


def test_members_share_one_branch():
    """With a predicate per member, vmap would turn the branch into a `select`, and take the step every time."""

    def step(value, count):
        return periodically(lambda x: (x + 10.0, {"value": x + 10.0}), value, count, 3)

    values, counts = jnp.asarray([0.0, 1.0]), jnp.asarray([2, 2])
    assert branches(jax.make_jaxpr(jax.vmap(step))(values, counts).jaxpr) == [()]
    value, metrics = jax.vmap(step)(values, counts)
    assert value.tolist() == [10.0, 11.0]
    assert metrics["value"].tolist() == [30.0, 33.0]


def test_a_frozen_member_does_not_stop_the_others():
    """A diverged member keeps its count, here 0; the healthy one with count 2 takes its third step."""
    step = partial(periodically, lambda x: (x + 10.0, {"value": x}), period=3)
    value, _ = jax.vmap(lambda x, count: step(x, count=count))(jnp.asarray([0.0, 1.0]), jnp.asarray([0, 2]))
    assert value[1] == 11.0


@pytest.mark.slow
@pytest.mark.parametrize("system", ["sac/ff_sac", "ddpg/ff_td3"])
def test_a_delayed_policy_is_a_branch_in_a_population(system):
    """Also where members have a replay buffer and so keep the axis of their lone shard."""

    def num_branches(frequency):
        overrides = ["env=probe/continuous_policy", "arch.population.size=3", f"system.policy_frequency={frequency}"]
        _, program, arguments = make_program([f"system={system}", *SMALL, *overrides])
        state = jax.eval_shape(program.init, *arguments)
        traced = jax.make_jaxpr(program.train)(state, arguments[0], np.int32(1), np.bool_(True))
        predicates = branches(traced.jaxpr)
        assert set(predicates) <= {()}
        return len(predicates)

    assert num_branches(2) == num_branches(1) + 1
