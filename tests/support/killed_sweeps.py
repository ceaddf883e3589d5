"""Sweeps whose processes are killed at random moments, with a function in place of training."""

import multiprocessing
import time

import optuna

from stoix_like.tuning.space import parse_space
from stoix_like.tuning.sweep import STUDY, Sweep, SweepConfig

SPACE = {
    "actor_lr": {"log_uniform": [1e-5, 1e-1]},
    "gamma": {"uniform": [0.9, 1.0]},
    "epochs": {"int": [1, 3]},
}
KEYS = [f"system.{name}" for name in SPACE]


def returns(trials):
    """Return a number per trial, which its parameters determine; of some, none."""
    values = []
    for trial in trials:
        lr, gamma, epochs = (trial.params[key] for key in KEYS)
        values.append(float("nan") if gamma > 0.99 else 1.0 / (1.0 + 50.0 * lr) + gamma - 0.1 * epochs)
    return values, False


def live(directory, sampler, trials, parallel=6, seconds=0.005):
    """Run a sweep, or what is left of it."""

    def train(trials):
        time.sleep(seconds)
        return returns(trials)

    config = SweepConfig(space=SPACE, trials=trials, parallel=parallel, sampler=sampler, dir=str(directory))
    return Sweep(config, [], parse_space(SPACE, KEYS, ["actor_lr", "gamma"])).run(train)


def table(directory):
    """Return number, state, value, parameters, run and place of each trial of a study."""
    study = optuna.load_study(study_name="sweep", storage=f"sqlite:///{directory / STUDY}")
    trials = study.get_trials(deepcopy=False)
    return [(one.number, one.state.name, one.value, one.params, one.user_attrs) for one in trials]


def forkserver():
    """Return where processes start in milliseconds, with the package imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
