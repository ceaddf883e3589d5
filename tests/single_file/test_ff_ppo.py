import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_ppo
from support.single_files import assert_close, assert_same_bits, assert_same_returns, train_both

SYSTEM = "ppo/ff_ppo"
# A random policy keeps the pole up for 9 steps at least: some episodes are truncated, and some terminate.
SMALL = [
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=1280",
    "arch.total_num_envs=4",
    "system.rollout_length=32",
    "system.normalize_rewards=false",
    "arch.seed=3",
]


def pairs(shared, learner):
    return tuple(shared.params), (learner.params["actor"], learner.params["critic"])


def test_parameters_after_ten_updates_are_those_of_the_system():
    assert_same_bits(*pairs(*train_both(SYSTEM, "PPO", SMALL)))


def test_rollouts_have_truncated_and_terminated_episodes():
    ppo = ff_ppo.PPO(ff_ppo.Config(max_episode_steps=12, num_envs=4, rollout_length=32))
    learner = jax.jit(ppo.init)(jax.random.key(0), jax.random.key(1))
    _, steps = jax.jit(ppo.rollout)(learner, jax.random.key(2))
    ended = steps.step.terminated | steps.step.truncated
    assert steps.step.terminated.any()
    assert steps.step.truncated.any()
    assert jnp.array_equal(ended, jnp.any(steps.step.next_obs != steps.step.obs, axis=-1))


def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none():
    ppo = ff_ppo.PPO(ff_ppo.Config(gamma=0.5, gae_lambda=1.0))
    flags = jnp.array([[False], [True], [False]])
    reward, obs = jnp.ones((3, 1)), jnp.zeros((3, 1, 4))
    params = {"critic": jax.tree.map(jnp.zeros_like, jax.jit(ppo.critic.init)(jax.random.key(0), obs))}
    params["critic"]["params"]["critic_head"]["Dense_0"]["bias"] += 4.0

    def targets(terminated, truncated):
        step = ff_ppo.Step(obs, reward, terminated, truncated, obs)
        return ppo.advantages(params, ff_ppo.Transition(obs, None, None, step), reward)[1][:, 0].tolist()

    # All values are 4: 1 + 4 / 2 = 3 for the last step and for the truncated one, which starts no other return.
    assert targets(~flags & False, flags) == [1 + 3 / 2, 3, 3]
    # A terminated step has its reward alone.
    assert targets(flags, ~flags & False) == [1 + 1 / 2, 1, 3]


@pytest.mark.slow
def test_with_other_settings_too():
    changes = [
        "system.decay_learning_rates=false",
        "system.ent_coef=0.0",
        "network.actor_network.pre_torso.activation=relu",
    ]
    changes += ["network.critic_network.pre_torso.activation=relu", "arch.seed=0"]
    assert_same_bits(*pairs(*train_both(SYSTEM, "PPO", [*SMALL, *changes])))


@pytest.mark.slow
def test_with_normalised_rewards_parameters_differ_by_rounding():
    # The system keeps the rounding errors of its running statistics.
    assert_close(*pairs(*train_both(SYSTEM, "PPO", [*SMALL, "system.normalize_rewards=true"])), 1e-5)


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    assert_close(*pairs(*train_both(SYSTEM, "PPO", [*SMALL, "arch.total_timesteps=128"])), 1e-6)


@pytest.mark.slow
def test_evaluations_of_a_run_have_the_same_returns(tmp_path):
    budget = ["arch.total_timesteps=20480", "arch.num_evaluation=4", "arch.num_eval_episodes=8"]
    assert_same_returns(SYSTEM, [*budget, "system.normalize_rewards=false"], tmp_path)
