from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures import update
from stoix_like.architectures.episodes import no_episodes
from stoix_like.architectures.sums import FloatSum
from stoix_like.architectures.types import NO_INPUTS, Inputs, ProgramSpec
from stoix_like.base_types import Axes
from stoix_like.errors import ConfigError
from support import recorder
from support.recorder import recorder_program, start, train


def test_the_mean_of_a_metric_survives_its_hundred_millionth_update():
    program = recorder_program()
    state = start(program, 1)
    # Beyond 2**24, adding 1 leaves a float32 sum unchanged.
    sums = state.sums._replace(healthy_updates=jnp.int32(10**8))
    sums.metrics["reward"] = FloatSum(jnp.float32(10**8), jnp.float32(0))
    state, interval = program.train(state._replace(sums=sums), {}, np.int32(1000), np.bool_(False), NO_INPUTS)
    assert interval.healthy_updates == 10**8 + 1000
    total, low = state.sums.metrics["reward"]
    assert np.float64(total) + np.float64(low) == 10**8 + 1000
    assert interval.metrics["reward"] == 1.0


def test_an_update_without_metrics_is_refused(monkeypatch):
    def silent(*args):
        return make_recorder(*args)._replace(update=lambda agent, trajectory, key: (agent, {}))

    make_recorder = recorder.make_recorder
    monkeypatch.setattr(recorder, "make_recorder", silent)
    with pytest.raises(ConfigError, match="update returns no metrics: return at least one"):
        start(recorder_program(), 1)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"per_step": jnp.ones(8)}, r"metric per_step is float32\[8\]: return its mean"),
        ({"loss": 0.0, "norms": {"actor": 1.0}}, "metric norms is a dict: return scalars"),
        ({"episodes": 1.0}, "metric episodes: train/episodes is a statistic of finished episodes: use another name"),
        # A measure of the environments below.
        ({"won": 1.0}, "train/won is a metric of the system and a measure"),
    ],
)
def test_metrics_that_cannot_be_averaged_or_would_be_overwritten_are_refused(metrics, message):
    system = recorder.make_recorder(Axes())._replace(update=lambda agent, trajectory, key: (agent, metrics))
    env = SimpleNamespace(num_agents=1)
    program = update.ShardProgram(system, env, Axes(), ProgramSpec(1, 1, 1, offline=True), Inputs(data=NoData()))
    shard = update.Shard((), (), jax.random.key(0), no_episodes(["won"]))
    with pytest.raises(ConfigError, match=message):
        program.roll_out_and_update((), shard)


class NoData:
    def trajectory(self, length):
        return ()


def test_python_numbers_in_an_initial_state_are_arrays_of_the_run(monkeypatch):
    """As `step=0` of `TrainState.create` in flax; each update adds 1, and the mean reward of the probe, which is 1."""

    def plain(*args):
        system, shared = make_recorder(*args), {"reward": 0.0, "updates": 0}
        return system._replace(init=lambda key, timestep: system.init(key, timestep)._replace(shared=shared))

    make_recorder = recorder.make_recorder
    monkeypatch.setattr(recorder, "make_recorder", plain)
    program = recorder_program()
    first = start(program, 1)
    assert not any(jax.typeof(leaf).weak_type for leaf in first.shared.values())  # `train` is then traced once
    state, _ = train(program, first, 3)
    assert jax.device_get(state.shared) == {"reward": 3.0, "updates": 3}


def test_warmup_passes_random_actions_to_observe_only():
    program = recorder_program(probe="action", num_envs=4, rollout_length=5, warmup_steps=50)
    state = start(program, 1)
    assert state.shared["updates"] == 0
    assert state.shards.local.steps == 4 * 50
    # 200 fair draws of 0 or 1: within 5 standard deviations (35) of 100, unlike the zeros of `act`.
    assert 65 < float(state.shards.local.action_sum[0]) < 135


def keys_of(population):
    """Return the keys of the members and of their only shards; of one member, without an axis."""
    members = (population,) if population > 1 else ()
    return jax.random.split(jax.random.key(0), members), jax.random.split(jax.random.key(1), (*members, 1))


@pytest.mark.parametrize("population", [1, 2])
def test_warm_up_plays_with_the_leaves_that_are_given(population):
    program = recorder_program(warmup_steps=6, population=population)
    updates = jnp.asarray([7, 8], jnp.int32) if population > 1 else jnp.asarray(7, jnp.int32)
    state = program.init({}, *keys_of(population), NO_INPUTS, {"updates": updates})
    assert state.shards.local.acted_after.ravel().tolist() == updates.ravel().tolist()
    assert np.all(state.shared["reward"] == 0.0)


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
    state, interval = train(program, program.init({}, *keys_of(population), NO_INPUTS), 5)
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
