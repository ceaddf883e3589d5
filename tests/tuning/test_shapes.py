"""Shapes of a sweep."""

import pytest
from killed_sweeps import KEYS, SPACE

from stoix_like.tuning.populations import Populations
from stoix_like.tuning.shapes import list_shapes, population_size
from stoix_like.tuning.space import parse_space
from stoix_like.tuning.study import Sampling

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
    assert list_shapes(parameters(LR), "tpe", None, 0) == [{}]
    # Where nothing is traced, every trial compiles, whatever its shape.
    assert list_shapes(parameters({"epochs": {"int": [1, 100]}}), "tpe", None, 0) is None


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


@pytest.mark.parametrize(
    ("space", "sampler", "sizes", "line"),
    [
        (LR, "tpe", (64, 16, 2), "1 program for 32 member(s)"),
        (SPACE, "tpe", (64, 16, 1), "3 shape(s) of system.epochs: 3 programs, each for 16 member(s)"),
        (SPACE, "tpe", (32, 16, 1), "2 of 3 shape(s) of system.epochs: 2 programs, each for 16 member(s)"),
        # 16 + 4 trials.
        (LR, "random", (20, 16, 1), "1 program for 16 member(s), and 1 program for 4 member(s)"),
        # 5 × 5 points of each of 3 integers: 16 + 9.
        (SPACE, "grid", (99, 16, 1), "3 programs, each for 16 member(s), and 3 programs, each for 9 member(s)"),
        (LR, "tpe", (20, 1, 1), "20 programs, each for 1 member(s)"),
        ({"epochs": {"int": [1, 9]}}, "tpe", (4, 2, 1), "system.epochs: every combination of values is a program, at"),
    ],
)
def test_a_sweep_says_how_many_programs_it_compiles(space, sampler, sizes, line):
    trials, size, seeds = sizes
    shapes = list_shapes(parameters(space), sampler, None, 0)
    sampling = Sampling(parameters(space), shapes, sampler, 0)
    own = {"trials": trials, "parallel": size, "size": size, "seeds": seeds, "objective": "final"}
    assert line in Populations(None, sampling, None, **own).notes()[0]
