import contextlib
import os
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from stoix_like.composition import group_choices
from stoix_like.config import flatten, parse_config
from stoix_like.errors import ConfigError
from stoix_like.lab.tuning.tune import _PROGRESS
from stoix_like.policies.load import open_run
from stoix_like.run import experiment
from stoix_like.run.prepare import prepare
from stoix_like.storage import config_file, trust
from support import toys
from support.composed import compose_config
from support.recorded import write_config


@pytest.fixture
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state/stoix_like/trusted"


def configuration(directory, *overrides):
    directory.mkdir()
    composed = compose_config([*toys.overrides(rollout_length=4), "env=probe/observed_value", *overrides])
    write_config(directory, parse_config(composed).resolved)
    return flatten(config_file.plain_config(directory))


def assert_refused(directory, message="--trust", overrides=()):
    with pytest.raises(ConfigError, match=message):
        config_file.read_config(directory, overrides)


def assert_untrusted(pairs, message):
    with pytest.raises(ConfigError, match=message):
        trust.check_trusted(pairs, "config.yaml")


def test_a_recorded_configuration_is_loaded_and_any_change_of_it_is_refused(tmp_path, state):
    # One of this package alone is not recorded.
    trust.record_trusted(flatten(parse_config(compose_config([])).resolved))
    assert not state.exists()
    pairs = configuration(tmp_path / "run")
    assert_refused(tmp_path / "run", "system.module=support.toys is imported")
    trust.record_trusted(pairs)
    config_file.read_config(tmp_path / "run")
    configuration(tmp_path / "other", "arch.seed=7")
    assert_refused(tmp_path / "other")
    # The run directory holds nothing that another user could forge.
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["config.yaml"]
    assert len(list(state.iterdir())) == 1
    assert state.stat().st_mode & 0o077 == 0


def test_a_run_that_sends_data_needs_a_word_unless_this_user_trained_it(tmp_path, state):
    directory, other = tmp_path / "run", tmp_path / "other"
    for path, override in ((directory, "logger.wandb.enabled=true"), (other, "checkpoint.mirror=s3://bucket/run")):
        path.mkdir()
        write_config(path, parse_config(compose_config(["system=ppo/ff_ppo", override])).resolved)
    # A dictionary is merged into the group, and leaves what it does not name.
    for overrides in ([], ["checkpoint={keep: 3}"]):
        assert_refused(other, "checkpoint.mirror=s3://bucket/run copies the run elsewhere", overrides)
    config_file.read_config(other, ["checkpoint.mirror=null"])
    config_file.read_config(other, ["checkpoint={mirror: null}"])
    for key in ("arch.init_from", "arch.resume_from", "system.teacher"):
        fetching = {**parse_config(compose_config(["system=ppo/ff_ppo"])).resolved}
        group, name = key.split(".")
        fetching[group] = {**fetching[group], name: "hf://owner/teacher"}
        write_config(other, fetching)
        assert_refused(other, f"{key}=hf://owner/teacher contacts another machine .* --trust")
        config_file.read_config(other, [f"{key}=runs/teacher"])
        config_file.read_config(other, ["+checkpoint.mirror=hf://owner/teacher"])
        config_file.read_config(other, learns=False)
    for overrides in ([], ["logger.wandb.project=x"]):
        assert_refused(directory, "config.yaml: logger.wandb.enabled=true sends data .* --trust", overrides)
    # The word of the command line, which evaluation gives, too.
    for word in ("logger=silent", "logger=wandb", "logger.wandb.enabled=true", "logger.wandb.mode=offline"):
        config_file.read_config(directory, [word])
    trust.record_trusted(flatten(config_file.plain_config(directory)))
    assert len(list(state.iterdir())) == 1
    config_file.read_config(directory)


def test_a_run_that_was_loaded_with_the_flag_needs_none_later_and_sends_nothing(tmp_path, state):
    directory = tmp_path / "run"
    pairs = configuration(directory, "logger.wandb.enabled=true")
    open_run(directory, trust=True)
    assert len(list(state.iterdir())) == 1
    config_file.read_config(directory, ["logger.wandb.enabled=false"])
    assert_refused(directory, "logger.wandb.enabled=true sends data")
    trust.record_trusted(pairs)
    open_run(directory, trust=True)
    config_file.read_config(directory)


def test_loading_records_no_code_that_is_missing_and_lets_no_logger_send(state):
    trust.record_trusted([("env._target_", "ghost_module.Env")], sends=False)
    assert not state.exists()
    logger = [("logger.mine._target_", "support.toys.Logger")]
    trust.record_trusted(logger, sends=False)
    assert_untrusted(logger, r"logger.mine._target_=.* may send data .*\(trust=True\)$")
    trust.check_trusted(logger, "config.yaml", ["logger=silent"])


def test_a_record_is_private_whatever_the_umask(tmp_path, state):
    umask = os.umask(0)
    try:
        trust.record_trusted(configuration(tmp_path / "run"))
    finally:
        os.umask(umask)
    (record,) = state.iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    config_file.read_config(tmp_path / "run")


@pytest.mark.parametrize("what", ["record", "directory"])
def test_a_record_that_others_may_write_is_ignored(tmp_path, state, what):
    trust.record_trusted(configuration(tmp_path / "run"))
    (record,) = state.iterdir()
    (record if what == "record" else state).chmod(0o777)
    assert_refused(tmp_path / "run")


def test_without_a_state_directory_nothing_is_recorded(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", "/proc/nothing")
    trust.record_trusted(configuration(tmp_path / "run"))
    assert_refused(tmp_path / "run")


def test_modules_of_environments_and_functions_of_opponents_are_refused_unless_recorded(state):
    opponent = [("env.kwargs.opponent", "support.toys.build")]
    for key, value in (
        ("env.scenario.name", "my_package:MyEnv-v0"),
        *opponent,
        ("env.eval_opponent", "support.toys.build"),
        ("env.eval_opponent", "stoix_like.envs.symmetries.ant"),
        ("system.symmetry", "support.toys.build"),
    ):
        assert_untrusted([(key, value)], f"{key}={value} .*is imported.*--trust")
    trust.check_trusted([("env.scenario.name", "ALE/Pong-v5"), ("system.symmetry", None)], "config.yaml")
    trust.check_trusted([("system.symmetry", "stoix_like.envs.symmetries.ant")], "config.yaml")
    for name in ("random", "self"):
        trust.check_trusted([("env.kwargs.opponent", name), ("env.eval_opponent", "random")], "config.yaml")
    trust.record_trusted(opponent)
    trust.check_trusted(opponent, "config.yaml")
    assert len(list(state.iterdir())) == 1


POLICIES = [("system.module", "my_package.policies")]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module in a package of the user's own, which a configuration names; nothing has imported it."""
    directory = tmp_path / "code"
    (directory / "my_package").mkdir(parents=True)
    for name in ("__init__.py", "policies.py"):
        (directory / "my_package" / name).write_text(f"# {name}\n")
    monkeypatch.syspath_prepend(directory)
    trust.record_trusted(POLICIES)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(directory)])
    return directory / "my_package/policies.py"


def test_modules_that_a_record_names_are_imported_while_they_are_what_they_were(state, monkeypatch, module):
    trust.check_trusted(POLICIES, "config.yaml")
    assert sys.path[-1] == str(module.parents[1])
    assert "my_package" not in sys.modules
    for changed in (module, module.with_name("__init__.py")):
        before = changed.read_text()
        changed.write_text("raise SystemExit('executed')")
        assert_untrusted(POLICIES, r"the module my_package(.policies)? has changed .*--trust")
        changed.write_text(before)
    trust.check_trusted(POLICIES, "config.yaml")


@pytest.mark.parametrize("with_init", [False, True])
def test_packages_of_ones_own_need_no_init(tmp_path, state, monkeypatch, with_init):
    """Of `outer.inner.grid`, at most the outer one has a file."""
    (tmp_path / "outer/inner").mkdir(parents=True)
    (tmp_path / "outer/inner/grid.py").write_text("class Grid: pass\n")
    if with_init:
        (tmp_path / "outer/__init__.py").touch()
    named = [("env._target_", "outer.inner.grid.Grid")]
    monkeypatch.syspath_prepend(tmp_path)
    trust.record_trusted(named)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry != str(tmp_path)])
    trust.check_trusted(named, "config.yaml")
    assert sys.path[-1] == str(tmp_path)
    (tmp_path / "outer/inner/__init__.py").touch()
    assert_untrusted(named, r"the package outer.inner has changed .*--trust")
    (tmp_path / "outer/inner/__init__.py").unlink()
    (tmp_path / "outer/inner/grid.py").write_text("raise SystemExit('executed')")
    assert_untrusted(named, r"the module outer.inner.grid has changed .*--trust")


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_modules_that_others_may_write_are_refused(state, module, depth):
    place = [module, *module.parents][depth]
    place.chmod(place.stat().st_mode | 0o002)
    assert_untrusted(POLICIES, rf"other users may write to {place}: .*--trust")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="needs the superuser")
@pytest.mark.parametrize(("group", "refused"), [(1000, False), (1001, True)])
def test_the_superuser_accepts_the_directory_of_a_user_of_the_host(state, module, group, refused):
    for place in (module, module.with_name("__init__.py"), *module.parents[:2]):
        os.chown(place, 1000, group)
        place.chmod(0o775)
    with pytest.raises(ConfigError, match="other users may write") if refused else contextlib.nullcontext():
        trust.check_trusted(POLICIES, "config.yaml")


@pytest.mark.slow
def test_a_trained_run_is_resumed_without_a_flag(tmp_path, state):
    small = ["arch.total_num_envs=4", "arch.total_timesteps=32", "arch.num_evaluation=1", "logger=silent"]
    composed = compose_config([*toys.overrides(rollout_length=4), "env=probe/observed_value", *small])
    experiment.run(prepare(parse_config(composed), tmp_path / "run"))
    assert experiment.resume(tmp_path / "run", ["arch.total_timesteps=64"]).summary["updates"] == 4
    # The larger budget changed the configuration, which was recorded again.
    assert len(list(state.iterdir())) == 2
    experiment.resume(tmp_path / "run")


@pytest.mark.slow
def test_recorded_code_is_imported_from_where_it_was_in_training_not_from_the_working_directory(tmp_path, state):
    pairs = configuration(tmp_path / "run")
    trust.record_trusted(pairs)
    (tmp_path / "support").mkdir()
    for name in ("__init__.py", "toys.py"):
        (tmp_path / "support" / name).write_text("raise SystemExit('executed')")
    code = (
        "import sys; from pathlib import Path; from stoix_like.storage.config_file import read_config;"
        "read_config(Path('run')); from support import toys; print(toys.__file__)"
    )
    # `-P` leaves the working directory out of the import path, as for an installed program.
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, env=os.environ
    )
    assert done.stdout.strip() == toys.__file__, done.stderr


HEAD = "network.actor_network.action_head._target_"


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (HEAD, "os.system", "is executed when the run is loaded"),
        # Imported there, but defined elsewhere.
        (HEAD, "stoix_like.networks.from_config.modules.SimpleNamespace", "is executed"),
        # Defined there, but these would import or execute their arguments.
        (HEAD, "stoix_like.networks.from_config.modules._locate", "is executed"),
        (HEAD, "flax.linen.kw_only_dataclasses.dataclass", "is executed"),
        (HEAD, ["evil.x"], "is executed"),
        ("network.evil", {"a": [{"_target_": "evil.x"}]}, "is executed"),
        ("logger.evil._target_", "evil.x", "is executed"),
        # It would import its argument.
        ("callbacks", [{"_target_": "stoix_like.callbacks.AddMetrics", "function": "os.system"}], "is executed"),
        ("logger.evil._target_", "stoix_like.callbacks.AddMetrics", "is executed"),
        ("network.evil._target_", "stoix_like.callbacks.AddMetrics", "is executed"),
        # Each group may build its own parts alone.
        ("network.evil._target_", "stoix_like.callbacks.StopAtReturn", "is executed"),
        ("system.evil._target_", "flax.linen.Dense", "is executed"),
        ("env.wrappers", [{"_target_": "flax.linen.Dense"}], "is executed"),
        ("system.module", ["evil"], "is imported"),
        ("system.module", "stoix_like.systems.ppo._evil", "is imported"),
        ("system.module", "support.toys", "is imported when the run is loaded"),
        ("logger.wandb.project", "${oc.env:HOME}", "is interpolated when the run is loaded"),
    ],
)
def test_a_run_that_names_foreign_code_is_refused(tmp_path, key, value, message):
    config = OmegaConf.create(parse_config(compose_config([])).resolved)
    OmegaConf.update(config, key, value)
    write_config(tmp_path, config)
    with pytest.raises(ConfigError, match=message) as error:
        config_file.read_config(tmp_path)
    assert key in str(error.value)
    assert "--trust" in str(error.value)
    config_file.read_config(tmp_path, trusted=True)


@pytest.mark.optimized
def test_the_command_line_refuses_foreign_code_before_importing_it(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil.py").write_text("open('executed', 'w')")
    config = OmegaConf.create(parse_config(compose_config([])).resolved)
    config.network.actor_network.action_head._target_ = "evil.Head"
    write_config(tmp_path, config)
    for command in ("evaluate", "resume"):
        assert "action_head._target_=evil.Head is executed" in refused(command, ".")
    assert not (tmp_path / "executed").exists()


@pytest.mark.optimized
@pytest.mark.slow
def test_all_network_configurations_of_this_package_are_trusted():
    for network in group_choices("network"):
        values = parse_config(compose_config([f"network={network}"])).resolved["network"]
        trust.check_trusted(flatten({"network": values}), "here")


def test_a_run_of_tune_from_elsewhere_needs_no_trust(state):
    trust.check_trusted([("callbacks.0._target_", _PROGRESS), ("callbacks.0.stage", "fresh")], "config.yaml")


def test_functions_of_callbacks_are_recorded():
    pairs = [("callbacks.0._target_", "stoix_like.callbacks.AddMetrics"), ("callbacks.0.function", "my_metrics.more.f")]
    assert {"my_metrics", "my_metrics.more"} <= set(trust._modules(pairs))
