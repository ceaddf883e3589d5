import shutil
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Axes, Observation, TimeStep, Trajectory, Transition
from stoix_like.errors import ConfigError
from stoix_like.lab import replay_data
from stoix_like.lab.replay_data import _find_buffer, _rows, read_replay, stored_scale
from stoix_like.utils.replay import Step
from stoix_like.utils.replay.frames import FrameReplayState
from support.algorithms import make_algorithm
from support.off_policy_runs import SMALL
from support.set_ups import config_of, setup_of


def ring(numbers, successors, terminated, truncated, index, full, scale=1.0):
    """Return a buffer `[S, N, L]` of numbers as observations, actions and rewards."""
    number = np.array(numbers, np.float32)
    view = [None if x is None else Observation(np.array(x, np.float32)[..., None]) for x in (numbers, successors)]
    flags = [None if x is None else np.array(x, bool) for x in (terminated, truncated)]
    step = Step(view[0], number.astype(np.int32), number * scale, *flags, view[1], extras=None)
    return SimpleNamespace(experience=step, current_index=np.array(index), is_full=np.array(full))


def fields(data):
    flags = [np.flatnonzero(x).tolist() for x in (data.terminated, data.truncated, ~data.valid)]
    return data.observation.agent_view[:, 0].tolist(), *flags


def test_steps_side_by_side_end_where_the_successor_is_another_observation():
    """Environments 0 and 1 take turns; the oldest steps are 2 and 12, and 5 and 15 overwrote the first ones.

    Environment 0 is truncated after step 3, whose successor is 3.5; environment 1 terminates with step 13.
    """
    numbers = [[5, 15, 2, 12, 3, 13, 4, 14]]
    successors = [[6, 16, 3, 13, 3.5, 13.5, 5, 15]]
    buffer = ring([numbers], [successors], [[[0, 0, 0, 0, 0, 1, 0, 0]]], None, [2], [True], scale=0.5)
    data = _rows(buffer, 2, 0.5)
    assert fields(data) == ([2, 3, 3.5, 4, 5, 6, 12, 13, 13.5, 14, 15, 16], [7], [1, 4, 10], [2, 5, 8, 11])
    assert data.reward[data.valid].tolist() == data.action[data.valid].tolist() == [2, 3, 4, 5, 12, 13, 14, 15]
    assert "does not say which steps were truncated" in data.header.notes[0]


def test_rows_of_several_shards_that_are_not_full():
    """Two shards of one environment each; three steps of four are stored."""
    numbers, ends = [[[0, 1, 2, 9]], [[10, 11, 12, 9]]], [[[0, 1, 0, 0]], [[0, 0, 1, 0]]]
    successors = [[[1, 1.5, 3, 9]], [[11, 12, 12.5, 9]]]
    data = _rows(ring(numbers, successors, ends, np.zeros_like(ends), [3, 3], [False, False]), 2, 1.0)
    assert fields(data) == ([0, 1, 1.5, 2, 3, 10, 11, 12, 12.5], [1, 7], [3], [2, 4, 8])
    assert data.header.notes == ()


def test_rows_without_successors_lose_their_truncated_and_newest_steps():
    """Step 1 is truncated, step 4 the newest one."""
    none, cut = np.zeros((1, 1, 5)), [[[0, 1, 0, 0, 0]]]
    data = _rows(ring([[[0, 1, 2, 3, 4]]], None, none, cut, [0], [True]), 1, 1.0)
    assert fields(data) == ([0, 1, 2, 3, 4], [], [0, 3], [1, 4])
    assert "left out" in data.header.notes[0]


def test_a_buffer_of_one_step_or_of_none():
    """One step of each of two environments, of which the first one terminates."""
    buffer = ring([[[0, 10]]], [[[1, 11]]], [[[1, 0]]], None, [0], [True])
    assert fields(_rows(buffer, 2, 1.0)) == ([0, 1, 10, 11], [0], [2], [1, 3])
    empty = ring([[[0, 10]]], [[[1, 11]]], [[[1, 0]]], None, [0], [False])
    with pytest.raises(ConfigError, match="replay=True: the replay buffer holds no step yet"):
        _rows(empty, 2, 1.0)


class Buffer(NamedTuple):
    experience: Any


def test_buffers_of_frames_and_of_sequences_hold_no_steps():
    steps = Buffer(Step(None, None, None, None, None, None))
    assert _find_buffer({"returns": np.zeros(2), "buffer": steps}) is steps
    assert _find_buffer((np.zeros(2), FrameReplayState(None, steps))) is None
    assert _find_buffer([Buffer((steps,))]) is None
    assert _find_buffer({"own": np.zeros(2)}) is None


def test_rewards_are_read_in_the_units_of_the_environment_where_the_system_stores_them_unscaled():
    """AWR scales rewards after sampling, cloning never, and DQN before it stores them."""
    sizes = ["arch.total_num_envs=2", "system.rollout_length=3", "system.reward_scale=0.25", "system.warmup_steps=0"]
    sizes += ["system.total_buffer_size=6", "system.total_batch_size=2", "system.n_step=2"]
    algorithm = make_algorithm(setup_of("system=awr/ff_awr", *sizes), axes=Axes())
    reward = jnp.asarray([[1.0, 4.0], [2.0, 5.0], [3.0, 6.0]])
    view, flags = Observation(jnp.zeros((3, 2, 4)), jnp.ones((3, 2, 2), bool)), jnp.zeros((3, 2), bool)
    steps = Transition(view, flags.astype(jnp.int32), reward, flags, flags, view, flags, extras=reward)

    @jax.jit
    def store():
        first = TimeStep(*jax.tree.map(lambda x: x[0], (view, reward, flags, flags, view)), ())
        return algorithm.replay.add(algorithm.replay.init(first), Trajectory(steps, ()))

    data = _rows(_find_buffer(jax.device_get(store())), 2, stored_scale(algorithm.config, {"reward_scale": 0.5}))
    assert data.reward[data.valid].tolist() == [1, 2, 3, 4, 5, 6]
    for system, own, scale in (("offline/bc", [], 1.0), ("q_learning/ff_dqn", ["system.reward_scale=0.25"], 0.25)):
        config = config_of(f"system={system}", *own).system
        assert stored_scale(config, {}) == scale
    assert stored_scale(config, {"reward_scale": 0.5}) == 0.5


def test_runs_without_steps_to_take_are_refused(pendulum):
    with pytest.raises(ConfigError, match="replay=True: ppo/ff_ppo has no replay buffer of steps: collect with"):
        stoix_like.collect(pendulum, replay=True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("system.teacher=runs/teacher", "what the teacher would have done"),
        ("arch=offline system.data=x.npz", "learned only from its data: use system.data=x.npz"),
    ],
)
def test_buffers_without_the_steps_that_were_played_are_refused(words, message):
    config = config_of("system=offline/bc", *words.split())
    with pytest.raises(ConfigError, match=message):
        read_replay(SimpleNamespace(setup=SimpleNamespace(config=config)), None)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Return a run of two members with two shards each, with scaled rewards, on Pendulum with torques up to 2."""
    scaled = ["system.reward_scale=0.25", "env.reward_scale=0.5", "arch.update_batch_size=2", "arch.population.size=2"]
    small = [each for each in SMALL if "buffer" not in each]
    limits = ["env.time_limit=10", "arch.total_timesteps=512", "system.total_buffer_size=256", "logger=silent"]
    overrides = ["env=gymnax/pendulum", *small, *scaled, *limits, "arch.num_eval_episodes=2", "checkpoint.replay=true"]
    run_dir = tmp_path_factory.mktemp("replay") / "run"
    stoix_like.train("sac/ff_sac", overrides, run_dir=run_dir)
    return run_dir


@pytest.mark.slow
def test_the_buffer_of_a_run_holds_its_steps_in_the_units_of_the_environment(run):
    data = stoix_like.collect(run, replay=True, member=1)
    assert data.header.steps == 256
    assert data.header.policy == "replay"
    assert data.header.arguments == {"time_limit": 10, "reward_scale": 0.5}
    assert 1.0 < abs(data.action).max() <= 2.0
    assert (data.episode_lengths <= 10).all()
    cosine, sine, velocity = data.observation.agent_view.T
    expected = -(np.arctan2(sine, cosine) ** 2 + 0.1 * velocity**2 + 0.001 * data.action[:, 0] ** 2)
    np.testing.assert_allclose(data.reward[data.valid], expected[data.valid], rtol=1e-4, atol=1e-4)
    rows = np.flatnonzero(data.valid)
    # The velocity after a step: v + (15 sin(angle) + 3 torque) * 0.05, clipped.
    following = np.clip(velocity + (15 * sine + 3 * data.action[:, 0]) * 0.05, -8, 8)
    np.testing.assert_allclose(velocity[rows + 1], following[rows], rtol=1e-4, atol=1e-4)
    other = stoix_like.collect(run, replay=True, member=0)
    assert not np.array_equal(other.reward, data.reward)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("replay: true", "replay: false", "checkpoint.replay=false left the replay buffer out of the checkpoints"),
        ("reward_clip: null", "reward_clip: 1.0", "env.reward_clip=1 clipped the stored rewards"),
    ],
)
def test_buffers_that_say_too_little_are_refused(run, before, after, message, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    text = (copy / "config.yaml").read_text()
    assert before in text
    (copy / "config.yaml").write_text(text.replace(before, after))
    with pytest.raises(ConfigError, match=f"replay=True: .*{message}"):
        stoix_like.collect(copy, replay=True)


@pytest.mark.parametrize("largest", [3, 4])
def test_rewards_that_reach_the_bound_may_have_been_clipped(monkeypatch, largest):
    none = np.zeros((1, 1, 4))
    buffer = ring([[[0, 1, 2, 3]]], [[[1, 2, 3, 4]]], none, none, [0], [True])
    state = SimpleNamespace(
        env_steps=np.array(4), episode_return=np.array(1.0), ranks=None, hyperparams_of=lambda member: {}
    )
    monkeypatch.setattr(replay_data, "load_shared", lambda run, which: state)
    monkeypatch.setattr(replay_data, "_read_local", lambda run: (buffer, 4))
    words = ["system=q_learning/ff_dqn", f"system.max_abs_reward={largest}", "arch.total_num_envs=1"]
    env = SimpleNamespace(num_agents=1)
    run = SimpleNamespace(setup=SimpleNamespace(config=config_of(*words), env=env))
    if largest == 3:
        with pytest.raises(ConfigError, match="rewards reach system.max_abs_reward=3, which clips stored ones"):
            read_replay(run, None)
    else:
        assert read_replay(run, None)[0].reward.max() == 3.0
