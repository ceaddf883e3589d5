import json

import numpy as np
import pytest

from stoix_like.loggers import scalars, sending_loggers
from stoix_like.storage.files import plain


def test_plain_returns_strict_json():
    value = {"a": float("nan"), "b": (1, float("-inf"), None), "c": {"d": np.float32(0.5)}, "e": np.arange(2), "f": "x"}
    assert plain(value) == {"a": None, "b": [1, None, None], "c": {"d": 0.5}, "e": [0, 1], "f": "x"}
    assert type(plain(np.int64(3))) is int
    json.dumps(plain(value), allow_nan=False)


def test_scalars_are_numbers_of_the_run_and_of_each_member():
    record = {"env_steps": 128, "eval/episode_return_mean": [1.0, None, 3.0], "train/loss": None, "note": "x"}
    assert scalars(record) == {"env_steps": 128, "eval/episode_return_mean/0": 1.0, "eval/episode_return_mean/2": 3.0}
    # Members that diverged are counted.
    assert scalars({"population/failed": [3, 7], "population/continues": [1, 1]}) == {
        "population/failed": 2,
        "population/continues/0": 1,
        "population/continues/1": 1,
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"logger.wandb.enabled": False, "logger.wandb.mode": "online"}, []),
        ({"logger.wandb.enabled": True, "logger.wandb.tags.0": "a", "logger.console.enabled": True}, ["wandb"]),
        ({"logger.wandb.enabled": True, "logger.wandb.mode": "offline"}, []),
    ],
)
def test_loggers_that_send_data_are_found(values, expected):
    assert sending_loggers(values) == expected
