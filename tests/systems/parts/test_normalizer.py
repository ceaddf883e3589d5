import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Axes, Observation, Transition
from stoix_like.policies.load import load_shared, open_run
from stoix_like.systems.parts.normalizer import (
    MIN_STD,
    MIN_STD_OF_DATA,
    ReplayNormalisation,
    make_normalizer,
    make_return_scaler,
    make_reward_normalizer,
)
from stoix_like.utils.replay import Data
from support.compiled import run
from support.platforms import take_accelerator_forms

GAMMA = 0.5


def steps(reward, is_first):
    return Transition(None, None, jnp.array(reward, jnp.float32), None, None, None, jnp.array(is_first, bool), None)


def scaling(enabled, max_return=5.0):
    return ReplayNormalisation(normalize_rewards=enabled, max_scaled_return=max_return)


@pytest.mark.parametrize("on_accelerator", [False, True])
def test_rewards_are_divided_by_the_deviation_of_the_discounted_return(on_accelerator, monkeypatch):
    if on_accelerator:
        take_accelerator_forms(monkeypatch)
    normalizer = make_reward_normalizer(True, GAMMA, Axes())
    # Environment 0 starts a new episode in step 2, environment 1 in step 1:
    #   g of environment 0: 1, 0.5 * 1 + 2 = 2.5, 4;  of environment 1: 3, 1, 0.5 * 1 - 2 = -1.5
    # The next rollout continues episode 0, 0.5 * 4 + 1 = 3, and starts a new one in environment 1.
    batch, then = steps([[1, 3], [2, 1], [4, -2]], [[1, 1], [0, 1], [1, 0]]), steps([[1, 7]], [[0, 1]])

    @jax.jit
    def rollouts(batch, then):
        reward, *state = normalizer.apply(normalizer.init(), normalizer.init_returns(2), batch)
        return reward, normalizer.apply(*state, then)

    earlier, (reward, _, returns) = rollouts(batch, then)
    first = [1.0, 3.0, 2.5, 1.0, 4.0, -1.5]
    np.testing.assert_allclose(earlier, np.asarray(batch.reward) / np.std(first), rtol=1e-5)
    np.testing.assert_allclose(reward, np.array([[1, 7]]) / np.std([*first, 3.0, 7.0]), rtol=1e-5)
    np.testing.assert_allclose(returns, [3.0, 7.0])


@pytest.mark.parametrize(("min_std", "expected"), [(MIN_STD_OF_DATA, 1.0), (MIN_STD, 10.0)])
def test_what_is_constant_in_data_may_vary_in_evaluations(min_std, expected):
    """A distance of 0.001 from a constant entry is one deviation of at least 0.001, or ten, the limit."""
    normalizer = make_normalizer(True, Axes(), min_std=min_std)

    @jax.jit
    def apart(view):
        statistics = normalizer.update(normalizer.init(Observation(view[0])), Observation(view))
        return normalizer.apply(statistics, Observation(view[0] + 0.001)).agent_view

    np.testing.assert_allclose(apart(np.full((8, 4, 1), 0.5, np.float32)), np.full((4, 1), expected), rtol=1e-3)


def scaled(scaler, batch, rewards):
    statistics, returns = scaler.update(scaler.init(), scaler.init_returns(2), batch)
    return scaler.apply(statistics, rewards), returns


def test_replayed_rewards_are_divided_by_the_larger_of_two_scales_of_the_return():
    """The returns of the test above, of rewards halved in the buffer; the largest magnitude of the halves is 2."""
    batch = steps([[1, 3], [2, 1], [4, -2]], [[1, 1], [0, 1], [1, 0]])
    for max_return, expected in ((100.0, np.std([0.5, 1.5, 1.25, 0.5, 2.0, -0.75])), (0.5, 2.0 / 0.5)):
        scaler = make_return_scaler(scaling(True, max_return), GAMMA, 0.5, Axes())
        found, returns = run(scaled, scaler, batch, jnp.asarray([3.0]))
        np.testing.assert_allclose(found, [3.0 / expected], rtol=1e-5)
    np.testing.assert_allclose(returns, [2.0, -0.75])


def test_statistics_start_from_those_of_recorded_data():
    """Two episodes, of rewards 2, 3 and of 3; then a rollout of eight steps without a reward, which shows 5."""
    ends = np.array([False, True, False, True, False])
    data = Data(
        observation=Observation(np.arange(5, dtype=np.float32)[:, None]),
        action=np.zeros((5, 1), np.float32),
        reward=np.array([2.0, 3.0, 0.0, 3.0, 0.0], np.float32),
        terminated=ends,
        truncated=np.zeros(5, bool),
        valid=np.array([True, True, False, True, False]),
        steps=np.array([0, 1, 3], np.int32),
    )
    returns = [2.0, 3.0 + 2.0 * GAMMA, 3.0]
    scaler = make_return_scaler(scaling(True, 100.0), GAMMA, 1.0, Axes(), data)
    normalizer = make_normalizer(True, Axes(), data=data)

    def before_and_after(one, nothing, shown):
        statistics, _ = scaler.update(scaler.init(), scaler.init_returns(4), nothing)
        first = normalizer.init(Observation(shown[0]))
        seen = first, normalizer.update(first, Observation(shown))
        return scaler.apply(scaler.init(), one), scaler.apply(statistics, one), seen

    nothing, shown = steps(np.zeros((2, 4)), np.zeros((2, 4))), jnp.asarray(np.full((2, 4, 1), 5.0))
    before, after, seen = jax.device_get(run(before_and_after, jnp.asarray([1.0]), nothing, shown))
    np.testing.assert_allclose(before, [1.0 / np.std(returns)], rtol=1e-5)
    np.testing.assert_allclose(after, [1.0 / np.std([*returns, *np.zeros(8)])], rtol=1e-5)
    # The rows 2 and 4 are no steps.
    for found, views in zip(seen, ([0, 1, 3], [0, 1, 3, *[5] * 8]), strict=True):
        np.testing.assert_allclose((found.mean[0], found.std[0]), (np.mean(views), np.std(views)), rtol=1e-5)


def test_shards_share_the_statistics():
    def normalised(reward, *axis_names):
        normalizer, num_envs = make_reward_normalizer(True, GAMMA, Axes(axis_names)), reward.shape[1]
        state = normalizer.init(), normalizer.init_returns(num_envs)
        return normalizer.apply(*state, steps(reward, np.zeros(reward.shape)))[0]

    def of_halves(rewards):
        return jax.vmap(lambda reward: normalised(reward, "shard"), axis_name="shard", in_axes=1, out_axes=1)(
            rewards.reshape(5, 2, 2)
        ).reshape(5, 4)

    rewards = jnp.asarray(np.random.default_rng(0).normal(size=(5, 4)), jnp.float32)
    np.testing.assert_allclose(run(of_halves, rewards), run(normalised, rewards), rtol=1e-5)


def test_normalized_rewards_are_clipped():
    normalizer = make_reward_normalizer(True, GAMMA, Axes(), max_abs_value=2.0)
    batch = steps([[0.0], [0.0], [0.0], [0.0], [0.0], [0.0], [100.0]], np.zeros((7, 1)))
    # Of seven returns, one is 100: the deviation is 100 sqrt(6) / 7 = 35, and 100 / 35 = 2.86.
    found = run(lambda batch: normalizer.apply(normalizer.init(), normalizer.init_returns(1), batch), batch)
    assert found[0].tolist()[-1] == [2.0]


@pytest.mark.slow
@pytest.mark.parametrize("system", ["ppo/ff_ppo", "q_learning/ff_pqn"])
def test_the_statistics_of_a_run_resume_exactly_and_returns_are_reported_as_they_are(system, tmp_path):
    small = [
        *("env=probe/time_limit", "arch.total_num_envs=4", "arch.num_evaluation=2", "arch.num_eval_episodes=2"),
        *("system.rollout_length=8", "system.normalize_rewards=true", "system.decay_learning_rates=false"),
        *("arch.num_devices=2", "arch.update_batch_size=2", "checkpoint.replay=false", "logger=silent"),
        *("system.num_minibatches=1", "arch.absolute_metric=false"),
    ]
    if system.endswith("pqn"):
        small.append("system.exploration_fraction=0")
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    result = stoix_like.train(system, [*small, "arch.total_timesteps=128"], run_dir=whole)
    stoix_like.train(system, [*small, "arch.total_timesteps=64", "arch.num_evaluation=1"], run_dir=parts)
    stoix_like.resume(parts, ["arch.total_timesteps=128", "arch.num_evaluation=2"])
    one, other = (load_shared(open_run(path), "last").shared for path in (whole, parts))
    for found, expected in zip(jax.tree.leaves(other), jax.tree.leaves(one), strict=True):
        np.testing.assert_array_equal(found, expected)
    assert float(one.return_statistics.count) == 128
    assert result.eval_return == int(result.eval_return)
