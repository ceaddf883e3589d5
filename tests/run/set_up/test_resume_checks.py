import importlib.metadata
import shutil

import pytest

import stoix_like
from stoix_like import config, versions
from stoix_like.errors import ConfigError
from stoix_like.policies.load import load_shared, open_run
from stoix_like.run import experiment
from stoix_like.run.set_up.resume_checks import check_same_config, check_same_sweep, other_conditions
from support import toys
from support.set_ups import config_of, setup_of
from support.toy_runs import train_toy

pytestmark = pytest.mark.optimized


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    return train_toy(tmp_path_factory)


@pytest.mark.slow
def test_a_run_resumed_with_another_version_says_so(tmp_path, toy_run, monkeypatch, capsys):
    run_dir = shutil.copytree(toy_run, tmp_path / "run")
    present = versions.versions()
    monkeypatch.setattr(config, "versions", lambda others: {**present, "jax": "99.0"})
    stoix_like.resume(run_dir, ["arch.total_timesteps=480"], trust=True)
    out = " ".join(capsys.readouterr().out.split())
    assert f"resumed with other versions (jax {present['jax']} → 99.0): results may differ" in out


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["arch.seed=7", "system.gain=2.0"], r"arch.seed was 42 and is 7; system.gain was 1.0 and is 2.0"),
        (["arch.total_timesteps=100"], "arch.total_timesteps=100 is less than the .*already trained: use at least 320"),
        (["arch.sed=7"], "unknown key 'arch.sed': did you mean 'arch.seed'"),
        (["arch.seed=1,2"], "only key=value"),
        (["arch.update_batch_size=2"], "the run has 2 shard.* but its checkpoint has 1: set arch.num_devices"),
    ],
)
def test_resuming_with_another_configuration_is_refused(toy_run, overrides, message):
    overrides = [f"+{override}" if "gain" in override else override for override in overrides]
    with pytest.raises(ConfigError, match=message):
        experiment.resume(toy_run, overrides, trust=True)


@pytest.mark.slow
def test_best_parameters_are_given_up_but_not_begun_on_the_way(tmp_path, toy_run):
    without = ["checkpoint.keep_best=false", "arch.absolute_metric=false"]
    run_dir = shutil.copytree(toy_run, tmp_path / "run")
    experiment.resume(run_dir, [*without, "arch.total_timesteps=400"], trust=True)
    with pytest.raises(ConfigError, match="holds no best parameters"):
        load_shared(open_run(run_dir, trust=True), "best")
    with pytest.raises(ConfigError, match="checkpoint.keep_best=true: the run has kept no best parameters so far"):
        experiment.resume(run_dir, ["checkpoint.keep_best=true", "arch.total_timesteps=480"], trust=True)


def test_what_a_checkpoint_was_written_with_is_compared():
    setup = setup_of(*toys.overrides())
    present = setup.config.versions
    assert other_conditions(setup, {"versions": present, "devices": ["cpu:cpu"]}) == []
    # Written before devices, and the packages of environments, were recorded.
    assert other_conditions(setup, {}) == other_conditions(setup, {"versions": {"jax": present["jax"]}}) == []
    later = "results may differ from those of an uninterrupted run"
    written = {"versions": {**present, "pgx": "2.5"}, "devices": ["gpu:H100", "gpu:H100"]}
    assert other_conditions(setup, written) == [
        f"resumed with other versions (pgx 2.5 → None): {later}",
        f"resumed on other devices (gpu:H100 → cpu:cpu): {later}",
    ]


def test_the_packages_of_a_suite_are_among_the_versions():
    pytest.importorskip("gymnasium")
    run = config_of("env=gymnasium/pendulum")
    assert run.versions["gymnasium"] == importlib.metadata.version("gymnasium")
    assert "pgx" not in run.versions


def test_keys_that_the_run_did_not_have_keep_their_defaults_and_numbers_may_be_strings():
    setup = setup_of(*toys.overrides(), "env.reward_scale=0.5")
    config = {**setup.config.resolved, "env": {**setup.config.resolved["env"]}}
    del config["env"]["eval_opponent"]
    population = {**config["arch"]["population"], "pbt": {"every_evals": None}}
    check_same_config(setup, {**config, "arch": {**config["arch"], "population": population}})
    changed = setup._replace(config=setup.config._replace(resolved={**config, "env": {"frame_stack": 2}}))
    with pytest.raises(ConfigError, match="env.frame_stack was 1 and is 2"):
        check_same_config(changed, config)
    check_same_config(setup, {**config, "env": {**config["env"], "reward_scale": "5e-1"}})
    with pytest.raises(ConfigError, match="env.reward_scale was 0.6 and is 0.5"):
        check_same_config(setup, {**config, "env": {**config["env"], "reward_scale": "0.6"}})


def test_a_sweep_directory_is_continued_by_the_same_overrides_alone(tmp_path):
    def write(*overrides):
        (tmp_path / "multirun.yaml").write_text(f"hydra: {{overrides: {{task: {list(overrides)}}}}}")

    write("arch.seed=0,1", "arch.total_timesteps=100", "logger=silent")
    check_same_sweep(tmp_path, ["arch.seed=0,1", "arch.total_timesteps=200"])
    with pytest.raises(ConfigError, match=r"holds the multirun of arch\.seed=0,1: continue it with the same"):
        check_same_sweep(tmp_path, ["arch.seed=0,1,2", "arch.total_timesteps=100"])
    # A swept key numbers the jobs, whichever it is: 1-seed1 (of 100 steps) would become that of 200.
    same = ["arch.seed=0,1", "env.time_limit=${hydra:job.num}"]
    write("arch.total_timesteps=100,200", *same)
    check_same_sweep(tmp_path, ["arch.total_timesteps=100,200", *same])
    for budget in ("arch.total_timesteps=200", "arch.total_timesteps=100,300"):
        with pytest.raises(ConfigError, match=r"holds the multirun of arch\.total_timesteps=100,200 arch\.seed=0,1"):
            check_same_sweep(tmp_path, [budget, *same])
    (tmp_path / "multirun.yaml").write_text("[")
    with pytest.raises(ConfigError, match="multirun.yaml cannot be read"):
        check_same_sweep(tmp_path, ["arch.seed=0,1"])
