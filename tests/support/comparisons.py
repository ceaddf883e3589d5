"""Comparison of two runs."""

import json

import jax
import numpy as np


def without_times(history):
    return [{**record, "wall_seconds": 0, "steps_per_second": 0} for record in history]


def recorded(run_dir):
    return without_times(map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines()))


def assert_same_state(one, other):
    def same(a, b):
        if jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()

    jax.tree.map(same, one, other)
