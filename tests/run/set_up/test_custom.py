import pathlib

import pytest

import stoix_like
from stoix_like.errors import ConfigError
from support.collector import Collector, Lines
from support.selections import first
from support.toy_runs import TOY_RUN
from support.trained_runs import SMALL

RUN = [*TOY_RUN, "arch.total_timesteps=64", "arch.num_evaluation=2"]


def train(run_dir, *overrides, loggers=()):
    return stoix_like.train("ppo/ff_ppo", [*RUN, *overrides], run_dir=run_dir, loggers=loggers)


@pytest.mark.slow
def test_loggers_of_the_configuration_and_from_python_receive_every_record(tmp_path, capsys):
    collector, failing = Collector(), Lines(tmp_path / "failing", fails_at=32)
    mine = f"+logger.mine={{_target_: support.collector.Lines, path: {tmp_path / 'mine'}}}"
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
    first(
        4,
        [
            ("+logger.mine._target_=support.collector.Missing", (), "support.collector.Missing cannot be imported"),
            ("+logger.mine._target_=pathlib.Path", (), "returned a PosixPath without start, log, finish, close: use"),
            ("+logger.mine={_target_: support.collector.Lines}", (), "is invalid .*'path'"),
            ("+logger.mine={_target_: support.collector.Lines, file: x}", (), "logger.mine.file='x' is not a"),
            ("+logger.mine={_target_: support.collector.Lines, path: {_target_: io.StringIO}}", (), "path=.*not built"),
            ("+logger.mine={path: x}", (), "unknown key 'logger.mine'"),
            ("arch.seed=1", (Collector,), "loggers has the class Collector: use an object"),
            ("arch.seed=1", (pathlib.Path("x"),), "loggers has a PosixPath without start"),
        ],
    ),
)
def test_loggers_that_cannot_be_built_are_refused(tmp_path, given, loggers, message):
    with pytest.raises(ConfigError, match=message):
        train(tmp_path / "run", given, loggers=loggers)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("given", "message"),
    first(
        4,
        [
            ("callbacks=[{evaluations: 5}]", "has no _target_"),
            ("callbacks=[{_target_: stoix_like.callbacks.StopAtRetrun, episode_return: 1}]", "cannot be imported"),
            ("callbacks=[{_target_: stoix_like.callbacks.StopAtReturn, value: 1}]", "0.value=1 is not a parameter"),
            ("callbacks=[{_target_: stoix_like.callbacks.StopWithoutImprovement, evaluations: 0}]", "at least 1"),
            ("callbacks=[{_target_: pathlib.Path}]", "callbacks.0._target_=pathlib.Path returned a PosixPath: use an"),
            ("arch.stop_at_return=high", "arch.stop_at_return"),
        ],
    ),
)
def test_callbacks_that_cannot_be_built_are_refused(tmp_path, given, message, refused):
    assert message in refused("train", *SMALL, given, f"hydra.run.dir={tmp_path}/run")
    assert not (tmp_path / "run").exists()


def test_only_callbacks_are_accepted_from_python(tmp_path):
    with pytest.raises(ConfigError, match=r"callbacks has a function: use an object of a subclass"):
        stoix_like.train("ppo/ff_ppo", SMALL, run_dir=tmp_path / "run", callbacks=[lambda record: print(record)])
    assert not (tmp_path / "run").exists()
