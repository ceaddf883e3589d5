"""Shapes of a sweep."""

import numpy as np
import pytest

from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.lab.tuning.shapes import list_shapes, population_size
from support.killed_sweeps import KEYS

LR = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}}


def parameters(space):
    return parse_space(space, [*KEYS, "network.x", "system.rollout_length"], ["actor_lr", "gamma"])


def test_choices_are_combined_and_large_ranges_drawn_without_repetition():
    chosen = parameters(LR | {"epochs": {"choice": [1, 4, 1]}, "network": {"choice": ["mlp", "cnn"]}})
    assert list_shapes(chosen, "tpe", None, 0) == [
        {"system.epochs": epochs, "network": network} for epochs in (1, 4) for network in ("mlp", "cnn")
    ]
    drawn = list_shapes(parameters(LR | {"rollout_length": {"log_int": [1, 1000]}}), "tpe", None, 0)
    lengths = [shape["system.rollout_length"] for shape in drawn]
    assert len(set(lengths)) == 8
    assert all(1 <= length <= 1000 for length in lengths)
    # More of them do not replace the first ones.
    more = list_shapes(parameters(LR | {"rollout_length": {"log_int": [1, 1000]}}), "random", 20, 0)
    assert more[:8] == drawn
    # Beside choices as well.
    both = parameters(LR | {"epochs": {"choice": [1, 4]}, "rollout_length": {"int": [1, 1000]}})
    assert len(list_shapes(both, "tpe", None, 0)) == 8
    assert list_shapes(parameters(LR), "tpe", None, 0) == [{}]
    # Where nothing is traced, every trial compiles, whatever its shape.
    assert list_shapes(parameters({"epochs": {"int": [1, 100]}}), "tpe", None, 0) is None


@pytest.mark.parametrize("kind", ["int", "log_int"])
def test_both_ends_of_a_range_are_drawn(kind):
    drawn = list_shapes(parameters(LR | {"rollout_length": {kind: [1, 20]}}), "tpe", 19, 0)
    lengths = {shape["system.rollout_length"] for shape in drawn}
    assert len(lengths) == 19
    assert {1, 20} < lengths < set(range(1, 21))


@pytest.mark.parametrize(("kind", "middle"), [("int", 500), ("log_int", 100)])
def test_ranges_are_drawn_evenly_on_their_scale(kind, middle):
    """Without repetition, which moves the middle of the logarithmic one upwards from 22."""
    drawn = list_shapes(parameters(LR | {"rollout_length": {kind: [1, 1000]}}), "tpe", 100, 0)
    assert np.median([shape["system.rollout_length"] for shape in drawn]) == pytest.approx(middle, rel=0.5)


@pytest.mark.parametrize(
    ("given", "trials", "parallel", "num_shapes", "size"),
    [
        (None, 64, 16, 3, 16),
        # Of 32 trials, 4 shapes get 8 each.
        (None, 32, 16, 4, 8),
        (None, 2, 16, 4, 1),
        (4, 64, 16, 3, 4),
    ],
)
def test_populations_are_so_large_that_every_shape_is_tried(given, trials, parallel, num_shapes, size):
    assert population_size(given, trials, parallel, num_shapes) == size
