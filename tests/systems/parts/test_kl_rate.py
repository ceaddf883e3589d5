import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.base_types import ActorCriticOptStates, Axes
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.parts.kl_rate import KLRate, make_kl_rate
from stoix_like.systems.parts.kl_stop import make_kl_stop
from support.compiled import run
from support.on_policy_runs import SMALLER as SMALL
from support.set_ups import loop_of


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        (1e-3, 0.021, 1e-3 / 1.5),
        (1e-3, 0.019, 1e-3),
        (1e-3, 0.0051, 1e-3),
        (1e-3, 0.0049, 1.5e-3),
        (1e-3, 0.0, 1e-3),
        (1e-3, jnp.nan, 1e-3),
        (1.1e-5, 1.0, 1e-5),
        (9e-3, 1e-4, 1e-2),
    ],
)
def test_the_rate_falls_above_twice_the_desired_divergence_and_rises_below_half(rate, kl, expected):
    rule = make_kl_rate(KLRate(desired_kl=0.01), 1e-3, Axes())
    after, metrics = run(rule.adapt, jnp.asarray(rate / 1e-3), {"kl": jnp.asarray(kl)})
    assert float(after) == pytest.approx(expected / 1e-3)
    assert float(metrics["learning_rate"]) == pytest.approx(expected)


def test_all_shards_follow_their_mean_divergence():
    """The mean 0.015 is within the bounds of 0.01, and neither 0.03 nor 0 is."""
    rule = make_kl_rate(KLRate(desired_kl=0.01), 1e-3, Axes(("shard",)))
    after, _ = run(jax.vmap(rule.adapt, axis_name="shard"), jnp.ones(2), {"kl": jnp.asarray([0.03, 0.0])})
    np.testing.assert_array_equal(after, [1.0, 1.0])


def test_a_rate_that_a_population_changes_keeps_its_factor():
    """Half of the first rate is half of the second; the bounds are those of rates."""
    for first in (1e-3, 1e-2):
        rule = make_kl_rate(KLRate(desired_kl=0.01), first, Axes())
        after, metrics = run(rule.adapt, jnp.asarray(0.5), {"kl": jnp.asarray(0.01)})
        assert (float(after), float(metrics["learning_rate"])) == pytest.approx((0.5, 0.5 * first))
        _, metrics = run(rule.adapt, jnp.asarray(0.9), {"kl": jnp.asarray(1e-4)})
        assert float(metrics["learning_rate"]) == pytest.approx(min(1.35 * first, 1e-2))


def test_steps_have_the_adapted_rate_and_the_state_of_the_optimiser():
    """Two steps of Adam at half the rate are half of those at the whole rate."""
    rule, optim = make_kl_rate(KLRate(desired_kl=0.01, max_lr=1.0), 0.1, Axes()), optax.adam(0.1)
    grads = {"w": jnp.asarray([1.0, -2.0])}
    assert float(rule.init()) == 1.0
    states = [optim.init(grads)] * 2
    for _ in range(2):
        whole, states[0] = optim.update(grads, states[0])
        half, states[1] = rule.apply(optim, jnp.asarray(0.5)).update(grads, states[1])
        np.testing.assert_allclose(half["w"], 0.5 * whole["w"], rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, *states)


def test_an_update_stops_at_the_first_minibatch_beyond_the_target():
    """Divergences 0, 0.14, 0.16, 0.1 and a target of 0.1: only the first two, below 0.15, take their steps.

    Each step adds 1. The mean of the metrics is that of the three minibatches evaluated, 0.1; a schedule counts all.
    """
    schedule = optax.ScaleByScheduleState(jnp.zeros((), jnp.int32))
    shared = OnPolicyShared(jnp.zeros(()), ActorCriticOptStates(schedule, ()), ())

    def step(shared, kl):
        states = jax.tree.map(lambda count: count + 1, shared.opt_states)
        return shared._replace(params=shared.params + 1.0, opt_states=states), {"approx_kl": kl}

    def update(target_kl):
        stop = make_kl_stop(target_kl, Axes())
        kls = jnp.asarray([[0.0, 0.14], [0.16, 0.1]])
        epoch = lambda carry, kls: jax.lax.scan(stop.guard(step), carry, kls)  # noqa: E731
        return stop.finish(*jax.lax.scan(epoch, stop.start(shared), kls))

    after, metrics = jax.jit(update)(0.1)
    assert (float(after.params), int(after.opt_states.actor_opt_state.count)) == (2.0, 4)
    assert (float(metrics["approx_kl"]), float(metrics["skipped_steps"])) == pytest.approx((0.1, 2.0))
    # As members of a population; None has no limit and no metric of its own.
    after, _ = jax.vmap(update)(jnp.asarray([0.01, 0.1, 1.0]))
    assert after.params.tolist() == [1.0, 2.0, 4.0]
    after, metrics = update(None)
    assert float(after.params) == 4.0
    assert set(metrics) == {"approx_kl"}


@pytest.mark.slow
def test_a_tiny_target_kl_takes_one_gradient_step_per_update():
    """A population: the first member stops after its first step, whose divergence is 0, the second never does."""
    members = "arch.population.hyperparams={target_kl: [1e-12, 1e6]}"
    loop = loop_of(*SMALL, members, "arch.seed=0", "system.actor_lr=1e-2")
    metrics = loop.advance(1)
    adam, schedule = loop.state.shared.opt_states.actor_opt_state[1]
    assert metrics["train/skipped_steps"] == [3.0, 0.0]
    assert adam.count.tolist() == [1, 4]
    assert schedule.count.tolist() == [4, 4]
