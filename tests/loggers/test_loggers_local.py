import contextlib
import importlib.util
import json
import pathlib
import resource
import signal
import subprocess
import sys

import hydra
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.loggers import (
    LoggerConfig,
    MultiLogger,
    RunInfo,
    check_available,
    make_logger,
    plain,
    scalars,
    sending_loggers,
)
from stoix_like.loggers.console import ConsoleConfig
from stoix_like.loggers.jsonl import JsonlLogger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from stoix_like.loggers.wandb import WandbConfig
from stoix_like.schema import from_mapping

CONFIGS = pathlib.Path(__file__).parents[2] / "configs"


def run_info(run_dir):
    return RunInfo(run_dir, "ppo/ff_ppo", "gymnax/CartPole-v1", 3, 10, 1280, 2, {"arch": {"seed": 3}})


class Recorder:
    """Logger that records its calls, and raises an error in the method `fails`."""

    def __init__(self, name, fails=None, error=OSError):
        self.name, self.fails, self.error, self.calls = name, fails, error, []

    def _call(self, method):
        self.calls.append(method)
        if method == self.fails:
            raise self.error("no space left")

    def start(self, info):
        self._call("start")

    def log(self, record):
        self._call("log")

    def finish(self, summary):
        self._call("finish")

    def close(self):
        self._call("close")


def log_run(logger, run_dir):
    logger.start(run_info(run_dir))
    logger.log({"env_steps": 0})
    logger.log({"env_steps": 128})
    logger.finish({})
    logger.close()


def test_plain_returns_strict_json():
    value = {"a": float("nan"), "b": (1, float("-inf"), None), "c": {"d": np.float32(0.5)}, "e": np.arange(2), "f": "x"}
    assert plain(value) == {"a": None, "b": [1, None, None], "c": {"d": 0.5}, "e": [0, 1], "f": "x"}
    assert type(plain(np.int64(3))) is int
    json.dumps(plain(value), allow_nan=False)


def test_scalars_numbers_per_member_values():
    record = {"env_steps": 128, "eval/episode_return_mean": [1.0, None, 3.0], "train/loss": None, "note": "x"}
    assert scalars(record) == {"env_steps": 128, "eval/episode_return_mean/0": 1.0, "eval/episode_return_mean/2": 3.0}


def test_a_resumed_metrics_file_holds_the_history_and_flushes_new_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # Left by a killed process: a record after the checkpoint, and half of another one.
    path.write_text('{"env_steps": 0}\n{"env_steps": 64}\n{"env_st')
    logger = JsonlLogger(path)
    logger.start(run_info(tmp_path)._replace(history=({"env_steps": 0},)))
    logger.log({"env_steps": 128, "train/loss": float("inf"), "eval/episode_return_mean": None, "members": [1, 2.5]})
    lines = path.read_text().splitlines()  # before the file is closed
    assert [json.loads(line) for line in lines] == [
        {"env_steps": 0},
        {"env_steps": 128, "train/loss": None, "eval/episode_return_mean": None, "members": [1, 2.5]},
    ]
    assert '"env_steps": 128,' in lines[1]  # an int stays an int
    logger.finish({})
    logger.close()
    logger.close()


@pytest.mark.parametrize("method", ["start", "log", "finish", "close"])
def test_a_failing_logger_is_reported_once_and_dropped(tmp_path, capsys, method):
    good, bad = Recorder("good"), Recorder("bad", fails=method)
    log_run(MultiLogger([bad, good]), tmp_path)
    captured = capsys.readouterr()
    assert captured.err == "logger 'bad' failed; the run continues without it: OSError: no space left\n"
    assert captured.out == ""
    assert good.calls == ["start", "log", "log", "finish", "close"]
    # The dropped logger is closed to release its resources, and not called again.
    assert bad.calls[-2:] == [method, "close"]
    assert bad.calls.count(method) == (2 if method == "close" else 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_interrupts_are_not_caught(tmp_path, error):
    logger = MultiLogger([Recorder("interrupted", fails="log", error=error)])
    logger.start(run_info(tmp_path))
    with pytest.raises(error):
        logger.log({"env_steps": 0})


def test_close_works_without_start_and_twice(tmp_path, capsys):
    config = LoggerConfig(tensorboard=TensorBoardConfig(enabled=True), wandb=WandbConfig(enabled=True))
    logger = make_logger(config, tmp_path)
    logger.close()
    logger.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")


@contextlib.contextmanager
def full_disk(size):
    """Let files grow to `size` bytes only."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_delays_records_and_leaves_no_torn_line(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    logger = make_logger(LoggerConfig(), tmp_path)
    logger.start(run_info(tmp_path))
    logger.log({"env_steps": 0})
    capsys.readouterr()
    with full_disk(path.stat().st_size + 5):
        logger.log({"env_steps": 128})
        logger.log({"env_steps": 256})
        assert path.read_text() == '{"env_steps": 0}\n'
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"cannot write {path}: ")
    assert captured.out.count("\n") == 2  # the console continues
    logger.log({"env_steps": 384})
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [0, 128, 256, 384]
    with full_disk(path.stat().st_size):
        logger.log({"env_steps": 512})
        logger.close()
    assert capsys.readouterr().err.splitlines()[-1] == f"{path} lacks the last 1 record(s)"
    assert path.read_text().count("\n") == 4


def test_a_metrics_file_that_could_not_be_opened_is_written_with_the_next_record(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 0}\n{"env_st')
    logger = JsonlLogger(path)
    with full_disk(3):
        logger.start(run_info(tmp_path)._replace(history=({"env_steps": 0},)))
        logger.log({"env_steps": 128})
    logger.log({"env_steps": 256})
    logger.close()
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [0, 128, 256]
    assert capsys.readouterr().err.count("\n") == 1


def test_loggers_follow_no_links_out_of_the_run_directory(tmp_path, capsys):
    victim, run_dir = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    run_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("metrics.jsonl", "metrics.jsonl.tmp"):
        (run_dir / name).symlink_to(victim)
    (run_dir / "tensorboard").symlink_to(tmp_path / "elsewhere")
    (run_dir / "wandb").symlink_to(tmp_path / "elsewhere")
    config = LoggerConfig(
        TensorBoardConfig(enabled=True), WandbConfig(enabled=True, mode="offline"), ConsoleConfig(enabled=False)
    )
    logger = make_logger(config, run_dir)
    logger.start(run_info(run_dir)._replace(history=({"env_steps": 0},)))
    logger.close()
    assert victim.read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (run_dir / "metrics.jsonl").read_text() == '{"env_steps": 0}\n'
    error = capsys.readouterr().err
    assert error.count("is a link, not a directory") == 2


@pytest.mark.parametrize("place", ["wandb", "sub/wandb"])
def test_settings_of_wandb_in_a_run_directory_are_refused(tmp_path, monkeypatch, capsys, place):
    directory = tmp_path / place
    directory.mkdir(parents=True)
    (directory / "settings").write_text("[default]\nbase_url = https://evil.example\n")
    monkeypatch.chdir(directory.parent)
    logger = MultiLogger([WandbConfig(enabled=True).make(tmp_path)])
    logger.start(run_info(tmp_path))
    assert "settings could send your API key elsewhere: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, []),
        ({"logger.wandb.enabled": False, "logger.wandb.mode": "online"}, []),
        ({"logger.wandb.enabled": True, "logger.wandb.tags.0": "a", "logger.console.enabled": True}, ["wandb"]),
        ({"logger.wandb.enabled": True, "logger.wandb.mode": "offline"}, []),
    ],
)
def test_loggers_that_send_data_are_found(values, expected):
    assert sending_loggers(values) == expected


@pytest.mark.parametrize(
    ("config", "package"),
    [
        (LoggerConfig(tensorboard=TensorBoardConfig(enabled=True)), "tensorboardX"),
        (LoggerConfig(wandb=WandbConfig(enabled=True)), "wandb"),
    ],
)
def test_a_missing_package_raises_before_anything_is_written(tmp_path, monkeypatch, config, package):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install 'stoix_like\[loggers\]'"):
        make_logger(config, tmp_path)
    assert list(tmp_path.iterdir()) == []
    check_available(LoggerConfig())


@pytest.mark.parametrize(
    ("variables", "mode", "refused"),
    [
        ({}, "online", True),
        ({}, "offline", False),
        ({"WANDB_MODE": "offline"}, "online", False),
        ({"WANDB_API_KEY": "0" * 40}, "online", False),
        ({"NETRC": "netrc"}, "online", False),
        ({"NETRC": "netrc", "WANDB_BASE_URL": "https://wandb.elsewhere.org"}, "online", True),
    ],
)
def test_wandb_without_credentials_is_refused_before_training(tmp_path, monkeypatch, variables, mode, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (
        "WANDB_MODE",
        "WANDB_API_KEY",
        "WANDB_IDENTITY_TOKEN_FILE",
        "WANDB_BASE_URL",
        "WANDB_CONFIG_DIR",
        "NETRC",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    config = LoggerConfig(wandb=WandbConfig(enabled=True, mode=mode))
    if refused:
        with pytest.raises(
            ConfigError, match="logger.wandb.mode=online needs the credentials of W&B: run `wandb login`"
        ):
            check_available(config)
    else:
        check_available(config)


def test_a_directory_named_wandb_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MissingExtraError):
        check_available(LoggerConfig(wandb=WandbConfig(enabled=True)))


def test_importing_loggers_imports_neither_jax_nor_optional_packages():
    program = (
        "import sys; from stoix_like.loggers import *; check_available(LoggerConfig()); "
        "print(*{'jax', 'wandb', 'tensorboardX'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def compose(*overrides):
    with hydra.initialize_config_dir(str(CONFIGS), version_base=None):
        composed = hydra.compose(config_name=None, overrides=list(overrides))
    return from_mapping(LoggerConfig, OmegaConf.to_container(composed.logger), "logger")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("default", LoggerConfig()),
        ("tensorboard", LoggerConfig(tensorboard=TensorBoardConfig(enabled=True))),
        ("wandb", LoggerConfig(wandb=WandbConfig(enabled=True))),
        ("silent", LoggerConfig(console=ConsoleConfig(enabled=False))),
    ],
)
def test_each_yaml_choice_changes_only_its_own_keys(choice, expected):
    assert compose(f"+logger={choice}") == expected


def test_keys_of_a_choice_can_be_overridden():
    config = compose("+logger=silent", "logger.wandb.enabled=true", "logger.wandb.tags=[a,b]", "logger.wandb.group=g")
    assert config.wandb == WandbConfig(enabled=True, tags=("a", "b"), group="g")
    with pytest.raises(ValueError, match=r"logger\.wandb\.mode=ofline is not known: did you mean 'offline'"):
        compose("+logger=default", "logger.wandb.mode=ofline")
