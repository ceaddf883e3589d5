import importlib.util
import subprocess
import sys

import pytest

from stoix_like.errors import MissingExtraError
from stoix_like.loggers import LoggerConfig, check_available
from stoix_like.loggers.console import ConsoleConfig
from stoix_like.loggers.tensorboard import TensorBoardConfig
from stoix_like.loggers.wandb import WandbConfig
from support.set_ups import config_of


@pytest.mark.parametrize(
    ("config", "package"),
    [
        (LoggerConfig(tensorboard=TensorBoardConfig(enabled=True)), "tensorboardX"),
        (LoggerConfig(wandb=WandbConfig(enabled=True)), "wandb"),
    ],
)
def test_a_missing_package_is_named(monkeypatch, config, package):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == package else find_spec(name))
    with pytest.raises(MissingExtraError, match=rf"'{package}': pip install .*\[loggers\]'"):
        check_available(config)
    check_available(LoggerConfig())


def test_importing_loggers_imports_neither_jax_nor_optional_packages():
    program = (
        "import sys; from stoix_like.loggers import *; check_available(LoggerConfig()); "
        "print(*{'jax', 'wandb', 'tensorboardX'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def compose(*overrides):
    return config_of(*overrides).logger


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
    assert compose(f"logger={choice}") == expected


def test_keys_of_a_choice_can_be_overridden():
    config = compose("logger=silent", "logger.wandb.enabled=true", "logger.wandb.tags=[a,b]", "logger.wandb.group=g")
    assert config.wandb == WandbConfig(enabled=True, tags=("a", "b"), group="g")
    with pytest.raises(ValueError, match=r"logger\.wandb\.mode=ofline is not known: did you mean 'offline'"):
        compose("logger.wandb.mode=ofline")
