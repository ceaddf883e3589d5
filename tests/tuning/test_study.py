"""The study of a sweep: what a process that was killed leaves is completed, and nothing is drawn twice."""

import optuna
import pytest
from killed_sweeps import KEYS, SPACE, returns
from optuna.trial import TrialState

from stoix_like.tuning.space import parse_space
from stoix_like.tuning.study import PLACE, RUN, SAMPLERS, ask, open_study, random_share, unfinished

PARAMETERS = parse_space(SPACE, KEYS, ["actor_lr", "gamma"])


def study_of(trials=()):
    study = optuna.create_study(study_name="sweep", direction="maximize")
    study.add_trials(trials)
    return study


def points(study):
    return [(trial.params, trial.user_attrs) for trial in study.trials]


def tell_all(study):
    for trials in unfinished(study):
        for trial, value in zip(trials, returns(trials)[0], strict=True):
            told = {"values": value} if value == value else {"state": TrialState.FAIL}
            study.tell(trial.number, **told)


def sampled(sampler, trials, parallel):
    """Run a sweep in memory."""
    study = study_of()
    while True:
        ask(study, PARAMETERS, sampler, 0, trials, parallel)
        if not unfinished(study):
            return study
        tell_all(study)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_batch_that_was_written_in_part_is_completed_as_it_would_have_been(sampler):
    study = sampled(sampler, 12, 6)
    ask(study, PARAMETERS, sampler, 0, 18, 6)
    for written in (13, 15, 17):
        killed = study_of(study.trials[:written])
        # Neither the size of the batches nor that of the sweep changes one that has begun.
        ask(killed, PARAMETERS, sampler, 0, 40, 3)
        assert points(killed) == points(study)
        ask(killed, PARAMETERS, sampler, 0, 40, 3)
        assert len(killed.trials) == 18


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_longer_sweep_tries_something_else(sampler):
    study = sampled(sampler, 4, 4)
    for _ in range(2):
        ask(study, PARAMETERS, sampler, 0, 12, 4)
        tell_all(study)
    assert len({tuple(trial.params.values()) for trial in study.trials}) == 12


def test_a_population_of_which_some_trials_are_told_stays_whole():
    study = study_of()
    ask(study, PARAMETERS, "random", 0, 12, 12)
    whole = unfinished(study)
    assert [[trial.user_attrs[PLACE] for trial in trials] for trials in whole] == [
        list(range(len(trials))) for trials in whole
    ]
    assert all(len({trial.params["system.epochs"] for trial in trials}) == 1 for trials in whole)
    study.tell(whole[0][0].number, 1.0)
    assert [[trial.number for trial in trials] for trials in unfinished(study)] == [
        [trial.number for trial in trials] for trials in whole
    ]
    for trial in whole[0][1:]:
        study.tell(trial.number, 1.0)
    assert len(unfinished(study)) == len(whole) - 1


def test_a_grid_is_tried_once_whatever_was_lost():
    # 5 × 5 points of ranges, 3 integers.
    whole = sampled("grid", 1000, 16)
    assert len(whole.trials) == len({tuple(trial.params.values()) for trial in whole.trials}) == 75
    holes = sampled("grid", 1000, 16).trials[::3]
    study = study_of(trial for trial in holes if trial.state != TrialState.RUNNING)
    ask(study, PARAMETERS, "grid", 0, 1000, 100)
    assert {tuple(trial.params.values()) for trial in study.trials} == {
        tuple(trial.params.values()) for trial in whole.trials
    }


def test_trials_of_earlier_releases_that_nobody_trains_are_drawn_again(tmp_path):
    """Those enqueued points, and asked for trials before they had a run."""
    path, pruner = tmp_path / "study.db", optuna.pruners.NopPruner()
    study = open_study(path, pruner)
    for lr in (1e-5, 1e-4):
        study.enqueue_trial({"system.actor_lr": lr, "system.gamma": 0.9, "system.epochs": 1})
    study.ask({parameter.key: parameter.distribution for parameter in PARAMETERS})
    study = open_study(path, pruner)
    assert [trial.state for trial in study.trials] == [TrialState.FAIL] * 2
    ask(study, PARAMETERS, "grid", 0, 2, 16)
    assert [trial.params["system.actor_lr"] for trial in study.trials if RUN in trial.user_attrs] == [1e-5] * 2


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
