"""The study of a sweep: what a process that was killed leaves is completed, and nothing is drawn twice."""

import sqlite3

import numpy as np
import optuna
import pytest
from optuna.trial import TrialState

from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.lab.tuning.shapes import list_shapes
from stoix_like.lab.tuning.study import PLACE, RUN, SAMPLERS, SIZE, Sampling, ask, open_study, random_share, unfinished
from support.killed_sweeps import KEYS, SPACE, values

PARAMETERS = parse_space(SPACE, KEYS, ["actor_lr", "gamma"])


def sampling(sampler, parameters=PARAMETERS):
    return Sampling(parameters, list_shapes(parameters, sampler, None, 0), sampler, 0)


def study_of(trials=()):
    study = optuna.create_study(study_name="sweep", direction="maximize")
    study.add_trials(trials)
    return study


def points(study):
    return [(trial.params, trial.user_attrs) for trial in study.trials]


def tell_all(study):
    for trials in unfinished(study):
        for trial, value in zip(trials, values([trial.params for trial in trials]), strict=True):
            told = {"values": value} if value == value else {"state": TrialState.FAIL}
            study.tell(trial.number, **told)


def sampled(sampler, trials, parallel, size=3):
    """Run a sweep in memory."""
    study = study_of()
    while True:
        ask(study, sampling(sampler), trials, parallel, size)
        if not unfinished(study):
            return study
        tell_all(study)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_batch_that_was_written_in_part_is_completed_as_it_would_have_been(sampler):
    study = sampled(sampler, 12, 6)
    ask(study, sampling(sampler), 18, 6, 3)
    for written in (13, 15, 17):
        killed = study_of(study.trials[:written])
        # No size, of populations, of batches or of the sweep, changes one that has begun.
        ask(killed, sampling(sampler), 40, 8, 2)
        assert points(killed) == points(study)
        ask(killed, sampling(sampler), 40, 8, 2)
        assert len(killed.trials) == 18


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_longer_sweep_tries_something_else(sampler):
    study = sampled(sampler, 4, 4)
    for _ in range(2):
        ask(study, sampling(sampler), 12, 4, 2)
        tell_all(study)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 12


def test_a_population_of_which_some_trials_are_told_stays_whole():
    study = study_of()
    ask(study, sampling("random"), 12, 12, 4)
    whole = unfinished(study)
    places = [[trial.user_attrs[PLACE] for trial in trials] for trials in whole]
    assert places == [list(range(len(trials))) for trials in whole]
    assert all(len({trial.params["system.epochs"] for trial in trials}) == 1 for trials in whole)
    study.tell(whole[0][0].number, 1.0)
    numbers = [[[trial.number for trial in trials] for trials in one] for one in (unfinished(study), whole)]
    assert numbers[0] == numbers[1]
    for trial in whole[0][1:]:
        study.tell(trial.number, 1.0)
    assert len(unfinished(study)) == len(whole) - 1


def test_a_grid_is_tried_once_whatever_was_lost():
    # 5 × 5 points of ranges, 3 integers.
    whole = sampled("grid", 1000, 16, 16)
    assert len(whole.trials) == len({tuple(trial.params.values()) for trial in whole.trials}) == 75
    holes = sampled("grid", 1000, 16, 16).trials[::3]
    study = study_of(trial for trial in holes if trial.state != TrialState.RUNNING)
    ask(study, sampling("grid"), 1000, 100, 100)
    found, expected = ({tuple(trial.params.values()) for trial in one.trials} for one in (study, whole))
    assert found == expected


@pytest.mark.parametrize("border", [0.5, 0.2])
@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_samplers_leave_where_training_diverges(sampler, border):
    """Beyond the border every trial fails; below, returns are nearly equal, and tell little."""
    ranges = {name: {"uniform": [0.0, 1.0]} for name in ("actor_lr", "gamma")}
    both = parse_space(ranges, KEYS, list(ranges))
    study = study_of()
    while len(study.trials) < 96:
        ask(study, Sampling(both, [{}], sampler, 0), 96, 8, 8)
        for trial in study.get_trials(states=(TrialState.RUNNING,)):
            fails = trial.params["system.gamma"] > border
            study.tell(
                trial.number,
                **({"state": TrialState.FAIL} if fails else {"values": 1.0 - 0.01 * trial.params["system.actor_lr"]}),
            )
    late = [trial.state for trial in study.trials[48:]]
    # At random, a share of 1 - border would fail.
    assert late.count(TrialState.FAIL) < 0.8 * (1.0 - border) * len(late)


@pytest.mark.parametrize(
    ("sampler", "trials", "parallel", "share"),
    [
        # TPE learns from 10 finished trials on: the first batches, until 10 are finished, are random.
        ("tpe", 16, 16, 16),
        ("tpe", 64, 16, 16),
        ("tpe", 64, 4, 12),
        ("tpe", 8, 1, 8),
        ("cmaes", 64, 16, 16),
        ("random", 16, 16, 0),
        ("grid", 16, 16, 0),
    ],
)
def test_the_first_batches_are_random(sampler, trials, parallel, share):
    assert random_share(sampler, trials, parallel) == share


def test_a_batch_of_tpe_spreads_over_the_space():
    """The trials of a batch that are drawn already count as bad ones; draws from one posterior would crowd."""
    floats = [parameter for parameter in PARAMETERS if parameter.traced]

    def place(trial):
        lr, gamma = (trial.params[parameter.key] for parameter in floats)
        return np.array([(np.log10(lr) + 5.0) / 4.0, (gamma - 0.9) * 10.0])

    def batch(seed, size):
        study = study_of()
        ask(study, Sampling(floats, [{}], "random", 0), 32, 32, 32)
        for trial in study.get_trials():
            study.tell(trial.number, -float(np.sum((place(trial) - 0.5) ** 2)))
        ask(study, Sampling(floats, [{}], "tpe", seed), 99, size, size)
        return list(map(place, study.trials[32:]))

    def nearest(points):
        distances = np.linalg.norm(np.array(points)[:, None] - np.array(points), axis=-1)
        return np.sort(distances, axis=-1)[:, 1].mean()

    alone = [point for seed in range(1, 17) for point in batch(seed, 1)]
    assert nearest(batch(0, 16)) > 2.0 * nearest(alone)


def runs_of(study):
    """Return the trials of each population."""
    found = {}
    for trial in study.trials:
        found.setdefault(trial.user_attrs[RUN], []).append(trial)
    return list(found.values())


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_population_has_one_shape_and_the_full_size(sampler):
    study = sampled(sampler, 60, 15, 5)
    shapes = [{trial.params["system.epochs"] for trial in trials} for trials in runs_of(study)]
    assert {len(shape) for shape in shapes} == {len(trials) // 5 for trials in runs_of(study)} == {1}
    assert set.union(*shapes) == {1, 2, 3}
    if sampler in ("random", "cmaes"):
        # In turns.
        assert shapes == [{1}, {2}, {3}] * 4
    if sampler == "tpe":
        # 0.1 is lost with every epoch.
        assert shapes[:3] == [{1}, {2}, {3}]
        assert sum(shape == {1} for shape in shapes[3:]) > 5


def test_trials_of_earlier_releases_keep_their_runs():
    """Those wrote no size, and drew every integer of a range."""
    study = sampled("tpe", 12, 12)
    old = study_of(study.trials)
    for trial in old._storage.get_all_trials(old._study_id, deepcopy=False):
        trial.user_attrs.pop(SIZE)
    ask(old, sampling("tpe"), 24, 12, 3)
    assert [trial.user_attrs.get(SIZE) for trial in old.trials] == [None] * 12 + [3] * 12


def test_no_connection_to_the_file_stays_open(tmp_path, monkeypatch):
    """Python 3.13 warns of one that is garbage-collected."""
    connections, connect = [], sqlite3.connect

    def counted(*args, **kwargs):
        connections.append(connect(*args, **kwargs))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", counted)
    study = open_study(tmp_path / "study.db")
    ask(study, sampling("random"), trials=4, parallel=4, size=2)
    assert len(study.trials) == 4
    assert connections
    for connection in connections:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")
