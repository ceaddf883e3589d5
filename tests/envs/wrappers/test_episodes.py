import numpy as np

from stoix_like.envs import Vectorize, wrappers
from support.countable_envs import ZERO, Ramp, play, ramp


def test_time_limit_truncates_the_episode():
    flags = [(bool(t.terminated), bool(t.truncated)) for t in play(wrappers.TimeLimit(ramp(), 3), [ZERO] * 3)]
    assert flags == [(False, False)] * 3 + [(False, True)]


def test_time_limit_respects_termination_and_other_limits():
    assert [bool(t.truncated) for t in play(wrappers.TimeLimit(ramp(ends_after=3), 3), [ZERO] * 3)] == [False] * 4
    assert bool(play(wrappers.TimeLimit(ramp(), 50), [ZERO] * 6)[-1].truncated)


def test_episode_metrics_use_unscaled_rewards():
    env = wrappers.ClipReward(wrappers.ScaleReward(wrappers.RecordEpisode(ramp(ends_after=3)), 10.0), 15.0)
    actions = np.array([[0.5, 0.5], [1.0, 1.0], [-1.0, -1.0]], np.float32)
    timesteps = play(env, actions)[1:]
    np.testing.assert_allclose([float(t.reward) for t in timesteps], [10.0, 15.0, -15.0])
    np.testing.assert_allclose([float(t.episode.episode_return) for t in timesteps], [1.0, 3.0, 1.0])
    assert [int(t.episode.episode_length) for t in timesteps] == [1, 2, 3]
    assert [bool(t.episode.finished) for t in timesteps] == [False, False, True]


class TwoPlayers(Ramp):
    num_players = 2


def test_the_return_of_two_players_is_that_of_the_first():
    """The rewards of the movers are 1, 2 and 3: the first player gets 1 - 2 + 3."""
    env = wrappers.ScaleReward(wrappers.RecordEpisode(Vectorize(TwoPlayers())), 10.0)
    assert env.num_players == 2
    assert wrappers.RecordEpisode(ramp()).num_players == 1
    actions = np.array([[0.5, 0.5], [1.0, 1.0], [1.5, 1.5]], np.float32)
    timesteps = play(env, actions)[1:]
    np.testing.assert_allclose([float(t.reward) for t in timesteps], [10.0, 20.0, 30.0])
    np.testing.assert_allclose([float(t.episode.episode_return) for t in timesteps], [1.0, -1.0, 2.0])
