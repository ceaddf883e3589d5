import dataclasses
import functools
from functools import partial
from types import SimpleNamespace

import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from off_policy_runs import SMALL, algorithm, set_up_small, timestep, trained, training_loop
from programs import make_program

from stoix_like.base_types import Axes, Observation, RolloutState, Trajectory, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from stoix_like.systems.gradient_descent import gradient_step, make_optimiser
from stoix_like.systems.off_policy import periodically
from stoix_like.utils.exploration import initial_noise_keys, persist_noise_keys
from stoix_like.utils.normalizer import make_normalizer

NETWORKS = {
    "sac/ff_tqc": "NormalAffineTanhDistributionHead",
    "sac/ff_crossq": "NormalAffineTanhDistributionHead",
    "sac/ff_sac": "NormalAffineTanhDistributionHead",
    "sac/ff_sac_discrete": "CategoricalHead",
    "mpo/ff_mpo": "policy_head",
    "ddpg/ff_ddpg": "DeterministicHead",
    "ddpg/ff_td3": "DeterministicHead",
    "ddpg/ff_d4pg": "DeterministicHead",
}


def test_noise_keys_persist_only_within_an_episode():
    """The first environment was just reset, the second finished an episode, the third continues its episode."""
    step = timestep([0, 5, 5], [False, True, False])
    before = jax.random.split(jax.random.key(1), 3)
    after = persist_noise_keys(before, step, jax.random.key(2), 1.0)
    assert (before == after).tolist() == [False, False, True]


@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_persistent_noise_has_the_given_correlation_and_a_standard_normal_marginal(correlation):
    """Over 20,000 independent steps, the standard error of a correlation is 1 / sqrt(20,000) = 0.007."""
    size = 20_000
    step = timestep([1] * size, [False] * size)
    before = jax.random.split(jax.random.key(1), size)
    after = persist_noise_keys(before, step, jax.random.key(2), correlation)
    noise = [np.asarray(jax.vmap(jax.random.normal)(keys)) for keys in (before, after)]
    assert np.corrcoef(*noise)[0, 1] == pytest.approx(correlation, abs=0.03)
    assert (noise[1].mean(), noise[1].std()) == pytest.approx((0.0, 1.0), abs=0.03)


def test_initial_noise_keys_has_one_key_per_environment():
    assert initial_noise_keys(3).shape == (3,)


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


def test_gradient_step_descends_the_loss():
    """The gradient of x^2 / 2 at 3 is 3: a step of 0.1 gives 2.7."""
    optim = optax.sgd(0.1)
    params, _, metrics = gradient_step(
        lambda x, half: (half * x**2, {"x": x}), optim, Axes(), jnp.asarray(3.0), optim.init(jnp.asarray(3.0)), 0.5
    )
    assert float(params) == pytest.approx(2.7)
    assert float(metrics["x"]) == 3.0


def test_first_step_of_adam_with_a_large_epsilon():
    """Mean and mean square of a gradient of 1 are 1 after bias correction: the step is lr / (1 + eps)."""
    config = SimpleNamespace(decay_learning_rates=False, max_grad_norm=10.0, adam_eps=3.0)
    optim = make_optimiser(config, None, 0.1)
    update, _ = optim.update(jnp.asarray(1.0), optim.init(jnp.zeros(())))
    assert float(update) == pytest.approx(-0.1 / 4.0, rel=1e-4)


@pytest.mark.slow
def test_learning_rate_decay_counts_the_steps_of_the_system():
    """Over 4 updates of one gradient step, the rates are 1, 3/4, 1/2, 1/4; with period 2, they are 1 and 1/2."""
    config = set_up_small("sac/ff_sac", "system.decay_learning_rates=true", "system.epochs=1").config.system
    spec = type("Spec", (), {"num_updates": 4})
    for period, rates in ((1, [1.0, 0.75, 0.5, 0.25]), (2, [1.0, 0.5])):
        optim = make_optimiser(config, spec, 1.0, period)
        state, steps = optim.init(jnp.zeros(())), []
        for _ in rates:
            # Adam normalises a constant gradient to 1: the size of a step is the learning rate.
            update, state = optim.update(jnp.asarray(0.5), state)
            steps.append(-float(update))
        assert steps == pytest.approx(rates, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("system", NETWORKS)
def test_system_selects_its_network_unless_overridden(system):
    def head(*overrides):
        return compose_config([f"system={system}", *overrides]).network.actor_network.action_head._target_

    assert head().endswith(NETWORKS[system])
    assert head("network=mlp").endswith("policy_head")
    assert compose_config([f"system={system}", "network.actor_network.pre_torso.layer_sizes=[7]"])


def test_critics_start_with_different_parameters_and_targets_with_copies():
    agent = jax.jit(algorithm("ddpg/ff_td3").init)(jax.random.key(0), timestep([0], [False]))
    q_params = agent.shared.params.q_params
    jax.tree.map(np.testing.assert_array_equal, q_params.online, q_params.target)
    kernels = [leaf for leaf in jax.tree.leaves(q_params.online) if leaf.ndim == 2]
    assert len(kernels) == 4
    for first, second in zip(kernels[:2], kernels[2:], strict=True):
        assert first.shape == second.shape
        assert (first != second).all()


@pytest.mark.slow
@pytest.mark.parametrize("system", ["sac/ff_sac", "sac/ff_crossq", "ddpg/ff_td3"])
def test_placement_of_shards_on_devices_does_not_change_the_results(system):
    """Compare two shards on one device with one shard on each of two devices, with a delayed policy."""
    params = []
    for layout in (["arch.num_devices=1", "arch.update_batch_size=2"], ["arch.num_devices=2"]):
        options = ["system.policy_frequency=2", "system.normalize_observations=true", "arch.num_eval_episodes=2"]
        run = training_loop(system, *options, *layout)
        before = jax.device_get(run.state.shared.params)
        run.advance(3)
        params.append(jax.device_get(run.state.shared.params))
    # Sums over shards are in another order, which rounds differently.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4), *params)
    moved = jax.tree.map(lambda a, b: bool(np.abs(a - b).max() > 0), before, params[0])
    assert all(jax.tree.leaves(moved))


@pytest.mark.parametrize(
    "system",
    [
        "ddpg/ff_ddpg",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("ddpg/ff_td3", "ddpg/ff_d4pg", "mpo/ff_mpo")),
    ],
)
def test_policy_learns_the_continuous_policy_probe(system):
    fast = ["system.actor_lr=1e-2", "system.q_lr=1e-2", "arch.num_devices=1", "arch.total_timesteps=12000"]
    support = ["system.vmin=-3", "system.vmax=3"] if system.endswith("d4pg") else []
    run = trained(system, *fast, *support)
    assert run.history[-1]["eval/episode_return_mean"] == pytest.approx(0.0, abs=0.03)


@pytest.mark.parametrize(
    "system", [name if name == "sac/ff_sac" else pytest.param(name, marks=pytest.mark.slow) for name in NETWORKS]
)
def test_systems_see_normalised_observations_and_replay_stores_raw_ones(system):
    """Half of the observations are 3, the other half 7: mean 5, deviation 2."""
    probe = ["env=probe/policy"] if system.endswith("discrete") else []
    plain = algorithm(system, *probe)
    agent = dataclasses.replace(plain, normalizer=make_normalizer(True, Axes()))
    state = jax.jit(agent.init)(jax.random.key(0), timestep([0] * 8, [False] * 8))
    view = Observation(jnp.broadcast_to(jnp.asarray([3.0, 7.0] * 4)[None, :, None], (64, 8, 1)))
    action = jax.tree.map(lambda x: jnp.zeros((64, 8, *x.shape[2:]), x.dtype), state.local.experience.action)
    rows = jnp.zeros((64, 8))
    extras = (action, rows) if system.startswith("mpo") else ()  # actions and their log-probabilities
    steps = Transition(view, action, rows, rows > 0, rows > 0, view, rows > 0, extras)
    state = jax.jit(agent.observe)(state, Trajectory(steps, ()))
    draw = agent.replay.sample_steps if system.startswith("mpo") else agent.replay.sample
    raw, normalised = jax.jit(draw)(state.local, jax.random.key(1)), jax.jit(agent.sample)(state, jax.random.key(1))
    for before, after in (
        (raw.observation, normalised.observation),
        (raw.next_observation, normalised.next_observation),
    ):
        assert set(np.unique(before.agent_view)) == {3.0, 7.0}
        np.testing.assert_allclose(after.agent_view, (before.agent_view - 5.0) / 2.0, rtol=1e-5)

    def greedy(agent, view):
        step = timestep([1, 1], [False, False])._replace(observation=Observation(jnp.asarray(view)[:, None]))
        act = jax.jit(functools.partial(agent.act, greedy=True))
        return act(state.shared, RolloutState((), step, ()), jax.random.key(0))[1]

    np.testing.assert_allclose(greedy(agent, [6.0, 1.0]), greedy(plain, [0.5, -2.0]), rtol=1e-5)


def test_discrete_actions_raise():
    with pytest.raises(ConfigError, match="system=ddpg/ff_ddpg does not fit the 2 discrete actions of probe"):
        set_up_small("ddpg/ff_ddpg", "env=probe/policy")


def test_empty_support_of_one_member_raises():
    members = "arch.population.hyperparams={vmin:[-100,1]}"
    with pytest.raises(ConfigError, match="hyperparams, member 1: system.vmin=1.0 must be less than system.vmax=0.0"):
        set_up_small("ddpg/ff_d4pg", members, "system.vmax=0")


def test_empty_support_raises():
    with pytest.raises(ConfigError, match=r"system.vmin=3.0 must be less than system.vmax=2.0"):
        set_up_small("ddpg/ff_d4pg", "system.vmin=3", "system.vmax=2")


def test_target_entropy_of_unbounded_actions():
    """Unbounded actions have unit 1, like those in [-1, 1]: the target is -1 nat for each of two dimensions."""
    for bound in (1.0, np.inf):
        sac = dataclasses.replace(algorithm("sac/ff_sac"), action_space=Box(-bound, bound, (2,)))
        assert float(sac.target_entropy(Observation(jnp.zeros((1, 1))))) == -2.0


def test_warmup_shorter_than_a_batch_raises():
    config = parse_config(compose_config(["system=sac/ff_sac", "system.warmup_steps=0"])).system
    with pytest.raises(ConfigError, match=r"system.warmup_steps=0: the first update finds"):
        config.check(8, 1)
