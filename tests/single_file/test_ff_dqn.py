import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_dqn
from support.single_files import assert_close, assert_same_bits, assert_same_returns, train_both

SYSTEM = "q_learning/ff_dqn"
# The buffer is full after half of the updates.
SMALL = [
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=576",
    "arch.total_num_envs=4",
    "system.warmup_steps=64",
    "system.total_buffer_size=400",
    "system.total_batch_size=16",
    "arch.seed=3",
]


def pairs(shared, learner):
    return tuple(shared.params), (learner.params, learner.target_params)


@pytest.mark.slow
def test_parameters_after_ten_updates_are_those_of_the_system():
    assert_same_bits(*pairs(*train_both(SYSTEM, "DQN", SMALL)))


def test_a_truncated_step_bootstraps_from_its_successor_and_a_terminated_one_does_not():
    dqn = ff_dqn.DQN(ff_dqn.Config(max_episode_steps=12, num_envs=4, total_buffer_size=1024, gamma=0.5))
    learner = jax.jit(dqn.init)(jax.random.key(0), jax.random.key(1))
    steps = jax.tree.map(lambda x: x[: int(learner.replay.size)], learner.replay.steps)
    following = jnp.concatenate([steps.obs[4:], learner.obs])
    ended = jnp.any(steps.next_obs != following, axis=-1)
    # Steps whose successor is not the next observation ended an episode; only some of them terminated it.
    assert jnp.any(ended & ~steps.terminated)
    assert jnp.any(ended & steps.terminated)
    assert not jnp.any(~ended & steps.terminated)
    values = jax.tree.map(jnp.zeros_like, learner.params)
    values["params"]["action_head"]["Dense_0"]["bias"] += jnp.array([4.0, 2.0])
    truncated, terminated = (
        ff_dqn.Transition(steps.obs[:1], jnp.array([1]), jnp.ones(1), jnp.array([flag]), steps.next_obs[:1])
        for flag in (False, True)
    )
    # The value of the action is 2, and the best value of the successor 4: 1 + 4 / 2 - 2 = 1, and 1 - 2 = -1.
    assert dqn.loss(values, values, truncated) == 0.5 * 1.0**2
    assert dqn.loss(values, jax.tree.map(lambda x: 2 * x, values), truncated) == 0.5 * 3.0**2
    assert dqn.loss(values, values, terminated) == 0.5 * (-1.0) ** 2


@pytest.mark.slow
def test_with_other_settings_too():
    changes = ["system.decay_learning_rates=false", "system.reward_scale=0.1", "system.exploration_fraction=0.0"]
    assert_same_bits(*pairs(*train_both(SYSTEM, "DQN", [*SMALL, *changes, "env=gymnax/acrobot", "arch.seed=0"])))


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    assert_close(*pairs(*train_both(SYSTEM, "DQN", [*SMALL, "arch.total_timesteps=288"])), 1e-6)


@pytest.mark.slow
def test_evaluations_of_a_run_have_the_same_returns(tmp_path):
    budget = ["arch.total_timesteps=20480", "arch.num_evaluation=4", "arch.num_eval_episodes=8"]
    assert_same_returns(SYSTEM, budget, tmp_path)
