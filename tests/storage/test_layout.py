import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import stoix_like
from stoix_like.storage.run_files import LAYOUT_NUMBER

# 0.3.0: `stoix-like train network.{actor,critic}_network.pre_torso.layer_sizes=[4] arch.total_num_envs=2
# arch.num_evaluation=2 system.rollout_length=4 system.num_minibatches=1 system.epochs=1 arch.total_timesteps=16
# arch.num_eval_episodes=2 arch.absolute_metric=false arch.num_devices=1 arch.seed=7 logger=silent`,
# with its last checkpoint.
RECORDED = Path(__file__).with_name(f"layout_{LAYOUT_NUMBER}.zip")


@pytest.fixture
def run(tmp_path):
    shutil.unpack_archive(RECORDED, tmp_path)
    return tmp_path / RECORDED.stem


def test_a_recorded_run_is_loaded(run):
    policy = stoix_like.load_policy(run)
    observations = [[0.1, -0.1, 0.1, 0.1], [-0.7, -1.3, -0.1, 0.0], [0.9, 0.1, -0.1, -0.9], [0.3, -0.3, 0.3, 2.0]]
    np.testing.assert_array_equal(policy(np.array(observations, np.float32)), [0, 1, 1, 0])
    assert policy.env_steps == 8  # the best parameters


@pytest.mark.slow
def test_a_recorded_run_is_resumed(run):
    before = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    result = stoix_like.resume(run, ["arch.total_timesteps=32", "arch.num_evaluation=4"])
    assert result.history[: len(before)] == before
    assert [record["env_steps"] for record in result.history] == [0, 8, 16, 24, 32]
