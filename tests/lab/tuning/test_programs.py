import pytest

from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.lab.tuning.shapes import list_shapes
from stoix_like.lab.tuning.study import Sampling
from stoix_like.lab.tuning.sweep import SweepConfig, notes_on_programs
from support.killed_sweeps import KEYS, SPACE

LR = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}}
EVERY_ONE = "every combination of values is a program"


def parameters(space):
    return parse_space(space, KEYS, ["actor_lr", "gamma"])


@pytest.mark.parametrize(
    ("space", "sampler", "sizes", "line"),
    [
        (LR, "tpe", (64, 16, 2), "1 program for 32 member(s)"),
        (SPACE, "tpe", (64, 16, 1), "3 shape(s) of system.epochs: 3 programs, each for 16 member(s)"),
        (SPACE, "tpe", (32, 16, 1), "2 of 3 shape(s) of system.epochs: 2 programs, each for 16 member(s)"),
        # 16 + 4 trials.
        (LR, "random", (20, 16, 1), "1 program for 16 member(s), and 1 program for 4 member(s)"),
        # 5 × 5 points of each of 3 integers: 16 + 9.
        (
            SPACE,
            "grid",
            (99, 16, 1),
            "3 shape(s) of system.epochs: 3 programs, each for 16 member(s), and 3 programs, each for 9 member(s)",
        ),
        (LR, "tpe", (20, 1, 1), "20 programs, each for 1 member(s)"),
        (LR, "tpe", (64, 2, 2), "1 program for 4 member(s)"),
        ({"epochs": {"int": [1, 9]}}, "tpe", (4, 2, 1), f"system.epochs: {EVERY_ONE}, at most 4"),
        ({"epochs": {"int": [1, 3]}}, "grid", (9, 2, 1), f"system.epochs: {EVERY_ONE}, at most 3"),
    ],
)
def test_a_sweep_says_how_many_programs_it_compiles(space, sampler, sizes, line):
    trials, size, seeds = sizes
    shapes = list_shapes(parameters(space), sampler, None, 0)
    sampling = Sampling(parameters(space), shapes, sampler, 0)
    config = SweepConfig(space=space, trials=trials, parallel=size, seeds=seeds)
    assert notes_on_programs(config, sampling, size)[0] == line


def test_a_sweep_of_a_given_number_of_shapes_compiles_no_more_programs():
    space = {"epochs": {"int": [1, 9]}}
    sampling = Sampling(parameters(space), list_shapes(parameters(space), "tpe", 2, 0), "tpe", 0)
    notes = notes_on_programs(SweepConfig(space=space, trials=8, parallel=2), sampling, 2)
    assert notes[0] == f"system.epochs: {EVERY_ONE}, at most 2"


@pytest.mark.parametrize(
    ("size", "launcher", "note"), [(8, "joblib", None), (16, "joblib", "sweep.launcher=joblib has one job at a time")]
)
def test_a_sweep_says_what_costs_more_than_it_needs_to(size, launcher, note):
    sampling = Sampling(parameters(LR), [{}], "random", 0)
    config = SweepConfig(space=LR, trials=40, parallel=16, launcher=launcher)
    notes = notes_on_programs(config, sampling, size)[1:]
    assert any(note in line for line in notes) if note else notes == []


def test_a_sweep_that_learns_from_nothing_says_so():
    sampling = Sampling(parameters(LR), [{}], "tpe", 0)
    config = SweepConfig(space=LR, trials=2, parallel=2)
    note = "sweep.parallel=2: 2 of 2 trials are drawn at random, because tpe learns between batches, from 10 finished"
    assert note in notes_on_programs(config, sampling, 2)[-1]
