import gymnasium
import numpy as np
import pytest

from stoix_like.envs import make
from stoix_like.envs.suites.envpool import EnvpoolBatch
from support.conformance import check_atari, env_config, rollout
from support.lazily import Lazy

envpool = Lazy("envpool")
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("suite", ["envpool", "gymnasium"])
def test_every_transition_is_a_step_of_the_cart(suite):
    env = make(env_config(suite, "CartPole-v1", vectorization="envpool"))
    first, _, steps = rollout(env, 200, num_envs=5)
    env.check()
    env.close()
    assert steps.terminated.sum() > 20
    before = np.concatenate([first.observation.agent_view[None], steps.observation.agent_view[:-1]])
    after = steps.next_observation.agent_view
    # Euler steps of 0.02 s; a step that resets instead would also have no reward.
    np.testing.assert_allclose(after[..., 0], before[..., 0] + 0.02 * before[..., 1], atol=1e-6)
    np.testing.assert_allclose(after[..., 2], before[..., 2] + 0.02 * before[..., 3], atol=1e-6)
    np.testing.assert_array_equal(steps.reward, 1.0)
    starts = steps.observation.agent_view[steps.terminated]
    assert (np.abs(starts) <= 0.05).all()
    assert len(np.unique(starts, axis=0)) == len(starts)


@pytest.mark.parametrize(("limit", "expected"), [(None, 200), (30, 30), (500, 200)])
def test_a_time_limit_truncates(limit, expected):
    env = make(env_config("envpool", "Pendulum-v1", time_limit=limit))
    _, _, steps = rollout(env, 401, num_envs=2)
    assert not steps.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), np.arange(expected - 1, 401, expected))
    np.testing.assert_array_equal(steps.episode.episode_length[steps.truncated], expected)
    env.close()


@pytest.mark.parametrize("limits", [{"time_limit": 15}, {"kwargs": {"max_episode_steps": 15}, "time_limit": 20}])
def test_a_termination_in_the_step_of_the_time_limit_is_no_truncation(limits):
    env = make(env_config("envpool", "CartPole-v1", **limits))
    _, _, steps = rollout(env, 400, num_envs=5)
    env.close()
    x, _, angle, _ = np.moveaxis(steps.next_observation.agent_view, -1, 0)
    fallen = (np.abs(x) > 2.4) | (np.abs(angle) > np.deg2rad(12))
    at_limit = steps.episode.episode_length == 15
    assert (fallen & at_limit).any()
    np.testing.assert_array_equal(steps.terminated, fallen)
    np.testing.assert_array_equal(steps.truncated, at_limit & ~fallen)


def test_atari_games_are_preprocessed():
    config = env_config("envpool", "Breakout-v5", kwargs={"episodic_life": True}, reward_clip=0.5)
    check_atari(config)


def test_the_game_goes_on_after_a_lost_life():
    seen = []

    def construct(seeds):
        pool = envpool.make_gymnasium("Breakout-v5", num_envs=len(seeds), seed=seeds, episodic_life=True)
        step = pool.step
        pool.step = lambda *args: seen.append(step(*args)) or seen[-1]
        return pool

    batch = EnvpoolBatch(construct, gymnasium.spaces.Discrete(4), None, keeps_games=True)
    batch.reset([3])
    rng, lives = np.random.default_rng(0), []
    for _ in range(600):
        outcome = batch.step(rng.integers(0, 4, 1))
        if outcome.terminated[0]:
            # The last step started the next episode, the one before it ended this one.
            lives.append(int(seen[-2][4]["lives"][0]))
    batch.close()
    assert lives[:6] == [4, 3, 2, 1, 0, 4]
