import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_sac
from support.single_files import assert_close, assert_same_bits, assert_same_returns, train_both

SYSTEM = "sac/ff_sac"
# The buffer is full after half of the updates.
SMALL = [
    "env=gymnax/pendulum",
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=96",
    "arch.total_num_envs=4",
    "system.warmup_steps=14",
    "system.total_buffer_size=80",
    "system.total_batch_size=16",
    "network.actor_network.pre_torso.layer_sizes=[32,32]",
    "network.q_network.pre_torso.layer_sizes=[32,32]",
    "arch.seed=3",
]


def pairs(shared, learner):
    params = shared.params
    return (params.actor_params, *params.q_params, params.log_alpha), tuple(learner.params)


@pytest.mark.slow
def test_parameters_after_eight_gradient_steps_are_those_of_the_system():
    assert_same_bits(*pairs(*train_both(SYSTEM, "SAC", [*SMALL, "arch.total_timesteps=60"])))


@pytest.mark.slow
def test_a_truncated_step_bootstraps_from_its_successor_and_a_terminated_one_does_not():
    config = ff_sac.Config(num_envs=2, total_buffer_size=1024, layer_sizes=(4,), gamma=0.5, init_alpha=1e-9)
    sac = ff_sac.SAC(config)
    learner = jax.jit(sac.init)(jax.random.key(0), jax.random.key(1))
    ended = learner.replay.steps.terminated
    assert not jnp.any(ended)  # the pendulum is never done: its episodes are truncated after 200 steps
    values = jax.tree.map(jnp.zeros_like, learner.params.critics)
    for critic, value in (("networks_0", 4.0), ("networks_1", 2.0)):
        values["params"][critic]["critic_head"]["Dense_0"]["bias"] += value
    params = learner.params._replace(critics=values, targets=values)

    def loss(terminated):
        step = jax.tree.map(lambda x: x[:1], learner.replay.steps)
        step = step._replace(reward=jnp.ones(1), terminated=jnp.array([terminated]))
        return sac.critic_loss(values, params, step, jnp.zeros((1, 1)))

    # The smaller of the values 4 and 2 of the successor counts: the target is 1 + 2 / 2 = 2, and 1 without it.
    assert jnp.allclose(loss(False), 0.5 * (2.0**2 + 0.0**2))
    assert jnp.allclose(loss(True), 0.5 * (3.0**2 + 1.0**2))


@pytest.mark.slow
def test_with_other_settings_too():
    changes = ["system.reward_scale=0.1", "system.tau=0.1", "system.target_entropy_scale=0.5", "system.init_alpha=0.3"]
    changes += ["network.actor_network.action_head.min_scale=0.1", "arch.total_timesteps=60", "arch.seed=0"]
    assert_same_bits(*pairs(*train_both(SYSTEM, "SAC", [*SMALL, *changes])))


@pytest.mark.slow
def test_after_ten_updates_parameters_differ_by_rounding():
    # Now and then the compiler rounds an action in another way, where it joins other operations.
    assert_close(*pairs(*train_both(SYSTEM, "SAC", SMALL)), 1e-5)


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    assert_close(*pairs(*train_both(SYSTEM, "SAC", [*SMALL, "arch.total_timesteps=60"])), 1e-6)


@pytest.mark.slow
def test_evaluations_of_a_run_have_almost_the_same_returns(tmp_path):
    budget = ["env=gymnax/pendulum", "arch.total_timesteps=1536", "arch.num_evaluation=2", "arch.num_eval_episodes=8"]
    sizes = [f"network.{name}_network.pre_torso.layer_sizes=[64,64]" for name in ("actor", "q")]
    assert_same_returns(SYSTEM, [*budget, *sizes], tmp_path, rtol=1e-3)
