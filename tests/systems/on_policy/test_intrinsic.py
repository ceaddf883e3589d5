import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation, Transition
from stoix_like.data.dataset import DataHeader
from stoix_like.data.files import write_data
from support.algorithms import make_algorithm, with_methods
from support.compiled import run
from support.recorded_data import make_data
from support.resumed import assert_resumed_equals_whole
from support.set_ups import loop_of, setup_of, trained

SMALL = [
    *("network=mlp", "arch.total_num_envs=4", "arch.num_devices=1", "arch.compile_cache=false"),
    *("arch.num_evaluation=1", "arch.absolute_metric=false", "arch.num_eval_episodes=2"),
]
CHAIN = ["env=gymnax/deep_sea", "+env.kwargs.size=3", "network.actor_network.pre_torso.layer_sizes=[8]"]
STEPS, ENVS = 6, 2


def bonus_of(kind, *overrides):
    """Return the intrinsic reward of PPO on deep-sea, and its state with another running mean."""
    setup = setup_of(*SMALL, *CHAIN, f"system.intrinsic={kind}", *overrides)
    bonus = make_algorithm(setup).intrinsic.add.__self__

    def init(key):
        first = draw(jax.random.key(0))
        return bonus.init(key, first._replace(observation=jax.tree.map(lambda x: x[0], first.observation)))

    return bonus, run(init, jax.random.key(1))


@jax.jit
def draw(key):
    """Return a rollout whose environments end an episode after their third step, the first one by termination."""
    keys = jax.random.split(key, 3)
    views = [jax.random.uniform(k, (STEPS, ENVS, 3, 3)) for k in keys[:2]]
    ends = jnp.zeros((STEPS, ENVS), bool).at[2, 0].set(True)
    cuts = jnp.zeros((STEPS, ENVS), bool).at[2, 1].set(True)
    is_first = jnp.zeros((STEPS, ENVS), bool).at[3].set(True)
    action = jax.random.randint(keys[2], (STEPS, ENVS), 0, 2)
    nothing = jnp.zeros((STEPS, ENVS))
    observation, successor = map(Observation, views)
    return Transition(observation, action, nothing, ends, cuts, successor, is_first, nothing)


@pytest.mark.parametrize("goes_on", [True, False])
def test_values_of_rnd_go_on_with_the_next_episode_and_others_do_not(goes_on):
    gamma, gae_lambda = 0.9, 0.95
    rewards = np.arange(1.0, 1.0 + STEPS * ENVS, dtype=np.float32).reshape(STEPS, ENVS) / 10.0
    bonus, state = bonus_of("rnd", f"system.intrinsic_gamma={gamma}")
    drawn = draw(jax.random.key(3))

    @jax.jit
    def estimate(params, steps):
        values = (bonus.value.apply(params, x) for x in (steps.observation, steps.next_observation))
        return bonus.estimate(params, bonus.as_task(steps) if goes_on else steps), tuple(values)

    found = jax.device_get(estimate(state.params["value"], drawn._replace(reward=jnp.asarray(rewards))))
    (advantage, target), (value, successor) = jax.tree.map(np.float64, found)
    drawn = jax.device_get(drawn)
    for env in range(ENVS):
        total = 0.0
        for t in reversed(range(STEPS)):
            ended, cut = (bool(flags[t, env]) and not goes_on for flags in (drawn.terminated, drawn.truncated))
            following = value[t + 1, env] if goes_on and t < STEPS - 1 else successor[t, env]
            error = float(rewards[t, env]) + gamma * (not ended) * following - value[t, env]
            total = error + gamma * gae_lambda * (not (ended or cut)) * total
            assert advantage[t, env] == pytest.approx(total, abs=1e-4)
            assert target[t, env] == pytest.approx(total + value[t, env], abs=1e-4)


@pytest.mark.slow
def test_gail_compares_actions_as_they_are_executed(tmp_path):
    """Rescaled torques of Pendulum are clipped to [-1, 1]."""
    view = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
    data = make_data()._replace(header=DataHeader(environment="gymnax/Pendulum-v1"), observation=Observation(view))
    write_data(tmp_path / "data.npz", data.with_statistics())
    overrides = ["system=ppo/ff_ppo", "env=gymnax/pendulum", "network=mlp_normal", f"system.data={tmp_path}/data.npz"]
    setup = setup_of(*SMALL, *overrides, "system.intrinsic=gail")
    bonus = make_algorithm(setup).intrinsic.add.__self__
    steps = draw(jax.random.key(0))
    steps = steps._replace(observation=Observation(jnp.ones((STEPS, ENVS, 3))))
    state = bonus.init(jax.random.key(1), steps._replace(observation=Observation(jnp.ones((ENVS, 3)))))
    bounded, beyond, within = (
        run(bonus.bonus, state, steps._replace(action=jnp.full((STEPS, ENVS, 1), torque))) for torque in (1.0, 5.0, 0.5)
    )
    np.testing.assert_array_equal(beyond, bounded)
    assert not np.allclose(within, bounded)
    # D is 3/4 for the action 1, and 1/4 for -1: -log(1 - D), and the cross-entropies of both labels.
    sure = with_methods(bonus, _logits=lambda self, params, observation, action: np.log(3.0) * action[..., 0])
    played, demonstrated = (jnp.full((STEPS, 1), action) for action in (-1.0, 1.0))
    np.testing.assert_allclose(sure.bonus(state, steps._replace(action=demonstrated)), np.log(4.0), rtol=1e-5)
    np.testing.assert_allclose(sure.bonus(state, steps._replace(action=played)), np.log(4.0 / 3.0), rtol=1e-5)
    batch = SimpleNamespace(observation=None, action=played, demonstrations=(None, demonstrated))
    np.testing.assert_allclose(sure.bonus_loss({}, (), batch), 2.0 * np.log(4.0 / 3.0), rtol=1e-5)


@pytest.mark.slow
def test_intrinsic_advantages_are_added_with_their_weight():
    bonus, state = bonus_of("rnd")
    steps, base = draw(jax.random.key(2)), jnp.arange(float(STEPS * ENVS)).reshape(STEPS, ENVS)
    added = []
    for weight in (0.0, 1.0, 2.0):
        weighted = dataclasses.replace(bonus, config=dataclasses.replace(bonus.config, intrinsic_weight=weight))
        added.append(run(weighted.add, state, bonus.init_memory(ENVS), steps, base, jax.random.key(3))[2] - base)
    np.testing.assert_array_equal(added[0], 0.0)
    assert np.abs(added[1]).max() > 0.1
    np.testing.assert_allclose(added[2], 2.0 * added[1], rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_returns_of_rnd_do_not_stay_infinite():
    bonus, state = bonus_of("rnd")
    steps, nothing = draw(jax.random.key(2)), jnp.zeros((STEPS, ENVS))
    memory = jnp.full_like(bonus.init_memory(ENVS), jnp.nan)
    new = run(bonus.add, state, memory, steps, nothing, jax.random.key(3))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((new[0].return_statistics, new[1])))


@pytest.mark.slow
def test_rnd_gets_used_to_the_ends_of_episodes():
    """The last successor of an episode loses its novelty as the others do, though another episode follows it."""
    bonus, state = bonus_of("rnd", "system.intrinsic_lr=1e-2", "system.decay_learning_rates=false")
    memory, steps = bonus.init_memory(ENVS), draw(jax.random.key(4))
    add, nothing, rewards = jax.jit(bonus.add), jnp.zeros((STEPS, ENVS)), []
    for i in range(200):
        state, memory, *_ = add(state, memory, steps, nothing, jax.random.key(i))
        successors = bonus.normalizer.apply(state.statistics, steps.next_observation)
        rewards.append(bonus.bonus(state, steps._replace(next_observation=successors)))
    ended = steps.terminated | steps.truncated
    assert float((rewards[-1] / rewards[0])[ended].max()) < 0.05


CARTPOLE = ["ppo/ff_ppo", "ppo/ff_dpo", "ppo/ff_ppo_penalty", "vpg/ff_a2c", "vpg/ff_reinforce", "impala/ff_impala"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "env", "network"),
    [
        *((system, "gymnax/cartpole", "mlp") for system in [*CARTPOLE, "mpo/ff_vmpo"]),
        *((system, "gymnax/cartpole", "rnn") for system in ("ppo/rec_ppo", "impala/rec_impala")),
        ("ppo/ff_ppo", "gymnax/pendulum", "mlp_continuous"),
        ("ppo/ff_ppo", "gymnax/breakout", "cnn"),
        ("ppo/ff_ppo", "navix/empty_5x5", "grid"),
    ],
)
def test_every_on_policy_system_takes_them(system, env, network):
    budget = ["arch.total_timesteps=512", "system.rollout_length=16", "system.intrinsic=rnd"]
    loop = trained(*SMALL, f"system={system}", f"env={env}", f"network={network}", *budget)
    assert np.isfinite(loop.history[-1]["eval/episode_return_mean"])
    assert all(
        np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(loop.state.shared.parts["intrinsic"].params))
    )


@pytest.mark.slow
@pytest.mark.parametrize(("system", "network"), [("ppo/ff_ppo", "mlp"), ("ppo/rec_ppo", "rnn")])
def test_resumed_members_with_rewards_of_their_own_are_bit_identical(tmp_path, system, network):
    overrides = [*SMALL, f"system={system}", f"network={network}", "env=gymnax/cartpole", "system.intrinsic=rnd"]
    overrides += ["system.rollout_length=8", "arch.total_timesteps=256", "arch.num_evaluation=4"]
    overrides += ["arch.update_batch_size=2", "+arch.population.hyperparams.intrinsic_weight=[0.0,1.0]"]
    whole = assert_resumed_equals_whole(lambda writer: loop_of(*overrides, writer=writer), tmp_path)
    kernels = jax.device_get(jax.tree.leaves(whole.state.shared.params.actor_params))
    assert any((leaf[0] != leaf[1]).any() for leaf in kernels)


@pytest.mark.slow
def test_only_novelty_solves_deep_sea():
    """A random policy reaches the reward of size 12 once in 4,096 episodes; the run has 4,266 of them."""
    budget = ["arch.total_timesteps=51200", "arch.total_num_envs=64", "system.rollout_length=12", "arch.seed=3"]
    task = ["network=mlp", "env=gymnax/deep_sea", "+env.kwargs.size=12", *budget, "arch.num_devices=1"]
    # Divided by their own deviation, the costs of moving would be as large as the bonus.
    task += ["system.normalize_rewards=false"]
    for kind, solved in (("null", False), ("rnd", True)):
        loop = trained(*task, f"system.intrinsic={kind}", "arch.num_evaluation=4")
        assert (loop.history[-1]["eval/episode_return_mean"] > 0.9) == solved
