import signal
from functools import partialmethod

import pytest

from stoix_like.loggers import LoggerConfig, MultiLogger, make_logger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from stoix_like.loggers.wandb import WandbConfig
from stoix_like.signals import Signals
from support.logged import run_info


class Recorder:
    """Logger that records its calls, and raises an error in the method `fails`."""

    def __init__(self, name, fails=None, error=OSError):
        self.name, self.fails, self.error, self.calls = name, fails, error, []

    def _call(self, method, *_):
        self.calls.append(method)
        if method == self.fails:
            raise self.error("no space left")

    start, log = partialmethod(_call, "start"), partialmethod(_call, "log")
    finish, close = partialmethod(_call, "finish"), partialmethod(_call, "close")


RAISED_AT = Recorder._call.__code__.co_firstlineno + 3


@pytest.mark.parametrize(
    ("method", "error"), [*((method, OSError) for method in ("start", "log", "finish", "close")), ("log", SystemExit)]
)
def test_a_failing_logger_is_reported_once_and_dropped(tmp_path, capsys, method, error):
    good, bad = Recorder("good"), Recorder("bad", method, error)
    logger = MultiLogger([bad, good])
    logger.start(run_info(tmp_path))
    logger.log({"env_steps": 0})
    logger.log({"env_steps": 128})
    logger.finish({})
    logger.close()
    captured, failed = capsys.readouterr(), "logger 'bad' failed; the run continues without it"
    assert captured.err == f"{failed}: {error.__name__}: no space left ({__file__}:{RAISED_AT})\n"
    assert captured.out == ""
    assert good.calls == ["start", "log", "log", "finish", "close"]
    # The dropped logger is closed to release its resources, and not called again.
    assert bad.calls[-2:] == [method, "close"]
    assert bad.calls.count(method) == (2 if method == "close" else 1)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_signals_are_not_errors_of_a_logger(tmp_path, error):
    def stop(reason):
        signal.raise_signal(signal.SIGTERM)
        return error(reason)

    logger = MultiLogger([Recorder("interrupted", fails="log", error=stop)])
    logger.start(run_info(tmp_path))
    with pytest.raises(error), Signals():
        logger.log({"env_steps": 0})


def test_close_works_without_start_and_twice(tmp_path, capsys):
    config = LoggerConfig(tensorboard=TensorBoardConfig(enabled=True), wandb=WandbConfig(enabled=True))
    logger = make_logger(config, tmp_path)
    logger.close()
    logger.close()
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr() == ("", "")
