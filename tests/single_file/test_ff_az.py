import jax
import jax.numpy as jnp
import pytest

from stoix_like.single_file import ff_az
from support.programs import make_program
from support.single_files import assert_close, assert_same_bits, assert_same_returns, settings, train_both

SYSTEM = "search/ff_az"
SMALL = [
    "+env.params.max_steps_in_episode=12",
    "arch.total_timesteps=448",
    "arch.total_num_envs=4",
    "system.rollout_length=16",
    "system.warmup_steps=48",
    "system.total_buffer_size=320",
    "system.total_batch_size=8",
    "system.num_simulations=8",
    "system.sequence_length=16",
    "system.n_step=5",
    "arch.seed=3",
]


def pairs(shared, learner):
    return tuple(shared.params), (learner.params["actor"], learner.params["critic"])


@pytest.mark.slow
def test_parameters_at_first_and_the_first_searches_are_those_of_the_system():
    _, program, arguments = make_program([f"system={SYSTEM}", *SMALL])
    script, config = settings(SYSTEM, SMALL)
    params_key, key, _ = script.split_seed(config.seed)
    learner = jax.jit(script.AlphaZero(config).init)(params_key, key)
    state = program.init(*arguments)
    assert_same_bits(*pairs(state.shared, learner))
    steps, ours = state.shards.local.experience.steps, learner.replay.blocks
    # Those of the system have an axis of shards.
    probs, reward, terminated = (
        x.reshape(y.shape)
        for x, y in (
            (steps.extras.weights, ours.probs),
            (steps.reward, ours.reward),
            (steps.terminated, ours.terminated),
        )
    )
    assert jnp.allclose(probs, ours.probs, atol=1e-6)
    assert jnp.array_equal(reward, ours.reward)
    assert jnp.array_equal(terminated, ours.terminated)
    assert ours.truncated.any()
    assert ours.terminated.any()


@pytest.mark.slow
def test_parameters_after_ten_updates_are_those_of_the_system():
    # Returns of n steps are summed in another order.
    overrides = [*SMALL, "arch.total_timesteps=832"]
    assert_close(*pairs(*train_both(SYSTEM, "AlphaZero", overrides)), 1e-5)


@pytest.mark.slow
def test_returns_end_with_episodes_and_bootstrap_where_they_are_truncated():
    az = ff_az.AlphaZero(ff_az.Config(gamma=0.5, n_step=2))
    flags = jnp.array([[False], [True], [False], [False]])

    def targets(terminated, truncated):
        value = jnp.full((4, 1), 4.0)
        batch = ff_az.Sample(None, jnp.ones((4, 1)), terminated, truncated, None, value)
        return az.value_target(batch)[:, 0].tolist()

    # 1 + 4 / 2 = 3 for one step, 1 + 3 / 2 for two; the sequence ends after the last step.
    assert targets(flags & False, flags & False) == [2.5, 2.5, 2.5, 3]
    assert targets(flags & False, flags) == [2.5, 3, 2.5, 3]
    assert targets(flags, flags & False) == [1.5, 1, 2.5, 3]


@pytest.mark.slow
@pytest.mark.optimized
def test_compiled_with_all_optimisations_parameters_differ_by_rounding():
    overrides = [*SMALL, "arch.total_timesteps=256"]
    assert_close(*pairs(*train_both(SYSTEM, "AlphaZero", overrides)), 1e-5)


@pytest.mark.slow
def test_evaluations_of_a_run_have_the_same_returns(tmp_path):
    budget = ["arch.total_timesteps=832", "arch.num_evaluation=2", "arch.num_eval_episodes=4"]
    assert_same_returns(SYSTEM, [*SMALL, *budget, "system.evaluation_simulations=4"], tmp_path)
