import jax
import jax.numpy as jnp
import numpy as np
import pytest
from toys import make_recorder

from stoix_like.base_types import EpisodeMetrics
from stoix_like.config import compose_config, typed
from stoix_like.envs import factory
from stoix_like.runner import anakin
from stoix_like.runner.devices import make_mesh
from stoix_like.runner.experiment import make_system, prepare


def recorder_program(num_devices=1, warmup_steps=0, num_envs=2, probe="value", **options):
    mesh = make_mesh(num_devices)
    env = factory.make(typed(compose_config([f"env=probe/{probe}"])).env)
    system = make_recorder(anakin.make_axes(mesh), **options)
    return anakin.make_program(system, env, mesh, num_envs, rollout_length=3, warmup_steps=warmup_steps)


def start(program, num_shards, seed=0):
    key, shards_key = jax.random.split(jax.random.key(seed))
    return anakin.LearnerState(*program.init(key, jax.random.split(shards_key, num_shards)))


@pytest.mark.parametrize(("num_devices", "num_shards"), [(1, 1), (1, 2), (2, 2), (2, 4)])
def test_one_copy_of_what_is_shared_and_one_of_the_rest_per_shard(num_devices, num_shards):
    program = recorder_program(num_devices)
    state, metrics, episodes = program.train(start(program, num_shards), np.int32(5))
    # The probe pays 1 in every step, and each of its episodes lasts one step.
    assert state.shared["updates"] == 5
    assert state.shared["reward"] == 5.0
    assert state.shards.local.steps.shape == (num_shards,)
    assert (state.shards.local.steps == 5 * 3 * 2).all()
    assert metrics["reward"] == 1.0
    assert episodes.number == 5 * 3 * 2 * num_shards
    assert episodes.return_sum == episodes.number
    assert (episodes.return_min, episodes.return_max) == (1.0, 1.0)


def test_windows_of_different_lengths_share_one_program():
    program = recorder_program()
    state, *_ = program.train(start(program, 1), np.int32(2))
    state, *_ = program.train(state, np.int32(3))
    assert state.shared["updates"] == 5
    assert program.train._cache_size() == 1


def test_recurrent_state_runs_on_from_rollout_to_rollout():
    program = recorder_program()
    # `act` counts its carry up by one in each of 3 steps: rollouts begin with 0, 3, 6 and 9, 4.5 on average.
    _, metrics, _ = program.train(start(program, 1), np.int32(4))
    assert metrics["first_carry"] == 4.5


def test_the_state_is_donated():
    program = recorder_program()
    state = start(program, 1)
    program.train(state, np.int32(1))
    assert state.shards.local.steps.is_deleted()


@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_forgotten_mean_is_refused_when_the_program_is_traced(num_shards):
    # The rewards of this probe follow random observations, which differ from shard to shard.
    program = recorder_program(probe="observed_value", forget_mean=True)
    with pytest.raises(ValueError, match="vmap has mapped output"):
        program.train(start(program, num_shards), np.int32(1))


def test_warm_up_hands_random_actions_to_observe_alone():
    mesh = make_mesh(1)
    env = factory.make(typed(compose_config(["env=probe/action"])).env)
    system = make_recorder(anakin.make_axes(mesh))
    program = anakin.make_program(system, env, mesh, num_envs=4, rollout_length=5, warmup_steps=50)
    state = start(program, 1)
    assert state.shared["updates"] == 0
    assert state.shards.local.steps == 4 * 50
    # 200 fair draws of 0 or 1: within 5 standard deviations (35) of 100, and not the zeros of `act`.
    assert 65 < float(state.shards.local.action_sum[0]) < 135


def ppo_state(*overrides):
    prepared = prepare(
        typed(
            compose_config(["network.actor_network.pre_torso.layer_sizes=[8]", "arch.total_timesteps=1e5", *overrides])
        )
    )
    plan, config = prepared.plan, prepared.run.system
    program = anakin.make_program(
        make_system(prepared), prepared.env, prepared.mesh, plan.envs_per_shard, config.rollout_length, 0
    )
    return program.train(start(program, plan.num_shards), np.int32(3))


def test_same_numbers_however_the_shards_lie_on_devices():
    """Two shards on one device and one on each of two draw the same random numbers and take the same minibatches.

    Between different numbers of shards the numbers differ: each shard has its own keys, and shuffles its own steps.
    """
    common = [
        "env=gymnax/cartpole",
        "arch.total_num_envs=8",
        "system.rollout_length=16",
        "system.normalize_observations=true",
    ]
    one, metrics_one, episodes_one = ppo_state(*common, "arch.num_devices=1", "arch.update_batch_size=2")
    two, metrics_two, episodes_two = ppo_state(*common, "arch.num_devices=2", "arch.update_batch_size=1")
    # Sums over two shards are rounded in another order by the all-reduce of two devices.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), one.shared, two.shared)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5), metrics_one, metrics_two)
    np.testing.assert_array_equal(jax.device_get(tuple(episodes_one)), jax.device_get(tuple(episodes_two)))
    np.testing.assert_array_equal(
        one.shards.actor.timestep.episode.episode_length, two.shards.actor.timestep.episode.episode_length
    )


def test_episode_sums_count_only_what_finished():
    episodes = EpisodeMetrics(
        episode_return=jnp.asarray([[1.0, 5.0], [2.0, 7.0]]),
        episode_length=jnp.asarray([[1, 5], [2, 7]]),
        finished=jnp.asarray([[False, True], [True, False]]),
    )
    sums = anakin.sum_episodes(episodes)
    assert tuple(float(value) for value in sums) == (2, 7.0, 2.0, 5.0, 7.0)
    joined = anakin.add_episodes(sums, anakin.no_episodes())
    assert tuple(float(value) for value in joined) == (2, 7.0, 2.0, 5.0, 7.0)


def test_no_collective_over_one_device():
    assert anakin.make_axes(make_mesh(1)).names == ("batch",)
    assert anakin.make_axes(make_mesh(2)).names == ("device", "batch")
    program = recorder_program()
    text = program.train.lower(start(program, 1), np.int32(1)).compile().as_text()
    assert "all-reduce" not in text
