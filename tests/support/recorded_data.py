"""A small data set of two episodes, with nested observations."""

import numpy as np

from stoix_like.base_types import Observation
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.envs.spaces import Box, Dict, Discrete

OBSERVATIONS = Dict({"joint": Dict({"pos": Box(-9.0, 9.0, (2,))}), "touch": Discrete(3)})
ACTIONS = Box(-2.0, 2.0, (1,))
ENV = "suite/Arm-v0"


def make_data():
    """Return episodes of 2 and 3 steps, with returns 3 and -3; the first terminates, the second is truncated."""
    view = {
        "joint": {"pos": np.arange(14, dtype=np.float32).reshape(7, 2)},
        "touch": np.array([0, 1, 2, 0, 1, 2, 0], np.int32),
    }
    row = np.arange(7)
    return DataSet(
        DataHeader(environment=ENV, system="sac/ff_sac", policy="best"),
        Observation(view, action_mask=None),
        np.linspace(-2, 2, 7, dtype=np.float32)[:, None],
        np.array([1, 2, 0, -1, -1, -1, 0], np.float32),
        row == 1,
        row == 5,
        (row != 2) & (row != 6),
    ).with_statistics()
