import itertools
import json
import os
import random
import signal
import subprocess
import sys
from types import SimpleNamespace

import filelock
import numpy as np
import pytest
import yaml

import stoix_like
from stoix_like.composition import compose_config
from stoix_like.errors import ConfigError, TrainingError
from stoix_like.lab.analysis import report
from stoix_like.lab.analysis.selection import describe_fresh
from stoix_like.lab.tuning.study import SAMPLERS
from stoix_like.lab.tuning.sweep import SETTINGS, STUDY, Sweep, from_command_line
from stoix_like.storage import recorded_runs
from support import killed_sweeps
from support.commands import wait_until
from support.selections import first
from support.trained_runs import SMALL

RUN = [*SMALL, "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]
SPACE = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}, "epochs": {"choice": [1, 2]}}
LEARNING_RATE, EPOCHS, GAMMA = (
    f"sweep.space={{{space}}}"
    for space in ("actor_lr: {uniform: [0.1, 0.2]}", "epochs: {int: [1, 2]}", "gamma: {uniform: [0.9, 1.0]}")
)
FOLLOWING = [LEARNING_RATE, "system.critic_lr=${system.actor_lr}"]
FOLLOWS = "system.critic_lr=${system.actor_lr} would not follow system.actor_lr"


@pytest.mark.parametrize(
    ("given", "message"),
    first(
        11,
        [
            ([], "sweep.space"),
            ([LEARNING_RATE, "sweep.trials=0"], "sweep.trials=0"),
            ([LEARNING_RATE, "sweep.sampler=tpa"], "sweep.sampler=tpa"),
            ([EPOCHS, "sweep.launcher=jobli"], "[launchers]'"),
            ([EPOCHS, "hydra.sweep.dir=sweeps/mine"], "hydra.sweep.dir=sweeps/mine has no effect here: leave it out;"),
            ([EPOCHS, "sweep.population=6"], "use sweep.parallel=18"),
            (["sweep.space={gamma: {uniform: [0.5, 1.1]}}"], "system.gamma=1.1 cannot be trained: "),
            ([EPOCHS, "sweep.trials=4,8"], "sweep.trials=4,8: a sweep has one value of"),
            (
                [EPOCHS, "sweep.objective=best", "arch.absolute_metric=false"],
                "sweep.objective=best needs arch.absolute_metric",
            ),
            ([EPOCHS, "arch.population.seeds=3"], "arch.population.seeds=3: the search sets this key"),
            ([GAMMA, "sweep.seed=4294967296"], "sweep.seed=4294967296 is out of range"),
            ([LEARNING_RATE, "sweep.trial=4"], "did you mean 'trials'"),
            ([LEARNING_RATE, "env=gymnax/cartpol"], "gymnax/cartpole"),
            ([EPOCHS, "hydra.launcher.n_jobs=2"], "hydra.launcher.n_jobs=2 has no effect without sweep.launcher"),
            ([EPOCHS, "hydra.job.chdir=true"], "hydra.job.chdir=true has no effect without sweep.launcher"),
            (FOLLOWING, FOLLOWS),
            ([*FOLLOWING, "sweep.launcher=basic", "hydra.launcher._target_=x.Y"], FOLLOWS),
            ([EPOCHS, "sweep.launcher=ray"], "[ray]'"),
            (["sweep.space={epochs: {int: [0, 1]}}"], "system.epochs=0 cannot be trained: "),
            (["sweep.space={arch.seed: {int: [1, 9]}}"], "a seed is not optimised: use sweep.seeds"),
            (
                [GAMMA, "arch.seed=4000000000"],
                "leaves no room for the further seeds of a search: use at most 2147483648",
            ),
            (["sweep.space={arch.population.seeds: {choice: [1, 4]}}"], "population.seeds: the search sets this key"),
            # Known once the environment is built: the directory is there by then.
            ([GAMMA, "system=q_learning/ff_dqn", "env=gymnax/pendulum"], "bounded continuous actions"),
            # 16 steps × 4 environments.
            (["sweep.space={num_minibatches: {choice: [4, 7]}}", "sweep.shapes=2"], "num_minibatches=7"),
        ],
    ),
)
def test_sweeps_that_cannot_run_are_refused(tmp_path, monkeypatch, refused, given, message):
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    assert message in refused("sweep", *["sweep.trials=4"] * ("sweep.trials=" not in " ".join(given)), *given)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_second_process_is_refused_and_leaves_the_sweep(tmp_path):
    sweep = Sweep.__new__(Sweep)
    sweep.directory = tmp_path
    for name in (STUDY, SETTINGS):
        (tmp_path / name).touch()
    with filelock.FileLock(tmp_path / ".lock"), pytest.raises(ConfigError, match="is in use: another process sweeps"):
        sweep.run()
    assert (tmp_path / STUDY).exists()


@pytest.mark.slow
def test_a_launcher_has_options_and_a_space_in_tuples_is_resumed(tmp_path, monkeypatch):
    found = []
    monkeypatch.setattr(Sweep, "run", lambda self: found.append(self))
    space = {"actor_lr": {"log_uniform": (1e-4, 1e-2)}}
    for jobs in (1, 2):
        options = {"trials": 4, "launcher": "joblib", "dir": str(tmp_path / "sweep")}
        stoix_like.sweep("ppo/ff_ppo", [f"hydra.launcher.n_jobs={jobs}"], space, **options)
    assert [one.overrides for one in found] == [["system=ppo/ff_ppo"]] * 2
    assert "hydra.launcher.n_jobs=2" in found[1].runner.overrides


def test_drawing_takes_little_of_the_time(tmp_path, monkeypatch):
    """A batch takes 100 s and a picture 10 s: there is one every 500 s, and one at the end."""
    seconds, drawn, train = [0.0], [], killed_sweeps.FakeRunner.train

    def write(*args, draws=True):
        drawn.append(draws)
        seconds[0] += 10.0 * draws

    def take(*args):
        seconds[0] += 100.0
        train(*args)

    module = sys.modules[Sweep.__module__]
    monkeypatch.setattr(module, "write_results", write)
    monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    monkeypatch.setattr(killed_sweeps.FakeRunner, "train", take)
    killed_sweeps.live(tmp_path / "sweep", "random", trials=7, parallel=1, fresh_seeds=0)
    assert drawn == [True, False, False, False, False, True, False, True]


@pytest.mark.slow
def test_every_trial_has_seeds_of_its_own(tmp_path, monkeypatch):
    """Whatever the size of its population: settings may be drawn again."""
    seeds, train = [], killed_sweeps.FakeRunner.train

    def record(runner, jobs, finished, starting=None):
        for job in jobs:
            given = dict(override.removeprefix("+").split("=", 1) for override in job.overrides)
            members = len(yaml.safe_load(given["arch.population.hyperparams"])["gamma"]) * 2
            seeds.extend(range(int(given["arch.seed"]), int(given["arch.seed"]) + members))
        train(runner, jobs, finished)

    monkeypatch.setattr(killed_sweeps.FakeRunner, "train", record)
    for trials, parallel in ((8, 4), (14, 6)):
        killed_sweeps.live(tmp_path / "sweep", "random", trials, parallel=parallel, fresh_seeds=0)
    assert len(seeds) == len(set(seeds)) == 2 * 14


@pytest.mark.slow
def test_fresh_seeds_that_could_not_train_are_refused_before_the_search(tmp_path):
    arguments = ["system=ppo/ff_ppo", *RUN, "sweep.trials=2", "sweep.parallel=2", f"sweep.dir={tmp_path / 'sweep'}"]
    arguments += ["sweep.space={gamma: {uniform: [0.9, 1.0]}}", "arch.total_num_envs=4096", "arch.total_timesteps=1e6"]
    with pytest.raises(ConfigError, match=r"sweep.fresh_seeds=100000 is more than train as one population: use less"):
        from_command_line([*arguments, "sweep.fresh_seeds=100000"])
    assert list((tmp_path / "sweep").iterdir()) == []


@pytest.mark.slow
def test_the_best_trial_is_confirmed_once(tmp_path, monkeypatch):
    trained = []
    train = killed_sweeps.FakeRunner.train

    def record(runner, jobs, finished, starting=None):
        jobs = list(jobs)
        trained.extend(job.run for job in jobs if job.run.startswith("fresh"))
        train(runner, jobs, finished)

    monkeypatch.setattr(killed_sweeps.FakeRunner, "train", record)
    found = [
        killed_sweeps.live(tmp_path / "sweep", "random", trials, parallel=4, fresh_seeds=3) for trials in (1, 2, 8)
    ]
    assert [result.fresh_returns for result in found] == [[result.best_value] * 3 for result in found]
    # What is complete is read; another trial has another directory.
    assert found[1].best_value < found[2].best_value
    best = found[2].study.best_trial.number
    assert trained == ["fresh/00000-0-3/00"] * 2 + [f"fresh/{best:05d}-0-3/00"]
    # More seeds are others, beside those that are trained; fewer are the first of them.
    (tmp_path / f"sweep/fresh/{best:05d}-0-3/00").mkdir(parents=True)
    (tmp_path / f"sweep/fresh/{best:05d}-0-3/00/metrics.jsonl").touch()
    (tmp_path / f"sweep/fresh/{best:05d}-3-64").mkdir()  # too many, and not begun
    killed_sweeps.live(tmp_path / "sweep", "random", 8, parallel=4, fresh_seeds=5)
    killed_sweeps.live(tmp_path / "sweep", "random", 8, parallel=4, fresh_seeds=2)
    assert trained[3:] == [f"fresh/{best:05d}-{part}/00" for part in ("0-3", "3-5", "0-3")]


@pytest.mark.slow
def test_a_sweep_without_its_study_draws_the_same_trials(tmp_path):
    """What a power failure damages is deleted, and the sweep continued."""
    directory = tmp_path / "sweep"
    killed_sweeps.live(directory, "tpe", trials=18, parallel=6)
    expected = killed_sweeps.table(directory)
    (directory / STUDY).unlink()
    killed_sweeps.live(directory, "tpe", trials=18, parallel=6)
    assert killed_sweeps.table(directory) == expected


@pytest.mark.slow
def test_trials_that_differ_in_floats_train_as_one_population(tmp_path):
    result = stoix_like.sweep("ppo/ff_ppo", RUN, SPACE, trials=6, parallel=6, seeds=2, dir=str(tmp_path / "sweep"))
    rows = killed_sweeps.trials_table(tmp_path / "sweep")
    assert [row["state"] for row in rows] == ["complete"] * 6
    assert len({row["run"] for row in rows}) == len({row["system.epochs"] for row in rows}) <= 2
    for row in rows:
        summary = recorded_runs.read_run(tmp_path / "sweep" / row["run"]).summary
        own = summary["population/members"][2 * int(row["place"]) : 2 * int(row["place"]) + 2]
        assert {member["actor_lr"] for member in own} == {float(row["system.actor_lr"])}
        assert float(row["value"]) == sum(member["eval/episode_return_mean"] for member in own) / 2
    assert (tmp_path / "sweep/trials.png").read_bytes().startswith(b"\x89PNG")
    # The best configuration is an experiment.
    config = compose_config(["+experiment=best"], [tmp_path / "sweep/configs"])
    assert config.system.actor_lr == result.best_params["system.actor_lr"]
    assert (config.env.env_name, config.arch.total_timesteps) == ("probe", 128)
    # It is trained again, on seeds that no trial had.
    (fresh,) = recorded_runs.find_runs([tmp_path / "sweep/fresh"])
    members = recorded_runs.read_run(fresh).summary["population/members"]
    assert [member["seed"] - config.arch.seed for member in members] == [2_000_000 + place for place in range(5)]
    assert {member["actor_lr"] for member in members} == {config.system.actor_lr}
    assert result.fresh_returns == [member["eval/episode_return_mean"] for member in members]
    assert describe_fresh(result.fresh_returns) in (tmp_path / "sweep/configs/experiment/best.yaml").read_text()
    report.write([tmp_path / "sweep"], tmp_path / "report.html", animation=False)
    assert describe_fresh(result.fresh_returns) in (tmp_path / "report.html").read_text()
    # A sweep with the same directory continues, whatever of Hydra's its record has; another space is refused.
    settings = json.loads((tmp_path / "sweep/sweep.json").read_text())
    settings["overrides"].append("hydra.sweep.dir=elsewhere")
    (tmp_path / "sweep/sweep.json").write_text(json.dumps(settings))
    more = stoix_like.sweep("ppo/ff_ppo", RUN, SPACE, trials=7, seeds=2, dir=str(tmp_path / "sweep"))
    assert len(more.study.trials) == 7
    with pytest.raises(ConfigError, match="holds a sweep with another space"):
        stoix_like.sweep(
            "ppo/ff_ppo", RUN, {"gamma": {"uniform": [0.9, 1.0]}}, trials=8, seeds=2, dir=str(tmp_path / "sweep")
        )


@pytest.mark.slow
def test_a_sweep_without_any_return_says_so(tmp_path):
    space = {"actor_lr": {"choice": [1e38]}}
    with pytest.raises(TrainingError, match="none of the 2 trials in .* has a return"):
        stoix_like.sweep("ppo/ff_ppo", RUN, space, trials=2, parallel=2, dir=str(tmp_path / "sweep"))
    assert [row["state"] for row in killed_sweeps.trials_table(tmp_path / "sweep")] == ["fail"] * 2


@pytest.mark.slow
def test_a_killed_sweep_resumes(tmp_path):
    """A process is killed while a population trains; started again, it trains that population to its end."""
    long = [*RUN, "arch.total_timesteps=4096", "arch.num_evaluation=64"]
    command = [sys.executable, "-m", "stoix_like", "sweep", "system=ppo/ff_ppo", *long, "sweep.trials=3"]
    command += ["sweep.parallel=3", f"sweep.dir={tmp_path / 'sweep'}"]
    command += ["sweep.space={actor_lr: {uniform: [0.001, 0.01]}}"]
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) as process:
        checkpoints = tmp_path / "sweep/runs/00000/checkpoints"
        wait_until(lambda: any(checkpoints.glob("[0-9]*")), 300, process)
        process.send_signal(signal.SIGKILL)
    assert not (tmp_path / "sweep/trials.csv").exists()
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    rows = killed_sweeps.trials_table(tmp_path / "sweep")
    assert [(row["state"], row["run"]) for row in rows] == [("complete", "runs/00000")] * 3
    assert "+experiment=best" in finished.stdout


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_sweep_that_is_killed_at_random_moments_equals_an_uninterrupted_one(tmp_path, sampler):
    context, rng = killed_sweeps.forkserver(), random.Random(sampler)
    sizes = {"trials": 60, "parallel": 20}
    killed_sweeps.live(tmp_path / "whole", sampler, **sizes)
    expected, kills = killed_sweeps.table(tmp_path / "whole"), 0
    for number in itertools.count():
        directory = tmp_path / str(number)
        process = None
        while process is None or process.exitcode != 0:
            process = context.Process(target=killed_sweeps.live, args=(directory, sampler), kwargs=sizes)
            process.start()
            process.join(rng.uniform(0.0, 1.5) if kills < 20 else 120)
            if process.exitcode is None:
                process.kill()
                process.join()
                kills += 1
            else:
                assert process.exitcode == 0
        assert killed_sweeps.table(directory) == expected
        assert killed_sweeps.trials_table(directory) == killed_sweeps.trials_table(tmp_path / "whole")
        if kills >= 20:
            break


def test_paths_and_numbers_of_numpy_are_settings(tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["stoix_like.lab.tuning.sweep"], "run_sweep", lambda config, overrides: config)
    config = stoix_like.sweep("ppo/ff_ppo", space={"actor_lr": [1.0]}, trials=np.int64(4), dir=tmp_path)
    assert (config.trials, config.dir) == (4, str(tmp_path))


def test_yaml_files_of_a_directory_are_read(tmp_path):
    (tmp_path / "system").mkdir()
    (tmp_path / "system/mine.yaml").write_text("defaults: [/system/ppo/ff_ppo@_here_, _self_]\ngamma: 2.0\n")
    given = {"trials": 4, "dir": tmp_path / "sweep", "config_dir": tmp_path}
    with pytest.raises(ConfigError, match=r"system.gamma=2.0 is out of range"):
        stoix_like.sweep("mine", ["env=probe/policy"], {"actor_lr": {"uniform": [0.1, 0.2]}}, **given)
