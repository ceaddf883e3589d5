"""Tests of the options of on-policy actor-critics: target KL, annealing, a shared torso, held noise."""

import distrax
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from off_policy_runs import timestep

from stoix_like.base_types import ActorCriticOptStates, Axes
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.run.setup import set_up
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.systems.actor_critic import OnPolicyShared
from stoix_like.systems.ppo.kl_stop import make_kl_stop
from stoix_like.utils.exploration import make_exploration

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


def test_hyperparameters_change_linearly_to_their_final_values():
    """A quarter of the way from 0.01 to 0 is 0.0075, and from 0.2 to 0.1 it is 0.175."""
    config = parse_config(compose_config(["system.final_ent_coef=0", "system.final_clip_eps=0.1"])).system
    quarter, end = config.at(jnp.asarray(2), 8), config.at(jnp.asarray(9), 8)
    assert (float(quarter.ent_coef), float(quarter.clip_eps)) == pytest.approx((0.0075, 0.175))
    assert (float(end.ent_coef), float(end.clip_eps)) == pytest.approx((0.0, 0.1))
    schedules = config.schedules(2, 8)
    assert (schedules.pop("ent_coef"), schedules.pop("clip_eps")) == pytest.approx((0.0075, 0.175))
    constant = parse_config(compose_config([])).system
    assert constant.at(constant.init_updates(), 8) is constant
    assert constant.schedules(2, 8) == schedules


def test_gradients_of_policy_and_value_reach_one_shared_torso():
    algorithm = set_up_small("network=mlp_shared").build_system().init.__self__
    step = timestep([0, 0], [False, False])
    observation = step.observation._replace(agent_view=jnp.ones((2, 4)))
    params = jax.jit(algorithm.init)(jax.random.key(0), step._replace(observation=observation)).shared.params
    assert set(params.critic_params["params"]) == {"critic_head"}
    grads = jax.grad(lambda params: algorithm.networks.value(params, observation).sum())(params)
    assert np.abs(flat(grads.actor_params["params"]["torso"])).max() > 0.0
    assert np.abs(flat(grads.actor_params["params"]["action_head"])).max() == 0.0
    assert np.abs(flat(grads.critic_params)).max() > 0.0


def test_a_torso_is_shared_as_a_whole_and_only_where_the_system_can():
    layer = "{_target_: stoix_like.networks.inputs.ArrayInput}"
    with pytest.raises(ConfigError, match=r"critic_network.pre_torso is not set, but system=ppo/ff_ppo needs it"):
        set_up_small("~network.critic_network.pre_torso", f"+network.critic_network.input_layer={layer}")


def test_noise_keys_persist_for_some_steps_of_an_episode():
    """Steps 3 and 5 of an episode continue, 4 is a multiple of 2; an episode that ended and a new one start anew."""
    step = timestep([3, 5, 4, 3, 0], [False, False, False, True, False])
    before = jax.random.split(jax.random.key(1), 5)
    exploration = make_exploration(2, lambda num_envs: ())
    assert exploration.init_carry(5).shape == (5,)
    pi = distrax.Normal(jnp.zeros(5), jnp.ones(5))
    after, noise = exploration.sample(pi, before, step, jax.random.key(2))
    np.testing.assert_allclose(noise, jax.vmap(jax.random.normal)(after))
    assert (jax.random.key_data(before) == jax.random.key_data(after)).all(-1).tolist() == [True, True, *[False] * 3]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "vpg/ff_a2c"])
def test_held_noise_is_a_function_of_the_state_and_its_probability_is_exact(system, monkeypatch):
    """With a noise matrix per episode, the residuals of an episode of 6 steps are linear in 2 features.

    Log-probabilities are those of the current policy in the same state, so that the first ratio is one.
    """
    overrides = [*SMALL, f"system={system}", "env=gymnax/pendulum", "network=mlp_gsde", "system.sde_sample_freq=1000"]
    overrides = [o for o in overrides if system == "ppo/ff_ppo" or not o.startswith(("system.epochs", "system.num_m"))]
    overrides += ["network.actor_network.pre_torso.layer_sizes=[2]", "network.actor_network.action_head.min_scale=1e-6"]
    setup = set_up(parse_config(compose_config(overrides)))
    algorithm, batches = type(setup.build_system().init.__self__), []
    targets = algorithm.targets

    def spy(self, agent, trajectory):
        pi = self.networks.policy(agent.shared.params, trajectory.transitions.observation)
        steps = trajectory.transitions
        log_prob = pi.log_prob(steps.action)
        jax.debug.callback(
            lambda *x: batches.append(x), steps.action - pi.mode(), pi._features, steps.extras, log_prob, pi.stddev()
        )
        return targets(self, agent, trajectory)

    monkeypatch.setattr(algorithm, "targets", spy)
    TrainingLoop(setup, MultiLogger([])).advance(1)
    jax.effects_barrier()
    noise, features, stored, log_prob, scale = (np.asarray(x) for x in batches[0])
    np.testing.assert_allclose(stored, log_prob, atol=1e-4)
    normal = -0.5 * (noise / scale) ** 2 - np.log(scale) - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(stored, normal.sum(-1), atol=1e-3)
    for env in range(noise.shape[1]):
        matrix, *_ = np.linalg.lstsq(features[:, env, :2], noise[:, env], rcond=None)
        np.testing.assert_allclose(features[:, env, :2] @ matrix, noise[:, env], atol=1e-4)
    # Each environment has a matrix of its own.
    assert np.abs(noise[0, 0] - noise[0, 1]) > 1e-3
