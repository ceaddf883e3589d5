from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Agent, Axes, Observation, OnlineAndTarget, Trajectory, Transition
from stoix_like.networks.heads import quantile_levels
from stoix_like.schema import replace_values
from stoix_like.systems.parts.epsilon_greedy import EpsilonGreedyConfig, make_epsilon_schedule
from stoix_like.systems.parts.target import PeriodicTarget
from stoix_like.systems.q_learning.anakin import ff_dqn
from stoix_like.systems.q_learning.anakin.ff_iqn import stratified_levels
from stoix_like.utils.loss import quantile_regression_loss
from stoix_like.utils.replay import Batch
from support.algorithms import make_algorithm
from support.compiled import run
from support.programs import train
from support.set_ups import config_of, setup_of, trained

SMALL = ["network.actor_network.pre_torso.layer_sizes=[16]", "arch.total_num_envs=8"]


def epsilons(**values):
    defaults = {"initial_epsilon": 1.0, "training_epsilon": 0.2, "exploration_fraction": 0.5, "evaluation_epsilon": 0.0}
    schedule = make_epsilon_schedule(EpsilonGreedyConfig(**{**defaults, **values}), 8)
    return [round(float(schedule(jnp.asarray(updates))), 6) for updates in range(6)]


def test_epsilon_decays_linearly():
    # From 1 to 0.2 over half of eight updates: by 0.2 per update.
    assert epsilons() == [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    assert epsilons(exploration_fraction=0.0) == [0.2] * 6
    assert epsilons(initial_epsilon=0.2) == [0.2] * 6
    # An array, as for the members of a population.
    assert epsilons(initial_epsilon=0.2, training_epsilon=jnp.asarray(0.2)) == [0.2] * 6
    assert epsilons(exploration_fraction=jnp.asarray(0.25)) == [1.0, 0.6, 0.2, 0.2, 0.2, 0.2]


def test_each_part_of_the_unit_interval_has_one_level():
    """In quarters, floor(4 tau) counts up; all levels together are uniform, with mean 1/2 and variance 1/12."""
    levels = np.asarray(stratified_levels(jax.random.key(0), 20_000, 4))
    np.testing.assert_array_equal(np.floor(4 * levels), np.tile([0, 1, 2, 3], (20_000, 1)))
    assert levels.mean() == pytest.approx(0.5, abs=1e-3)
    assert levels.var() == pytest.approx(1 / 12, abs=1e-3)


@pytest.mark.slow
def test_default_quantiles_of_qr_dqn_have_the_mean_of_the_returns():
    """Returns are 10 with probability 0.1 and otherwise 0: the mean is 1.

    With a Huber parameter of 10 the loss is quadratic throughout, and its minima are expectiles, t / (0.9 - 0.8 t) with
    the mean 1.84 over t in [0, 1].
    """
    config = config_of("system=q_learning/ff_qr_dqn").system
    values = jnp.linspace(0.0, 10.0, 1001)
    returns = jnp.broadcast_to(jnp.asarray([0.0] * 9 + [10.0]), (1001, 10))

    def mean_atom(huber):
        def atom(level):
            levels = jnp.full((1001, 1), level)
            return values[jnp.argmin(quantile_regression_loss(values[:, None], levels, returns, huber))]

        return jax.vmap(atom)(jnp.asarray(quantile_levels(config.num_quantiles))).mean()

    assert mean_atom(config.huber_loss_parameter) == pytest.approx(1.0, abs=0.1)
    assert mean_atom(10.0) == pytest.approx(1.84, abs=0.05)


def test_schedules_are_fractions_of_the_budget():
    """A complete run of 100 updates that is extended to 200 stands at one half of its schedules again."""
    config = config_of("system=q_learning/ff_rainbow", "system.training_epsilon=0.05").system
    config = replace_values(config, {"initial_epsilon": 1.0, "exploration_fraction": 0.8})
    rates = "learning rates (fraction of the initial ones)"
    exponent = "importance-sampling exponent"
    assert config.schedules(100, 100) == pytest.approx({"epsilon": 0.05, rates: 0.0, exponent: 1.0})
    # 1 - 0.95 * 0.5 / 0.8; the exponent is half way from 0.4 to 1.
    assert config.schedules(100, 200) == pytest.approx({"epsilon": 0.40625, rates: 0.5, exponent: 0.7})
    assert rates not in replace_values(config, {"decay_learning_rates": False}).schedules(100, 200)
    assert exponent not in replace_values(config, {"prioritised": False}).schedules(100, 200)


def test_priorities_are_powers_of_losses():
    """With the exponent 1/2, a loss of 9 has priority 3; negative ones count as zero."""
    config = config_of("system=q_learning/ff_dqn_reg", "system.priority_exponent=0.5").system
    priorities = run(config.replay.priorities, jnp.asarray([9.0, 0.0, -4.0, 9.0]), jnp.asarray([0.2, 1.0, 1.0, 0.0]))
    np.testing.assert_allclose(priorities, [3.0, 1e-3, 1e-3, 0.0], rtol=1e-4)


@pytest.mark.parametrize(
    "words", [["system=q_learning/ff_dqn_reg"], ["system=q_learning/ff_dqn", "system.cql_coef=1.0"]]
)
def test_no_priorities_come_from_penalties(words):
    """Without rewards and successors, losses without the penalty are squares of values, or half of them (DQN)."""
    dqn = make_algorithm(setup_of(*words, *SMALL), axes=Axes())
    view = jax.random.normal(jax.random.key(0), (5, 4))
    params = jax.jit(dqn.network.init)(jax.random.key(1), Observation(view))
    zeros = jnp.zeros(5)
    batch = Batch(Observation(view), jnp.zeros(5, int), zeros, zeros, Observation(-view), jnp.ones(5), None)
    losses, metrics = jax.jit(dqn.losses)(OnlineAndTarget(params, params), batch, jax.random.key(2))
    scale = 1.0 if len(words) == 1 else 0.5
    np.testing.assert_allclose(losses - metrics["penalty"], scale * metrics["q_value"] ** 2, rtol=1e-4, atol=1e-6)
    assert (jnp.abs(metrics["penalty"]) > 1e-3).all()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["ff_dqn", "ff_ddqn", "ff_dqn_reg", "ff_mdqn"])
def test_losses_are_noisy_where_the_network_is(variant):
    def differ(network, *head):
        setup = setup_of(f"system=q_learning/{variant}", f"network={network}", *SMALL, *head)
        dqn = make_algorithm(setup, axes=Axes())
        view = jax.random.normal(jax.random.key(0), (5, 4))
        params = jax.jit(dqn.network.init)(jax.random.key(1), Observation(view))
        ones = jnp.ones(5)
        batch = Batch(Observation(view), jnp.zeros(5, int), ones, ones, Observation(-view), ones, None)
        losses = jax.jit(lambda key: dqn.losses(OnlineAndTarget(params, params), batch, key)[0])
        losses = [losses(jax.random.key(seed)) for seed in (2, 3)]
        return bool((losses[0] != losses[1]).all())

    assert differ("mlp_noisy_dueling_dqn", "network.actor_network.action_head.layer_sizes=[8]")
    assert not differ("mlp_dqn")


def test_stored_rewards_are_clipped():
    config, stored = SimpleNamespace(max_abs_reward=2.0), []
    replay = SimpleNamespace(add=lambda local, trajectory: stored.append(trajectory.transitions.reward))
    dqn = ff_dqn.DQN(config, None, None, None, replay, 1, None)
    dqn.observe(Agent(None, None), Trajectory(Transition(*[None] * 2, jnp.asarray([5.0, -5.0, 1.0]), *[None] * 5), ()))
    np.testing.assert_array_equal(stored[0], [2.0, -2.0, 1.0])


@pytest.mark.slow
def test_number_of_devices_does_not_change_the_results():
    """Rainbow needs the most communication: importance weights relative to the maximum over all shards."""
    overrides = [
        *("system=q_learning/ff_rainbow", *SMALL, "network.actor_network.action_head.layer_sizes=[8]"),
        *("system.rollout_length=2", "system.warmup_steps=16", "system.epochs=2", "system.total_batch_size=16"),
        *("system.num_atoms=11", "system.total_buffer_size=1024", "arch.total_timesteps=320"),
    ]
    _, one = train([*overrides, "arch.num_devices=1", "arch.update_batch_size=2"])
    _, two = train([*overrides, "arch.num_devices=2"])
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)  # noqa: E731
    jax.tree.map(compare, jax.device_get(one.shared.params), jax.device_get(two.shared.params))


@pytest.mark.parametrize(("period", "copies"), [(3, [0, 3, 6]), (0, [1.25, 3.0625, 5.015625])])
def test_target_parameters_are_copies_of_every_period_or_averages(period, copies):
    """With two gradient steps per update, which count: t <- o at steps 3 and 6, or t <- t / 2 + o / 2 at each step.

    The averages are 1/2, 5/4, 17/8, 49/16, 129/32, 321/64 after the steps 1 to 6.
    """

    class Counting(ff_dqn.DQN):
        def sample(self, agent, key):
            return SimpleNamespace(weight=jnp.ones(1))

        def sgd_step(self, shared, batch, key):
            params = shared.params._replace(online=shared.params.online + 1.0)
            return shared._replace(params=params), jnp.zeros(1), {"q_value": jnp.zeros(1)}

    target = PeriodicTarget(tau=0.5, target_update_period=period)
    config = SimpleNamespace(replay=SimpleNamespace(epochs=2, prioritised=False), target=target)
    dqn = Counting(config, None, None, None, None, 3, lambda updates: jnp.zeros(()))
    agent, targets = Agent(ff_dqn.QShared(OnlineAndTarget(0.0, 0.0), (), jnp.zeros((), jnp.int32)), ()), []
    agent = jax.tree.map(jnp.asarray, agent)
    for _ in copies:
        agent, _ = run(dqn.update, agent, None, jax.random.key(0))
        targets.append(float(agent.shared.params.target))
    assert targets == copies


def test_plan_reports_the_size_of_the_replay_buffer():
    setup = setup_of("system=q_learning/ff_dqn", "arch.update_batch_size=2")
    # Two observations of four floats, action and reward of four bytes each, one flag: 41 bytes for each of 4992 steps.
    assert "1 member(s) × 2 update batch(es) × 0.195 MiB = 0.39 MiB per device" in setup.plan.notes[-1]


@pytest.mark.learn
@pytest.mark.optimized
def test_dqn_learns_cart_pole():
    overrides = ["system=q_learning/ff_dqn", "env=gymnax/cartpole", "arch.seed=0", "arch.compile_cache=false"]
    loop = trained(*overrides)
    assert loop.summary()["absolute/episode_return_mean"] >= 475
