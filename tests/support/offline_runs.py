"""Runs on recorded data of CartPole."""

import numpy as np

from stoix_like.base_types import Observation
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import write_data
from support.set_ups import setup_of as setup_of

SMALL = [
    *("arch=offline", "env=gymnax/cartpole", "arch.num_eval_episodes=4", "arch.num_evaluation=8", "logger=silent"),
    *("network.actor_network.pre_torso.layer_sizes=[8]", "system.total_batch_size=32", "arch.num_devices=1"),
    *("checkpoint.every_evals=1", "checkpoint.keep=9"),
]


def write_cartpole(path, episodes=20, seed=0):
    """Write episodes of ten random steps, of which every other one terminates."""
    rng, rows = np.random.default_rng(seed), 11 * episodes
    number, row = np.divmod(np.arange(rows), 11)
    header, view = DataHeader(environment="gymnax/CartPole-v1"), rng.normal(size=(rows, 4)).astype(np.float32)
    action, reward = rng.integers(0, 2, rows).astype(np.int32), (row < 10).astype(np.float32)
    terminated, truncated = ((row == 9) & (number % 2 == parity) for parity in (0, 1))
    data = DataSet(header, Observation(view), action, reward, terminated, truncated, row < 10)
    write_data(path, data.with_statistics())
    return f"system.data={path}"
