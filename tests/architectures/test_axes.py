import jax
import numpy as np
import pytest

from stoix_like.architectures.anakin import make_program
from stoix_like.architectures.axes import make_axes, make_mesh
from stoix_like.architectures.types import NO_INPUTS, ProgramSpec
from stoix_like.devices import find_devices
from support.recorder import recorder_program, start, train
from support.set_ups import setup_of


def ppo_state(*overrides):
    setup = setup_of("network.actor_network.pre_torso.layer_sizes=[8]", "arch.total_timesteps=1e5", *overrides)
    plan, config = setup.plan, setup.config.system
    spec = ProgramSpec(
        1,
        plan.envs_per_shard,
        config.rollout_length,
        most_truncations=setup.most_truncations,
        lone_shards=setup.lone_shards,
    )
    program = make_program(lambda hyperparams, inputs: setup.build_system(hyperparams), setup.env, setup.mesh, spec)
    state, interval = train(program, start(program, plan.num_shards), 3)
    return state, interval.metrics, interval.episodes


@pytest.mark.slow
def test_placement_of_shards_on_devices_does_not_change_the_results():
    """Two shards on one device and one shard on each of two devices use the same random numbers and minibatches.

    Results depend on the number of shards, though: each shard has its own keys, and shuffles its own steps.
    """
    common = [
        *("env=gymnax/cartpole", "arch.total_num_envs=8", "system.rollout_length=16"),
        "system.normalize_observations=true",
    ]
    one, metrics_one, episodes_one = ppo_state(*common, "arch.num_devices=1", "arch.update_batch_size=2")
    two, metrics_two, episodes_two = ppo_state(*common, "arch.num_devices=2", "arch.update_batch_size=1")
    # The all-reduce of two devices sums over shards in another order, which rounds differently.
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-4, atol=1e-5), one.shared, two.shared)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=2e-3, atol=1e-5), metrics_one, metrics_two)
    jax.tree.map(np.testing.assert_array_equal, jax.device_get(episodes_one), jax.device_get(episodes_two))
    np.testing.assert_array_equal(
        one.shards.rollout_state.timestep.episode.episode_length,
        two.shards.rollout_state.timestep.episode.episode_length,
    )


def test_single_device_program_has_no_collectives():
    assert make_axes(make_mesh(find_devices(1))).names == ("batch",)
    assert make_axes(make_mesh(find_devices(2))).names == ("device", "batch")
    assert make_axes(make_mesh(find_devices(2), spread_members=True)).names == ("batch",)
    assert make_axes(make_mesh(find_devices(1)), lone_shards=True).names == ()
    assert make_axes(make_mesh(find_devices(2)), lone_shards=True).names == ("device",)
    program = recorder_program()
    text = program.train.lower(start(program, 1), {}, np.int32(1), np.bool_(True), NO_INPUTS).compile().as_text()
    assert "all-reduce" not in text
