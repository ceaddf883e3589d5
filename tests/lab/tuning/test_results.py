"""The results of a sweep."""

import csv

import optuna
import pytest

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.selection import read_selected
from stoix_like.lab.tuning.parameters import Parameter
from stoix_like.lab.tuning.results import BEST, PICTURE, TRIALS, draw, importance, train_line, write_results
from stoix_like.lab.tuning.study import best_trial, open_study

RANGE = optuna.distributions.FloatDistribution(0.0, 1.0)
PARAMETER = Parameter("system.actor_lr", RANGE, traced=True)


def study_of(*values):
    """Return a study whose trials have the given values; None: it failed."""
    study = optuna.create_study(direction="maximize")
    for number, value in enumerate(values):
        state = optuna.trial.TrialState.FAIL if value is None else optuna.trial.TrialState.COMPLETE
        given = {"params": {PARAMETER.key: 0.1 * number}, "distributions": {PARAMETER.key: RANGE}}
        study.add_trial(optuna.trial.create_trial(value=value, state=state, **given))
    return study


def test_the_best_trial_is_an_experiment_with_the_environment_of_the_sweep(tmp_path):
    overrides = ["env._target_=support.toys.MyEnv", "hydra.launcher.n_jobs=2", "experiment=ppo_acrobot"]
    write_results(tmp_path, study_of(None, 1.0), [PARAMETER], overrides)
    config = compose_config(["+experiment=best"], [(tmp_path / BEST).parents[1]])
    assert (config.env.env_name, config.env._target_, config.system.actor_lr) == ("own", "support.toys.MyEnv", 0.1)
    with (tmp_path / TRIALS).open() as file:
        rows = [(row["state"], row["value"], row[PARAMETER.key]) for row in csv.DictReader(file)]
    assert rows == [("fail", "", "0.0"), ("complete", "1.0", "0.1")]


def test_choices_of_optional_groups_are_part_of_the_experiment(tmp_path):
    deleted = "~network.critic_network.pre_torso.activation"
    overrides = ["+search=strong", "experiment=ppo_simple_spread", "+observations=privileged", deleted]
    write_results(tmp_path, study_of(1.0), [PARAMETER], overrides)
    assert train_line(tmp_path / BEST).endswith(f"+experiment=best '{deleted}'")
    chosen = compose_config(["+experiment=best"], [(tmp_path / BEST).parents[1]])
    expected = compose_config(["+search=strong", "+experiment=ppo_simple_spread", "+observations=privileged"])
    assert chosen.network.observations == expected.network.observations
    assert chosen.system.num_minibatches == expected.system.num_minibatches


@pytest.mark.parametrize(
    "overrides",
    [
        ["+experiment=rec_ppo_smax_3m", "observations=privileged"],
        ["network=[mlp,mlp_gsde]"],
        ["+experiment=[ppo_cartpole,ppo_acrobot]"],
    ],
)
def test_choices_that_replace_others_and_lists_of_them_are_those_of_the_experiment(tmp_path, overrides):
    write_results(tmp_path, study_of(1.0), [PARAMETER], overrides)
    chosen = compose_config(["+experiment=best"], [(tmp_path / BEST).parents[1]])
    assert chosen == compose_config([*overrides, "system.actor_lr=0.0"])


def test_the_last_choice_of_a_group_is_that_of_the_experiment(tmp_path):
    study = optuna.create_study(direction="maximize")
    choices = optuna.distributions.CategoricalDistribution(("ppo/ff_ppo", "ppo/ff_dpo"))
    given = {"params": {"system": "ppo/ff_dpo"}, "distributions": {"system": choices}}
    study.add_trial(optuna.trial.create_trial(value=1.0, **given))
    parameters = [Parameter("system", choices, traced=False)]
    write_results(tmp_path, study, parameters, ["system=ppo/ff_ppo", "env=a", "env=gymnax/acrobot"])
    chosen = compose_config(["+experiment=best"], [(tmp_path / BEST).parents[1]])
    assert (parse_config(chosen).system_name, chosen.env.scenario.name) == ("ppo/ff_dpo", "Acrobot-v1")


def test_files_are_written_for_the_trials_that_they_need(tmp_path):
    for values, files in (((None,), (False, False)), ((1.0,), (True, False)), ((1.0, 2.0), (True, True))):
        directory = tmp_path / str(files)
        directory.mkdir()
        write_results(directory, study_of(*values), [PARAMETER], [])
        assert ((directory / BEST).exists(), (directory / PICTURE).exists()) == files


def test_the_best_trial_is_complete_and_the_first_one_of_equals(tmp_path):
    study = study_of(1.0, 2.0, 2.0)
    pruned = study.ask({PARAMETER.key: RANGE})
    pruned.report(9.0, 1)
    study.tell(pruned, state=optuna.trial.TrialState.PRUNED)
    assert study.trials[3].value == 9.0
    write_results(tmp_path, study, [PARAMETER], [])
    assert read_selected(tmp_path)[:3] == (3, 1, 2.0)
    assert best_trial(study).number == 1


def test_importance_needs_trials_that_differ():
    assert importance(study_of(1.0, 2.0)) == {}
    assert importance(study_of(*[1.0] * 9)) == {}
    assert draw(study_of(1.0, 2.0), [PARAMETER]).axes[0].get_title() == "importance undecided"
    # The only parameter explains all of it.
    study = study_of(*map(float, range(9)))
    assert importance(study) == {PARAMETER.key: 1.0}
    with pytest.warns(UserWarning, match="list"):
        sizes = optuna.distributions.CategoricalDistribution(([32], [64]))
    lists = optuna.create_study(direction="maximize")
    for trial in study.trials:
        trial.params["layers"], trial.distributions["layers"] = [64], sizes
        lists.add_trial(trial)
    assert importance(lists) == {PARAMETER.key: 1.0}


def test_a_damaged_study_is_refused(tmp_path):
    (tmp_path / "study.db").write_text("no database" * 100)
    with pytest.raises(ConfigError, match=r"study\.db cannot be read \(file is not a database\): delete it"):
        open_study(tmp_path / "study.db")
