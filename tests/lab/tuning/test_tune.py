"""Tests of tuning within a budget."""

import importlib
import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import filelock
import numpy as np
import optuna
import pytest
import yaml
from optuna.distributions import FloatDistribution

import stoix_like
from stoix_like import cli
from stoix_like.composition import compose_config
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.selection import read_selected
from stoix_like.lab.tuning.budget import Budget, BudgetStages, plan_steps
from stoix_like.lab.tuning.tune import Request, TuneResult, _make_plan, _read_plan, _Tuning, _write_plan, describe_tuned
from stoix_like.storage.recorded_runs import members, read_run
from support.selections import first
from support.set_ups import config_of
from support.trained_runs import SMALL

RUN = [*SMALL, "arch.total_timesteps=576"]
SPACE = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}}


@pytest.mark.parametrize(
    ("given", "message"),
    first(
        5,
        [
            (["--budget", "soon"], "budget=soon must be a wall time"),
            (["--budget", "1e5"], "too few to tune trials of arch.total_timesteps=500,000"),
            (["hydra.run.dir=runs/mine"], "hydra.run.dir=runs/mine has no effect here: leave it out; --out"),
            (["hydra.launcher.n_jobs=2"], "hydra.launcher.n_jobs=2 has no effect here"),
            (["--space", "5"], "space=5 must be ranges by name"),
            (["env.scenario.name=polcy"], "did you mean"),
            (["--space", "{epochs: {int: [1, 2]}}"], "use stoix-like sweep"),
            (["--space", "{actr_lr: {uniform: [0.1, 1]}}"], "did you mean 'actor_lr'"),
            (["system.critic_lr=${system.actor_lr}"], "${system.actor_lr} would not follow system.actor_lr"),
            (["--slots", "1"], "slots=1 must be at least 2"),
            (["--space", "{target_kl: {uniform: [0.1, 1]}}"], "target_kl is null"),
        ],
    ),
)
def test_what_cannot_be_tuned_is_refused(tmp_path, monkeypatch, refused, given, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("tune", "probe/policy", "--budget", "1e9", *given)
    assert not list(tmp_path.iterdir())


class Told(_Tuning):
    """Trains nothing."""

    returns: ClassVar[list[list[float]]] = []

    def _retrain(self, stage, settings, first_seed):
        return self.returns


def test_a_setting_that_diverges_is_worse_than_any_other(tmp_path):
    study = optuna.create_study(direction="maximize")
    given = {"params": {"system.actor_lr": 0.1}, "distributions": {"system.actor_lr": FloatDistribution(0.0, 1.0)}}
    study.add_trial(optuna.trial.create_trial(value=1.0, **given))
    plan, config = BudgetStages(16, 2), config_of()
    told = Told(tmp_path, Request([], {}, "1e9"), config, plan, [], {"system.actor_lr": 0.9})
    for configured, tuned, best in (([math.nan] * 8, [-3.0] * 8, -3.0), ([1.0] * 8, [math.nan] * 8, 1.0)):
        told.returns = [configured, tuned]
        assert told._select(study)[1] == best
    # As what is found on fresh seeds.
    found = TuneResult(tmp_path, study, {"system.actor_lr": 0.1}, True, 1.0, [-3.0] * 8, [math.nan] * 8)
    assert "verdict: configured diverged\n" in describe_tuned(found)
    found = found._replace(fresh_returns=[math.nan] * 8, default_returns=[-3.0] * 8)
    assert "verdict: tuned diverged: keep the configured setting" in describe_tuned(found)


@pytest.mark.parametrize(
    ("tuned", "configured", "verdict"),
    [
        # Welch's t of means 4.5 apart with variances 6 of 8 returns each: 4.5 / sqrt(12 / 8) = 3.7, p = 0.003.
        (range(1, 9), [one - 0.5 for one in range(1, 9)], "no evidence that the tuned setting is better: +0.5"),
        (range(1, 9), [one - 4.5 for one in range(1, 9)], "the tuned setting is better: +4.5 (Welch's t-test: p = 0.0"),
        (range(1, 9), range(2, 10), "the tuned setting is not better, keep the configured one: -1"),
        # The interquartile mean is larger, and the mean 500 smaller.
        ([10.0] * 6 + [-990.0] * 2, [9.9] * 6 + [1009.9] * 2, "no evidence that the tuned setting is better: +0.1"),
        # Without spread, or with a seed that diverged, by ranks: U = 64 of 8 against 8, with mean 32 and, of ties of 8
        # and 8, variance 64 / 12 * (17 - 2 * 504 / 240) = 68.3; z = 31.5 / 8.26 = 3.81, p = 1.4e-4. Ties of 8 and 7
        # change it little.
        ([1.0] * 8, [0.0] * 8, "the tuned setting is better: +1 (Mann–Whitney U test: p = 0.00014)"),
        ([500.0] * 8, [9.3] * 7 + [math.nan], "the tuned setting is better: +490.7 (Mann–Whitney U test: p = 0.0"),
        ([9.4] * 4 + [9.2] * 3 + [math.nan], [9.25] * 8, "no evidence that the tuned setting is better: +0.0"),
    ],
)
def test_the_verdict_says_in_words_whether_the_tuned_setting_is_better(tmp_path, tuned, configured, verdict):
    study = optuna.create_study(direction="maximize")
    found = TuneResult(tmp_path, study, {"system.actor_lr": 0.1}, True, 1.0, list(tuned), list(configured))
    assert f"verdict: {verdict}" in describe_tuned(found)


def test_trials_have_few_evaluations_unless_they_are_given():
    assert Request(["env=probe/policy"], SPACE, "1e9").of_runs[-1] == "arch.num_evaluation=4"
    assert "num_evaluation=12" in " ".join(Request(["arch.num_evaluation=12"], SPACE, "1e9").of_runs)
    assert len(Request(["arch.num_evaluation=12"], SPACE, "1e9").of_runs) == 3


@pytest.mark.parametrize(("slots", "budget", "trials"), [(16, 80_000, 32), (16, 112_700, 64), (10, 53_000, 20)])
def test_a_search_has_the_whole_trials_that_fit_into_the_budget(tmp_path, monkeypatch, slots, budget, trials):
    """Of 1,000 steps each: 80 - 48, 112.7 - 48 and 53 - 32, of which the last two are less than a further round."""
    given, module = [], importlib.import_module("stoix_like.lab.tuning.tune")
    study = optuna.create_study()
    for _ in range(trials):
        study.add_trial(optuna.trial.create_trial(value=1.0))
    monkeypatch.setattr(module, "run_sweep", lambda config, *_: given.append(config) or SimpleNamespace(study=study))
    plan, config = plan_steps(budget, 1000, slots, "environment steps"), config_of()
    tuning = _Tuning(tmp_path, Request([], {}, str(budget)), config, plan, [], {})
    tuning._search()
    assert given[0].trials == trials
    # What a deadline left out is left out when the command is given again.
    study = optuna.create_study()
    study.add_trial(optuna.trial.create_trial(value=1.0))
    monkeypatch.setattr(module, "run_sweep", lambda config, *_: SimpleNamespace(study=study))
    tuning._search()
    assert _read_plan(tmp_path, Request([], {}, str(budget)), None).rounds == 1


def test_a_search_that_continues_has_the_time_that_its_runs_left(tmp_path, monkeypatch):
    seconds, module = [], importlib.import_module("stoix_like.lab.tuning.tune")
    monkeypatch.setattr(
        module, "run_sweep", lambda *given: seconds.append(given[2]) or SimpleNamespace(study=optuna.create_study())
    )
    for run in ("00000", "00016"):
        (tmp_path / "search/runs" / run).mkdir(parents=True)
        (tmp_path / "search/runs" / run / "summary.json").write_text('{"wall_seconds": 40.0}')
    plan, config = BudgetStages(16, 64, deadline=100.0), config_of()
    _Tuning(tmp_path, Request([], {}, "10min"), config, plan, [], {})._search()
    assert seconds == [20.0]


def test_a_budget_of_trials_that_learn_from_data_is_in_gradient_steps(capsys):
    arch = config_of("system=offline/bc", "arch=offline", "system.data=some.npz").arch
    _make_plan(Request([], {}, "1e9"), Budget(steps=1e9), [], 8, arch, 0.0, Path())
    assert capsys.readouterr().out.startswith("of 1e+09 gradient steps, ")
    _make_plan(Request([], {}, "1e9"), Budget(steps=1e9), [], 8, config_of().arch, 0.0, Path())
    assert capsys.readouterr().out.startswith("of 1e+09 environment steps, ")


def test_the_plan_of_a_directory_is_kept(tmp_path):
    request = Request(["env=probe/policy", *RUN], SPACE, "1e9")

    directory = tmp_path / "tuned"
    directory.mkdir()
    # What a process leaves that is killed while it writes the plan.
    (directory / ".tune.json.part").write_text("{")
    assert _read_plan(directory, request, None) is None
    arch = config_of(*request.overrides).arch
    plan = _make_plan(request, Budget(steps=1e9), [], 8, arch, 0.0, directory)
    _write_plan(directory, request, plan)
    assert plan.slots == 8
    assert [_read_plan(directory, request, slots) for slots in (8, None)] == [plan, plan]
    with pytest.raises(ConfigError, match="holds a search with slots=8, not 16"):
        _read_plan(directory, request, 16)


@pytest.mark.slow
def test_a_second_process_keeps_the_plan_of_the_first_and_is_refused_while_that_tunes(tmp_path, monkeypatch):
    module, given = importlib.import_module("stoix_like.lab.tuning.tune"), ("probe/policy", "ppo/ff_ppo", 1e9, RUN)
    earlier, plans = BudgetStages(8, 3), []

    def plan_as_the_first_does(request, *others):
        _write_plan(tmp_path, request, earlier)
        return _make_plan(request, *others)

    monkeypatch.setattr(module, "_make_plan", plan_as_the_first_does)
    monkeypatch.setattr(_Tuning, "run", lambda self: plans.append(self.plan))
    stoix_like.tune(*given, directory=tmp_path)
    assert plans == [earlier]
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ConfigError, match="is in use: another process tunes"):
        stoix_like.tune(*given, directory=tmp_path)


@pytest.mark.slow
def test_a_tuned_setting_is_reported_on_seeds_that_selected_nothing(tmp_path, capsys):
    directory = tmp_path / "tuned"
    cli.main(["tune", "probe/policy", "--budget", "46080", "--out", str(directory), *RUN])
    shown = capsys.readouterr().out
    assert shown.count(" on 8 fresh seed(s)") >= 1
    assert f"--config-dir {directory / 'configs'} +experiment=tuned" in shown
    plan = json.loads((directory / "tune.json").read_text())["plan"]
    assert plan == {"slots": 16, "rounds": 2, "deadline": None, "seeds": 8}
    seeds = {
        stage: {
            member.seed for run in (directory / stage).rglob("summary.json") for member in members(read_run(run.parent))
        }
        for stage in ("search", "finalists", "fresh")
    }
    assert not seeds["search"] & seeds["finalists"]
    assert not (seeds["search"] | seeds["finalists"]) & seeds["fresh"]
    # The tuned setting is an experiment, and has what the file says.
    text = (directory / "configs/experiment/tuned.yaml").read_text()
    config = compose_config(["+experiment=tuned"], [directory / "configs"])
    assert (config.env.env_name, config.arch.total_timesteps) == ("probe", 576)
    assert config.system.actor_lr == yaml.safe_load(text)["system"]["actor_lr"]
    assert (directory / "tuned.png").read_bytes().startswith(b"\x89PNG")
    # A second call trains nothing, and another search is refused.
    times = {path: path.stat().st_mtime_ns for path in directory.rglob("metrics.jsonl")}
    again = stoix_like.tune("probe/policy", budget="46080", overrides=RUN, directory=directory)
    assert {path: path.stat().st_mtime_ns for path in directory.rglob("metrics.jsonl")} == times
    assert len(again.frame) == len(again.study.trials) == 32
    assert len(again.fresh_returns) == len(again.default_returns) == 8
    with pytest.raises(ConfigError, match="holds another search, with another overrides and budget"):
        stoix_like.tune("probe/policy", budget="20000", overrides=[*RUN, "arch.seed=7"], directory=directory)


class Staged(_Tuning):
    """Trains nothing: the return of a setting is its learning rate."""

    def _search(self):
        study = optuna.create_study(direction="maximize")
        for number in (2, 5, 1, 4, 3):
            rate = {"params": {"system.actor_lr": number / 10}}
            ranges = {"distributions": {"system.actor_lr": FloatDistribution(0.0, 1.0)}}
            study.add_trial(optuna.trial.create_trial(value=float(number), **rate, **ranges))
        return study

    def _retrain(self, stage, settings, first_seed):
        self.trained = getattr(self, "trained", {}) | {stage: [one["system.actor_lr"] for one in settings]}
        return [[rate] * 8 for rate in self.trained[stage]]

    def _write(self, result):
        pass


def test_the_best_trials_are_finalists_and_the_best_finalist_is_the_tuned_setting(tmp_path):
    plan, config = BudgetStages(16, 2), config_of()
    staged = Staged(tmp_path, Request([], {}, "1e9"), config, plan, [], {"system.actor_lr": 0.05})
    found = staged.run()
    assert staged.trained == {"finalists": [0.05, 0.5, 0.4, 0.3], "fresh": [0.05, 0.5]}
    assert (found.params, found.improved) == ({"system.actor_lr": 0.5}, True)
    assert (found.fresh_returns, found.default_returns) == ([0.5] * 8, [0.05] * 8)


def test_the_returns_that_selected_a_setting_are_written_beside_those_on_fresh_seeds(tmp_path):
    study = optuna.create_study(direction="maximize")
    ranges = {"distributions": {"system.actor_lr": FloatDistribution(0.0, 1.0)}}
    study.add_trial(optuna.trial.create_trial(value=9.0, params={"system.actor_lr": 0.1}, **ranges))
    told = Told(tmp_path, Request([], {}, "1e9"), config_of(), BudgetStages(16, 2), [], {})
    # The trial is number 0; the configured setting is none. Without a seed that learnt, it has no return.
    for rate, selected, number in ((0.1, 5.0, 0), (0.9, -math.inf, None)):
        found = TuneResult(tmp_path, study, {"system.actor_lr": rate}, True, selected, [3.0] * 8, [1.0] * 8)
        told._write(found)
        value = math.nan if number is None else selected
        np.testing.assert_equal(
            tuple(read_selected(tmp_path)), (1, number, value, {"system.actor_lr": rate}, [3.0] * 8)
        )


def test_yaml_files_of_a_directory_are_read(tmp_path):
    (tmp_path / "system").mkdir()
    (tmp_path / "system/mine.yaml").write_text("defaults: [/system/ppo/ff_ppo@_here_, _self_]\ngamma: 2.0\n")
    with pytest.raises(ConfigError, match=r"system.gamma=2.0 is out of range"):
        stoix_like.tune("probe/policy", "mine", 1e9, config_dir=tmp_path, directory=tmp_path / "tuned")
