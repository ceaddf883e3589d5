"""Runs of the recording system on a probe environment: 20 updates of 16 steps in intervals of 5."""

import itertools
import signal

from stoix_like.loggers import MultiLogger
from stoix_like.run import experiment, training_loop
from stoix_like.run.prepare import prepare
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.storage import checkpoint
from support import toys
from support.set_ups import config_of, setup_of

TOY_RUN = [
    *toys.overrides(rollout_length=4),
    *("env=probe/observed_value", "arch.total_num_envs=4", "arch.total_timesteps=320", "arch.num_evaluation=4"),
]


def train_toy(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("toy") / "run"
    experiment.run(prepare(config_of(*TOY_RUN), run_dir))
    return run_dir


def toy_loop(run_dir, *overrides, keep=2):
    setup = setup_of(*TOY_RUN, *overrides)
    return TrainingLoop(setup, MultiLogger([]), checkpoint.Writer(run_dir, keep))


def restored(run_dir, *overrides):
    """Return the training loop of a run that continues from its newest checkpoint."""
    loop = toy_loop(run_dir, *overrides)
    loop.restore(checkpoint.read(run_dir, checkpoint.steps(run_dir)[-1], loop.targets()))
    return loop


def interrupt_at_check(monkeypatch, number):
    """Simulate SIGINT at the `number`-th check for signals, with one update between two checks."""
    checks = itertools.count(1)

    class Interrupted(training_loop.Signals):
        received = property(lambda self: signal.SIGINT if next(checks) >= number else None, lambda self, value: None)

    monkeypatch.setattr(training_loop, "SECONDS_PER_CALL", 0.0)
    monkeypatch.setattr(training_loop, "Signals", Interrupted)
