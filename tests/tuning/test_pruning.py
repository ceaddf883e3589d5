"""Pruning of the trials of a population."""

import optuna

from stoix_like.tuning.pruning import Pruning


def test_a_population_stops_once_all_its_trials_are_pruned():
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=5.0))
    trials = [study.ask(), study.ask()]
    pruning = Pruning(trials, seeds=2)
    # Means over seeds 0 and 0, before training; then 6 and 3, of which the second is pruned; then both are.
    responses = [
        pruning.on_evaluation({"eval/episode_return_mean": returns}, None)
        for returns in ([0.0, 0.0, 0.0, 0.0], [5.0, 7.0, 2.0, 4.0], [4.0, 4.0, 4.0, 4.0])
    ]
    assert responses == [None, None, False]
    assert study.trials[0].intermediate_values == {0: 0.0, 1: 6.0, 2: 4.0}
