"""What a run says of diverged members, and what it writes where it can write no checkpoint."""

from types import SimpleNamespace

import jax
import numpy as np

from stoix_like.architectures.sums import FloatSum
from stoix_like.processes import ALONE
from stoix_like.run.failures import divergences, rescue


def test_a_reward_that_is_not_finite_is_that_of_its_member():
    setup = SimpleNamespace(
        population=SimpleNamespace(num_members=4),
        config=SimpleNamespace(environment_name="toy"),
        env=SimpleNamespace(action_space=None),
        processes=ALONE,
    )
    returns = FloatSum(np.array([1.0, 2.0, 3.0, np.nan]), np.array([0.0, 0.0, 0.0, np.nan]))
    interval = SimpleNamespace(
        healthy_updates=np.array([5, 4, 5, 4]),
        bad_metrics={"loss": np.array([False, True, False, True])},
        episodes=SimpleNamespace(return_sum=returns),
    )
    state = SimpleNamespace(shared={}, shards=SimpleNamespace(rollout_state=()))
    assert divergences(setup, interval, state, (0, 5), ()) == {
        1: "train/loss became non-finite in update 5",
        3: "a reward of toy and train/loss became non-finite in update 5",
    }


def test_parameters_are_rescued_without_random_keys(tmp_path):
    shared = {"params": np.arange(3.0), "parts": jax.random.key(0)}
    assert str(tmp_path) in rescue(shared, SimpleNamespace(run_dir=tmp_path), ALONE)
    with np.load(tmp_path / "parameters.npz") as arrays:
        assert arrays.files == ["params"]
