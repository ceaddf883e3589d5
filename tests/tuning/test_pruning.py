"""Pruning of the trials of a population."""

import optuna

from stoix_like.tuning.pruning import Pruning


def records(*returns):
    return [{"eval/episode_return_mean": values} for values in returns]


def test_a_population_stops_once_all_its_trials_are_pruned():
    study = optuna.create_study(direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=5.0))
    trials = [study.ask(), study.ask()]
    pruning = Pruning(study, [trial.number for trial in trials], seeds=2)
    pruning.replay([])
    # Means over seeds 0 and 0, before training; then 6 and 3, of which the second is pruned; then both are.
    history = records([0.0, 0.0, 0.0, 0.0], [5.0, 7.0, 2.0, 4.0], [4.0, 4.0, 4.0, 4.0])
    assert [pruning.on_evaluation(record, None) for record in history] == [None, None, False]
    assert study.trials[0].intermediate_values == {}
    pruning.write()
    assert study.trials[0].intermediate_values == {2: 4.0}
    # A process that is killed before it tells all of them writes the others again.
    study.tell(0, state=optuna.trial.TrialState.PRUNED)
    pruning.replay(history)
    pruning.write()
    assert [trial.intermediate_values for trial in study.trials] == [{2: 4.0}] * 2


def test_a_resumed_run_decides_like_an_uninterrupted_one():
    study = optuna.create_study(study_name="sweep", direction="maximize", pruner=optuna.pruners.HyperbandPruner())
    study.add_trial(optuna.trial.create_trial(value=1.0, intermediate_values={9: 1.0}))
    # Each trial falls behind the last one.
    history = records(*([1.0 - 0.1 * place - 0.01 * step for place in range(8)] for step in range(9)))

    def responses(replayed):
        pruning = Pruning(study, range(1, 9), seeds=1)
        pruning.replay(history[:replayed])
        return [pruning.on_evaluation(record, None) for record in history[replayed:]], pruning

    for _ in range(8):
        study.ask()
    whole, pruning = responses(0)
    assert responses(4)[0] == whole[4:]
    pruning.write()
    # Trials of one bracket, which its hash chooses, reached a rung; few of them the next one.
    rungs = [set(trial.system_attrs) for trial in study.trials[1:]]
    assert {"completed_rung_0"} in rungs
    assert {"completed_rung_0", "completed_rung_1"} in rungs
    assert [trial.last_step for trial in study.trials[1:]] == [8] * 8
