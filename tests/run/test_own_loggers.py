"""Loggers of the user's own, by configuration and from Python."""

import pathlib

import pytest
import toys
from collector import Collector, Lines

import stoix_like
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.run import experiment
from stoix_like.run.setup import set_up

RUN = [
    *toys.overrides(rollout_length=4),
    *("env=probe/observed_value", "arch.total_num_envs=4", "arch.total_timesteps=64", "arch.num_evaluation=2"),
]


def train(run_dir, *overrides, loggers=()):
    config = parse_config(compose_config([*RUN, *overrides]))
    return experiment.run(set_up(config._replace(own_loggers=loggers)), run_dir)


def test_loggers_of_the_configuration_and_from_python_receive_every_record(tmp_path, capsys):
    collector, failing = Collector(), Lines(tmp_path / "failing", fails_at=32)
    mine = f"+logger.mine={{_target_: collector.Lines, path: {tmp_path / 'mine'}}}"
    result = train(tmp_path / "run", mine, "logger.every_updates=1", loggers=[collector, failing])
    assert collector.evaluations == result.history
    assert [record["env_steps"] for record in collector.updates] == [16, 32, 48, 64]
    assert (tmp_path / "mine").read_text() == "0\n32\n64\n"
    # It is dropped after its first error.
    assert (tmp_path / "failing").read_text() == "0\n"
    assert "logger 'Lines' failed; the run continues without it: OSError: no space left" in capsys.readouterr().err
    again = Collector()
    extended = stoix_like.resume(result.run_dir, ["arch.total_timesteps=96"], trust=True, loggers=[again])
    assert again.evaluations == extended.history[3:] != []
    assert (tmp_path / "mine").read_text() == "0\n32\n64\n96\n"


@pytest.mark.parametrize(
    ("given", "loggers", "message"),
    [
        ("+logger.mine._target_=collector.Missing", (), "logger.mine._target_=collector.Missing cannot be imported"),
        ("+logger.mine._target_=pathlib.Path", (), "returned a PosixPath without start, log, finish, close: use"),
        ("+logger.mine={_target_: collector.Lines}", (), "is invalid for collector.Lines: .*'path'"),
        ("+logger.mine={_target_: collector.Lines, file: x}", (), "logger.mine.file='x' is not a parameter"),
        ("+logger.mine={path: x}", (), "unknown key 'logger.mine'"),
        ("+logger.console._target_=collector.Lines", (), "unknown key 'logger.console._target_'"),
        ("arch.seed=1", (Collector,), "loggers has the class Collector: use an object"),
        ("arch.seed=1", (pathlib.Path("x"),), "loggers has a PosixPath without start"),
    ],
)
def test_loggers_that_cannot_be_built_are_refused(tmp_path, given, loggers, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", given, loggers=loggers)
    assert not (tmp_path / "run").exists()
