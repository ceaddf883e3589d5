import json
import math

import numpy as np
import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError
from support.lazily import Lazy
from support.recorded import store_episodes, write_run

analysis = Lazy("stoix_like.lab.analysis")
bandit = Lazy("stoix_like.lab.analysis.bandit")


def play(returns, episodes, repetitions=4000, seed=0):
    """Return the mean return of the chosen policy after each episode; each policy is an arm."""
    rng = np.random.default_rng(seed)
    arms = rng.permuted(np.tile(np.arange(len(returns)), (repetitions, 1)), axis=-1)
    returns = [np.asarray(one, np.float64) for one in returns]
    chosen = bandit.play_ucb(returns, arms, episodes, rng)
    return np.asarray([one.mean() for one in returns])[chosen].mean(0)


def write_grid(directory, returns, system="ppo/ff_ppo"):
    """Write a grid of learning rates with as many seeds as `returns[rate]` has lists of episode returns."""
    for rate, by_seed in returns.items():
        for seed, episodes in enumerate(by_seed):
            run = write_run(directory / f"{system}{rate}-{seed}", (1.0,), seed=seed, system=system, actor_lr=rate)
            store_episodes(run, episodes)


def test_arms_without_noise_are_played_once_each_in_any_order():
    # The first arm is either with probability 1/2; then both means are known.
    found = play([[1.0], [3.0]], 20)
    # Four standard errors of a mean of +-1 over 4000 repetitions.
    assert found[0] == pytest.approx(2.0, abs=4.0 / math.sqrt(4000))
    assert found[1:].tolist() == [3.0] * 19
    # After two of three arms the best one was played with 2/3, otherwise the middle one is chosen: (2 * 6 + 3) / 3 = 5.
    found = play([[0.0], [3.0], [6.0]], 4)
    assert found[:2] == pytest.approx([3.0, 5.0], abs=0.2)
    assert found[2:].tolist() == [6.0, 6.0]


def test_ties_are_broken_at_random():
    # Returns of 0 or 1 with means 0.2 and 0.8. After one episode each, the better arm is chosen if it alone returned 1,
    # 0.8 * 0.8, and in half of the ties, (0.8 * 0.2 + 0.2 * 0.8) / 2: 0.8 in all. 0.8 * 0.8 + 0.2 * 0.2 = 0.68.
    found = play([[1.0, 0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0]], 300)
    assert found[1] == pytest.approx(0.68, abs=4 * 0.3 / math.sqrt(4000))
    # 300 episodes leave hardly a doubt.
    assert found[-1] > 0.795


def test_the_units_of_returns_do_not_matter():
    returns = [np.random.default_rng(arm).normal(arm, 2.0, 50) for arm in range(3)]
    found = play(returns, 60, 200)
    np.testing.assert_allclose(play([1000.0 * one - 7.0 for one in returns], 60, 200), 1000.0 * found - 7.0)


def test_the_bandit_is_equal_to_a_simple_one():
    """One repetition at a time, with lists and the same random numbers."""
    rng = np.random.default_rng(3)
    returns = [rng.normal(mean, 1.0, size) for mean, size in ((0.0, 5), (0.5, 9), (1.0, 2), (0.8, 7))]
    arms = rng.permuted(np.tile([3, 0, 2], (40, 1)), axis=-1)
    chosen = bandit.play_ucb(returns, arms, 50, np.random.default_rng(7))
    uniforms = np.random.default_rng(7).random((50, 40))
    for repetition, own in enumerate(arms):
        rewards = {policy: [] for policy in own}
        for t in range(50):
            every = [reward for played in rewards.values() for reward in played]
            if t < len(own):
                policy = own[t]
            else:
                spread = max(every) - min(every)
                bonus = {arm: spread * math.sqrt(2.0 * math.log(t) / len(rewards[arm])) for arm in own}
                policy = max(own, key=lambda arm, bonus=bonus: np.mean(rewards[arm]) + bonus[arm])
            rewards[policy].append(returns[policy][int(uniforms[t, repetition] * len(returns[policy]))])
            played = [arm for arm in own if rewards[arm]]
            assert chosen[repetition, t] == max(played, key=lambda arm: np.mean(rewards[arm]))


def test_a_seed_of_each_setting_is_drawn(tmp_path):
    # Without noise: unlimited episodes find the better of 4 and either 0 or 10, the seeds of the other setting.
    write_grid(tmp_path, {0.1: [[4.0]], 0.2: [[0.0], [10.0]]})
    (curve,) = analysis.selection_curves(tmp_path, analysis.Settings(score="best"), episodes=5)
    assert (curve.task, curve.label) == ("gymnax/CartPole-v1", "ppo/ff_ppo")
    assert curve.settings == {"ppo/ff_ppo actor_lr=0.1": 4.0, "ppo/ff_ppo actor_lr=0.2": 5.0}
    # One episode: 4 or 0 or 10, with 1/2, 1/4 and 1/4; two: 4 or 10.
    assert curve.returns[0].estimate == pytest.approx(4.5, abs=0.5)
    assert curve.returns[0][1:] == (0.0, 10.0)
    assert curve.returns[1] == curve.returns[4] == curve.limit
    assert curve.limit.estimate == pytest.approx(7.0, abs=0.4)
    assert curve.limit[1:] == (4.0, 10.0)


def test_each_algorithm_has_a_bandit_and_all_have_one(tmp_path):
    write_grid(tmp_path, {0.1: [[4.0]], 0.2: [[6.0]]})
    write_grid(tmp_path, {0.1: [[8.0]]}, "q_learning/ff_dqn")
    options = analysis.Settings(score="best")
    curves = analysis.selection_curves(tmp_path, options, episodes=3)
    assert [(curve.label, len(curve.settings), curve.returns[2].estimate) for curve in curves] == [
        ("ppo/ff_ppo", 2, 6.0),
        ("q_learning/ff_dqn", 1, 8.0),
        ("all", 3, 8.0),
    ]
    (alone, *_) = analysis.selection_curves(tmp_path / "ppo", options, episodes=3)
    assert alone == curves[0]
    assert analysis.selection_curves(tmp_path, options, episodes=3, seed=1) != curves
    by_rate = analysis.selection_curves(tmp_path, options, ["system.actor_lr"], episodes=3)
    assert [curve.label for curve in by_rate] == ["system.actor_lr=0.1", "system.actor_lr=0.2", "all"]


def test_what_diverged_counts_as_the_lowest_return(tmp_path):
    """The lowest mean of an arm, not its lowest episode."""
    write_grid(tmp_path, {0.1: [[None, None]], 0.2: [[2.0, 6.0]], 0.3: [[1.0, 9.0]]})
    (curve,) = analysis.selection_curves(tmp_path, analysis.Settings(score="best"), episodes=1)
    assert [*curve.settings.values()] == [4.0, 4.0, 5.0]


def test_the_command_prints_a_table(tmp_path, capsys):
    write_grid(tmp_path, {0.1: [[4.0], [4.0]], 0.2: [[6.0], [6.0]]})
    cli.main(["compare", str(tmp_path), "--selection", "ucb", "--score", "best", "--episodes", "30"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("mean return on gymnax/CartPole-v1")
    assert [line.split("  ")[0] for line in lines[3:12]] == [
        *("episodes", "1", "2", "5", "10", "20", "30", "unlimited", "mean setting"),
    ]
    assert lines[5].split() == ["2", "6.0", "[6.0,", "6.0]"]
    assert lines[12].split() == ["best", "setting", "6"]
    assert lines[14] == "ppo/ff_ppo: 2 settings, best ppo/ff_ppo actor_lr=0.2"


def test_what_cannot_be_chosen_from_is_refused(tmp_path):
    write_grid(tmp_path, {0.1: [[4.0], [5.0]]})
    for path, options, problem in (
        (tmp_path, {}, "ppo/ff_ppo is a single setting, .*: give runs of several ones"),
        (tmp_path, {"episodes": 0}, "episodes=0 must be at least 1: use 200"),
        (tmp_path, {"seed": -1}, "seed=-1 must be at least 0"),
        (tmp_path, {"by": ["system.actor"]}, "--by system.actor is not a key"),
    ):
        with pytest.raises(ConfigError, match=problem):
            analysis.selection_curves(path, **options)
    write_run(tmp_path / "other", actor_lr=0.3)
    with pytest.raises(ConfigError, match="other stores no episode returns of its best parameters: use stoix-like"):
        analysis.selection_curves(tmp_path, analysis.Settings(score="best"))
    assert not json.loads((tmp_path / "other/summary.json").read_text()).get("absolute_episode_returns")
