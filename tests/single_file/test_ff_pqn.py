import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_pqn
from support.single_files import assert_close, assert_same_bits, assert_same_returns, train_both

SYSTEM = "q_learning/ff_pqn"
SMALL = [
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=1280",
    "arch.total_num_envs=4",
    "system.exploration_fraction=0.5",
    "arch.seed=3",
]


def pairs(shared, learner):
    return shared.params, learner.params


@pytest.mark.slow
def test_parameters_after_ten_updates_are_those_of_the_system():
    assert_same_bits(*pairs(*train_both(SYSTEM, "PQN", SMALL)))


@pytest.mark.slow
def test_a_truncated_episode_has_a_value_beyond_its_end_and_a_terminated_one_has_none():
    pqn = ff_pqn.PQN(ff_pqn.Config(gamma=0.5, q_lambda=1.0))
    flags = jnp.array([[False], [True], [False]])
    obs = jnp.zeros((3, 1, 4))
    params = jax.tree.map(jnp.zeros_like, jax.jit(pqn.network.init)(jax.random.key(0), obs))
    params["params"]["action_head"]["Dense_0"]["bias"] += jnp.array([4.0, 2.0])

    def targets(terminated, truncated):
        step = ff_pqn.Step(obs, jnp.ones((3, 1)), terminated, truncated, obs)
        return pqn.targets(params, step)[:, 0].tolist()

    # The best value is 4: 1 + 4 / 2 = 3 for the last step and for the truncated one, which starts no other return.
    assert targets(~flags & False, flags) == [1 + 3 / 2, 3, 3]
    # A terminated step has its reward alone.
    assert targets(flags, ~flags & False) == [1 + 1 / 2, 1, 3]


@pytest.mark.slow
def test_with_other_settings_too():
    changes = ["system.decay_learning_rates=false", "system.reward_scale=0.1", "system.q_lambda=0.5"]
    assert_same_bits(*pairs(*train_both(SYSTEM, "PQN", [*SMALL, *changes, "env=gymnax/acrobot", "arch.seed=0"])))


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    assert_close(*pairs(*train_both(SYSTEM, "PQN", [*SMALL, "arch.total_timesteps=128"])), 1e-6)


@pytest.mark.slow
def test_evaluations_of_a_run_have_the_same_returns(tmp_path):
    budget = ["arch.total_timesteps=20480", "arch.num_evaluation=4", "arch.num_eval_episodes=8"]
    assert_same_returns(SYSTEM, budget, tmp_path)
