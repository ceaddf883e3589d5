"""Tests of updates that stop at a divergence."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stoix_like.base_types import ActorCriticOptStates, Axes
from stoix_like.config import parse_config
from stoix_like.loggers import MultiLogger
from stoix_like.run.set_up.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.systems.on_policy.actor_critic import OnPolicyShared
from stoix_like.systems.parts.kl_stop import make_kl_stop
from support.composed import compose_config

SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[8]",
    *("arch.compile_cache=false", "arch.absolute_metric=false", "arch.num_evaluation=1", "arch.num_devices=1"),
    *("arch.total_num_envs=4", "arch.num_eval_episodes=2", "system.rollout_length=8", "system.epochs=2"),
    *("system.num_minibatches=2", "arch.total_timesteps=512"),
]


def set_up_small(*overrides):
    return set_up(parse_config(compose_config([*SMALL, *overrides])))


def flat(params):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(jax.device_get(params))])


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
    loop = TrainingLoop(set_up_small(members, "arch.seed=0", "system.actor_lr=1e-2"), MultiLogger([]))
    metrics = loop.advance(1)
    adam, schedule = loop.state.shared.opt_states.actor_opt_state[1]
    assert metrics["train/skipped_steps"] == [3.0, 0.0]
    assert adam.count.tolist() == [1, 4]
    assert schedule.count.tolist() == [4, 4]
    unlimited = TrainingLoop(set_up_small("arch.seed=1", "system.actor_lr=1e-2"), MultiLogger([]))
    unlimited.advance(1)
    second = jax.tree.map(lambda leaf: leaf[1], loop.state.shared.params)
    np.testing.assert_allclose(flat(second), flat(unlimited.state.shared.params), atol=1e-5)
