import jax
import jax.numpy as jnp
import numpy as np
import pytest
from selections import select
from toys import Config, make_recorder

from stoix_like.architectures import update
from stoix_like.architectures.anakin import make_program
from stoix_like.architectures.axes import make_axes
from stoix_like.architectures.episodes import add_episodes, no_episodes, reduce_episodes
from stoix_like.architectures.sums import FloatSum
from stoix_like.architectures.types import ProgramSpec
from stoix_like.base_types import Axes, EpisodeMetrics
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.run.devices import find_devices, make_mesh
from stoix_like.run.setup import set_up

pytestmark = pytest.mark.optimized


def recorder_program(
    num_devices=1,
    warmup_steps=0,
    num_envs=2,
    probe="value",
    rollout_length=3,
    population=1,
    ignore=False,
    **options,
):
    mesh = make_mesh(find_devices(num_devices))
    env = factory.make(parse_config(compose_config([f"env=probe/{probe}"])).env)

    def build(hyperparams):
        return make_recorder(make_axes(mesh), Config(rollout_length=rollout_length, **options, **hyperparams))

    return make_program(build, env, mesh, ProgramSpec(population, num_envs, rollout_length, warmup_steps, ignore))


def start(program, num_shards, seed=0):
    key, shards_key = jax.random.split(jax.random.key(seed))
    return program.init({}, key, jax.random.split(shards_key, num_shards))


def train(program, state, num_updates):
    return program.train(state, {}, np.int32(num_updates), np.bool_(True))


@pytest.mark.parametrize(
    ("num_devices", "num_shards"),
    select([(1, 1), (1, 2), (2, 2), (2, 4)], quick=[(2, 4)]),
)
def test_shared_state_has_one_copy_and_local_state_one_per_shard(num_devices, num_shards):
    program = recorder_program(num_devices)
    state, interval = train(program, start(program, num_shards), 5)
    metrics, episodes = interval.metrics, interval.episodes
    # The reward is 1 in every step, and every episode has one step.
    assert state.shared["updates"] == 5
    assert state.shared["reward"] == 5.0
    assert state.shards.local.steps.shape == (num_shards,)
    assert (state.shards.local.steps == 5 * 3 * 2).all()
    assert metrics["reward"] == 1.0
    assert episodes.number.value == 5 * 3 * 2 * num_shards
    assert episodes.return_sum.total == episodes.number.value
    assert (episodes.return_min, episodes.return_max) == (1.0, 1.0)


def test_intervals_of_different_lengths_share_one_program():
    program = recorder_program()
    state, _ = train(program, start(program, 1), 2)
    state, _ = train(program, state, 3)
    assert state.shared["updates"] == 5
    assert program.train._cache_size() == 1


def test_recurrent_state_persists_between_rollouts():
    program = recorder_program()
    # `act` adds one to its carry in each of 3 steps: rollouts start with 0, 3, 6 and 9, on average 4.5.
    _, interval = train(program, start(program, 1), 4)
    assert interval.metrics["first_carry"] == 4.5


def test_the_mean_of_a_metric_survives_its_hundred_millionth_update():
    program = recorder_program()
    state = start(program, 1)
    # Beyond 2**24, adding 1 leaves a float32 sum unchanged.
    sums = state.sums._replace(healthy_updates=jnp.int32(10**8))
    sums.metrics["reward"] = FloatSum(jnp.float32(10**8), jnp.float32(0))
    state, interval = program.train(state._replace(sums=sums), {}, np.int32(1000), np.bool_(False))
    assert interval.healthy_updates == 10**8 + 1000
    total, low = state.sums.metrics["reward"]
    assert np.float64(total) + np.float64(low) == 10**8 + 1000
    assert interval.metrics["reward"] == 1.0


def test_train_donates_its_state():
    program = recorder_program()
    state = start(program, 1)
    train(program, state, 1)
    assert state.shards.local.steps.is_deleted()


def test_missing_average_over_shards_raises_when_tracing():
    # The rewards of this probe equal random observations, which differ between shards.
    program = recorder_program(probe="observed_value", forget_mean=True)
    with pytest.raises(ValueError, match="vmap has mapped output"):
        train(program, start(program, 2), 1)


def test_warmup_passes_random_actions_to_observe_only():
    program = recorder_program(probe="action", num_envs=4, rollout_length=5, warmup_steps=50)
    state = start(program, 1)
    assert state.shared["updates"] == 0
    assert state.shards.local.steps == 4 * 50
    # 200 fair draws of 0 or 1: within 5 standard deviations (35) of 100, unlike the zeros of `act`.
    assert 65 < float(state.shards.local.action_sum[0]) < 135


def ppo_state(*overrides):
    setup = set_up(
        parse_config(
            compose_config(["network.actor_network.pre_torso.layer_sizes=[8]", "arch.total_timesteps=1e5", *overrides])
        )
    )
    plan, config = setup.plan, setup.config.system
    spec = ProgramSpec(1, plan.envs_per_shard, config.rollout_length)
    program = make_program(lambda hyperparams: setup.build_system(hyperparams), setup.env, setup.mesh, spec)
    state, interval = train(program, start(program, plan.num_shards), 3)
    return state, interval.metrics, interval.episodes


@pytest.mark.slow
def test_placement_of_shards_on_devices_does_not_change_the_results():
    """Two shards on one device and one shard on each of two devices use the same random numbers and minibatches.

    Results depend on the number of shards, though: each shard has its own keys, and shuffles its own steps.
    """
    common = [
        "env=gymnax/cartpole",
        "arch.total_num_envs=8",
        "system.rollout_length=16",
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


def test_episode_sums_include_only_finished_episodes():
    episodes = EpisodeMetrics(
        episode_return=jnp.asarray([[1.0, 5.0], [2.0, 7.0]]),
        episode_length=jnp.asarray([[1, 5], [2, 7]]),
        finished=jnp.asarray([[False, True], [True, False]]),
    )
    sums = reduce_episodes(add_episodes(no_episodes(), episodes), Axes())
    assert (sums.number.value, sums.return_sum.total, sums.length_sum.value) == (2, 7.0, 7)
    assert (sums.return_min, sums.return_max) == (2.0, 5.0)


def test_a_window_of_ten_billion_steps_loses_no_step_and_no_return():
    # 10,000 rollouts in which 1,000 environments finish an episode of 999,999 steps: 32-bit counters of steps would
    # wrap in the fifth rollout.
    episodes = EpisodeMetrics(
        episode_return=jnp.full((1, 1000), 0.1),
        episode_length=jnp.full((1, 1000), 999_999),
        finished=jnp.ones((1, 1000), bool),
    )
    rollouts = 10_000
    sums = jax.jit(
        lambda: jax.lax.fori_loop(0, rollouts, lambda _, sums: add_episodes(sums, episodes), no_episodes())
    )()
    assert sums.number.value == rollouts * 1000
    assert sums.length_sum.value == rollouts * 1000 * 999_999
    np.testing.assert_allclose(sums.return_sum.total, rollouts * 100.0, rtol=1e-6)


def test_single_device_program_has_no_collectives():
    assert make_axes(make_mesh(find_devices(1))).names == ("batch",)
    assert make_axes(make_mesh(find_devices(2))).names == ("device", "batch")
    assert make_axes(make_mesh(find_devices(2), spread_members=True)).names == ("batch",)
    assert make_axes(make_mesh(find_devices(1)), lone_shards=True).names == ()
    assert make_axes(make_mesh(find_devices(2)), lone_shards=True).names == ("device",)
    program = recorder_program()
    text = program.train.lower(start(program, 1), {}, np.int32(1), np.bool_(True)).compile().as_text()
    assert "all-reduce" not in text


def test_non_finite_metric_is_reported_and_excluded_from_the_average():
    program = recorder_program(nan_at=3.0)
    state, interval = train(program, start(program, 1), 5)
    assert not state.healthy
    assert interval.healthy_updates == 2
    assert {name: bool(flag) for name, flag in interval.bad_metrics.items()} == {"reward": True, "first_carry": False}
    assert interval.metrics["reward"] == 1.0
    # A single agent is not frozen: the host decides whether the run continues.
    assert state.shared["updates"] == 5


@pytest.mark.parametrize("population", [1, 2])
def test_ignored_nan_neither_freezes_members_nor_stops_the_sums(population):
    program = recorder_program(nan_at=3.0, population=population, ignore=True)
    keys = jax.random.split(jax.random.key(0), population) if population > 1 else jax.random.key(0)
    shard_keys = jax.random.split(jax.random.key(1), (population, 1) if population > 1 else 1)
    state, interval = train(program, program.init({}, keys, shard_keys), 5)
    assert np.all(state.shared["updates"] == 5)
    assert np.all(state.healthy)
    assert np.all(interval.healthy_updates == 5)
    assert np.all(np.isnan(interval.metrics["reward"]))
    _, interval = train(program, state, 2)
    assert np.all(interval.metrics["reward"] == 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_all_finite_detects_non_finite_parameters(bad):
    number = jnp.ones((), jnp.int32)
    assert not bool(update._all_finite({"a": jnp.ones(3), "b": jnp.asarray([0.0, bad]), "n": number}))
    assert bool(update._all_finite({"a": jnp.ones(3), "k": jax.random.key(0), "n": number}))


def test_interval_in_several_calls_equals_one_call():
    program = recorder_program(probe="observed_value")
    whole, interval = train(program, start(program, 1), 5)
    state = start(program, 1)
    for num_updates, new_interval in ((2, True), (0, False), (3, False)):
        state, parts = program.train(state, {}, np.int32(num_updates), np.bool_(new_interval))
    jax.tree.map(np.testing.assert_array_equal, parts, interval)
    jax.tree.map(np.testing.assert_array_equal, state.shared, whole.shared)


def test_initialisation_and_training_share_one_trace_of_the_update(monkeypatch):
    traced, original = [], update.ShardProgram.roll_out_and_update
    monkeypatch.setattr(
        update.ShardProgram, "roll_out_and_update", lambda *args: traced.append(args) or original(*args)
    )
    program, key = recorder_program(), jax.random.key(0)
    state = jax.eval_shape(program.init, {}, key, jax.random.split(key, 1))
    program.train.trace(state, {}, np.int32(1), np.bool_(True))
    assert len(traced) == 1
