import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import rec_ppo
from support.programs import make_program
from support.single_files import assert_close, assert_same_bits, assert_same_returns, settings, train_both

SYSTEM = "ppo/rec_ppo"
SMALL = [
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=1280",
    "arch.total_num_envs=4",
    "system.rollout_length=32",
    "arch.seed=3",
]


def pairs(shared, learner):
    return tuple(shared.params), (learner.params["actor"], learner.params["critic"])


@pytest.mark.slow
def test_parameters_after_ten_updates_are_those_of_the_system():
    # The system has a gradient of gated recurrent units of its own, which sums in another order.
    assert_close(*pairs(*train_both(SYSTEM, "RecurrentPPO", SMALL)), 1e-5)


@pytest.mark.slow
def test_parameters_at_first_are_those_of_the_system():
    _, program, arguments = make_program([f"system={SYSTEM}", *SMALL])
    script, config = settings(SYSTEM, SMALL)
    params_key, key, _ = script.split_seed(config.seed)
    learner = jax.jit(script.RecurrentPPO(config).init)(params_key, key)
    assert_same_bits(*pairs(program.init(*arguments).shared, learner))


@pytest.mark.slow
def test_a_successor_continues_from_the_state_of_its_step_and_the_next_episode_does_not():
    ppo = rec_ppo.RecurrentPPO(rec_ppo.Config(num_envs=1, rollout_length=3, gamma=0.5, gae_lambda=0.0))
    learner = jax.jit(ppo.init)(jax.random.key(0), jax.random.key(1))
    obs = jax.random.normal(jax.random.key(2), (3, 1, 4))
    next_obs = jax.random.normal(jax.random.key(3), (3, 1, 4))
    truncated = jnp.array([[False], [True], [False]])
    is_first = jnp.array([[True], [False], [True]])
    step = rec_ppo.Step(obs, jnp.ones((3, 1)), truncated & False, truncated, next_obs)
    _, _, target = ppo.advantages(learner, rec_ppo.Transition(obs, is_first, None, None, step), step.reward)

    def value(*sequence):
        """Return the last value of one episode, from its first observation on."""
        starts = jnp.arange(len(sequence)) == 0
        outputs = (learner.params["critic"], jnp.zeros((1, 64)), jnp.stack(sequence), starts[:, None])
        return ppo.critic.apply(*outputs)[1][-1, 0, 0]

    expected = [value(obs[0], next_obs[0]), value(obs[0], obs[1], next_obs[1]), value(obs[2], next_obs[2])]
    assert jnp.allclose(target[:, 0], 1.0 + 0.5 * jnp.stack(expected), atol=1e-6)


@pytest.mark.slow
def test_with_other_settings_too():
    changes = ["system.decay_learning_rates=false", "system.normalize_rewards=false", "arch.seed=0"]
    assert_close(*pairs(*train_both(SYSTEM, "RecurrentPPO", [*SMALL, *changes])), 1e-5)


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    assert_close(*pairs(*train_both(SYSTEM, "RecurrentPPO", [*SMALL, "arch.total_timesteps=128"])), 1e-5)


@pytest.mark.slow
def test_evaluations_of_a_run_have_the_same_returns(tmp_path):
    budget = ["arch.total_timesteps=4096", "arch.num_evaluation=2", "arch.num_eval_episodes=8"]
    assert_same_returns(SYSTEM, budget, tmp_path)
