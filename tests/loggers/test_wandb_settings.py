import contextlib
import sys

import pytest

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.loggers import LoggerConfig, MultiLogger, check_available
from stoix_like.loggers.wandb import WandbConfig
from support.logged import run_info

KEYS = ("WANDB_MODE", "WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE")


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
    ("variables", "mode", "refused"),
    [
        ({}, "online", True),
        ({}, "offline", False),
        ({"WANDB_MODE": "offline"}, "online", False),
        ({"WANDB_API_KEY": "0" * 40}, "online", False),
        ({"WANDB_CONFIG_DIR": "."}, "online", False),
        ({"NETRC": "netrc"}, "online", False),
        ({"NETRC": "netrc", "WANDB_BASE_URL": "https://wandb.elsewhere.org"}, "online", True),
    ],
)
def test_wandb_without_credentials_is_refused_before_training(tmp_path, monkeypatch, variables, mode, refused):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in (*KEYS, "WANDB_BASE_URL", "WANDB_CONFIG_DIR", "NETRC"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "settings").write_text("[default]\napi_key = " + "0" * 40)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "0" * 40)
    config = LoggerConfig(wandb=WandbConfig(enabled=True, mode=mode))
    words = "logger.wandb.mode=online needs the credentials of W&B: run `wandb login`"
    with pytest.raises(ConfigError, match=words) if refused else contextlib.nullcontext():
        check_available(config)


@pytest.mark.usefixtures("homeless")
def test_wandb_without_a_home_directory_may_have_credentials(monkeypatch):
    for name in KEYS:
        monkeypatch.delenv(name, raising=False)
    check_available(LoggerConfig(wandb=WandbConfig(enabled=True)))


def test_a_directory_named_wandb_is_not_the_package(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    with pytest.raises(MissingExtraError):
        check_available(LoggerConfig(wandb=WandbConfig(enabled=True)))
