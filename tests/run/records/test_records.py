from types import SimpleNamespace

import numpy as np
import pytest

from stoix_like.architectures.episodes import EPISODE_STATISTICS
from stoix_like.architectures.sums import FloatSum
from stoix_like.run.records import records


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        # The mean of two draws from {0, 1} is 0 or 1 with probability 1/4 each, more than the tails of 2.5 %.
        ([0.0, 1.0], 0.0, 1.0),
        # 16 draws from {0, 1}: their mean is at most 3/16 with probability 0.011, and 1/4 with 0.038.
        ([0.0] * 8 + [1.0] * 8, 0.25, 0.75),
        ([500.0] * 20, 500.0, 500.0),
        ([3.0], None, None),
    ],
)
def test_interval_of_the_mean(values, low, high):
    assert records.mean_interval(np.array(values)) == (low, high)


def test_the_aggregate_is_the_interquartile_mean_with_a_stratified_interval():
    # The two lowest and the two highest of 8 scores are dropped: (3 + 4 + 5 + 6) / 4 = 4.5.
    found = records.aggregate([8, 1, 7, 2, 6, 3, 5, 4], [0] * 8)
    assert found["iqm"] == 4.5
    assert 1 <= found["ci_low"] < 4.5 < found["ci_high"] <= 8
    # With k ones in 24 draws from {0, 1}, the mean of the middle 12 is (k - 6) / 12; k is at most 6 with probability
    # 0.011, and 7 with 0.032.
    found = records.aggregate([0.0] * 12 + [1.0] * 12, [0] * 24)
    assert (found["ci_low"], found["ci_high"]) == pytest.approx((1 / 12, 11 / 12))
    # Resampling within strata of equal scores changes nothing.
    constant = records.aggregate([1, 1, 5, 5], [0, 0, 1, 1])
    assert (constant["iqm"], constant["ci_low"], constant["ci_high"]) == (3.0, 3.0, 3.0)


def test_statistics_of_episodes_are_per_member():
    assert records.episode_statistics([[0, 4, 8], [1, 1, 1]], [[1, 2, 3], [4, 4, 4]]) == {
        "episode_return_mean": [4, 1],
        "episode_return_std": [pytest.approx((32 / 3) ** 0.5), 0],
        "episode_return_min": [0, 1],
        "episode_return_max": [8, 1],
        "episode_length_mean": [2, 4],
    }
    episodes = SimpleNamespace(
        returns=np.array([[0, 4, 8], [1, 1, 1]]),
        lengths=np.ones((2, 3)),
        measures={"won": np.array([[0, 1, 1], [0, 0, 1]])},
    )
    found = records.evaluation("eval", episodes, 2)
    assert (found["eval/episode_return_mean"], found["eval/won"]) == ([2, 1], [0.5, 0])


def test_metrics_of_training_describe_the_episodes_that_finished():
    def interval(number):
        sums = SimpleNamespace(
            number=SimpleNamespace(value=np.uint64(number)),
            return_sum=FloatSum(np.float32(6), np.float32(0)),
            return_min=np.float32(1),
            return_max=np.float32(5),
            length_sum=SimpleNamespace(value=np.uint64(8)),
            measures={"won": FloatSum(np.float32(1), np.float32(0))},
        )
        return SimpleNamespace(metrics={"loss": np.float32(0.5)}, episodes=sums, diagnostics=None)

    assert records.training(interval(2)) == {
        "train/loss": 0.5,
        "train/episodes": 2,
        "train/episode_return_mean": 3,
        "train/episode_return_min": 1,
        "train/episode_return_max": 5,
        "train/episode_length_mean": 4,
        "train/won": 0.5,
    }
    assert records.training(interval(0))["train/episode_return_max"] is None
    # Beside the loss of the system and the measure, the names that metrics of a system cannot have.
    assert {f"train/{name}" for name in EPISODE_STATISTICS} == records.training(interval(2)).keys() - {
        "train/loss",
        "train/won",
    }
