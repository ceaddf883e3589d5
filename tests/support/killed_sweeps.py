"""Sweeps whose processes are killed at random moments, with a function in place of training."""

import csv
import multiprocessing
import time

from stoix_like.composition import parse_overrides
from stoix_like.lab.tuning.parameters import parse_space
from stoix_like.lab.tuning.results import plain
from stoix_like.lab.tuning.runner import Runner
from stoix_like.lab.tuning.shapes import list_shapes
from stoix_like.lab.tuning.study import open_study
from stoix_like.lab.tuning.sweep import STUDY, Sweep, SweepConfig

SPACE = {"actor_lr": {"log_uniform": [1e-5, 1e-1]}, "gamma": {"uniform": [0.9, 1.0]}, "epochs": {"int": [1, 3]}}
KEYS = [f"system.{name}" for name in SPACE]


def trials_table(directory):
    with (directory / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def values(params):
    """Return a number per setting, which its parameters determine; of some, none."""
    found = []
    for lr, gamma, epochs in ([one[key] for key in KEYS] for one in params):
        found.append(float("nan") if gamma > 0.99 else 1.0 / (1.0 + 50.0 * lr) + gamma - 0.1 * epochs)
    return found


class FakeRunner(Runner):
    """Trains nothing: the overrides of a run determine its returns."""

    def train(self, jobs, finished, starting=None):
        for job in jobs:
            time.sleep(0.005)
            finished(job)

    def check_population(self, setting, traced, seeds, key):
        """Any number of seeds fits."""

    def returns(self, job, settings, seeds, objective):
        given = {one.key_or_group: plain(one.value()) for one in parse_overrides(job.overrides)}
        lists = given["arch.population.hyperparams"]
        params = [
            {KEYS[0]: lr, KEYS[1]: gamma, KEYS[2]: given[KEYS[2]]}
            for lr, gamma in zip(lists["actor_lr"], lists["gamma"], strict=True)
        ]
        return [[value] * seeds for value in values(params)]


def live(directory, sampler, trials, parallel=6, **settings):
    config = SweepConfig(
        space=SPACE, trials=trials, parallel=parallel, sampler=sampler, dir=str(directory), seeds=2, **settings
    )
    parameters = parse_space(SPACE, KEYS, ["actor_lr", "gamma"])
    shapes = list_shapes(parameters, sampler, config.shapes, config.seed)
    return Sweep(config, parameters, shapes, 0, FakeRunner(directory, [])).run()


def table(directory):
    trials = open_study(directory / STUDY).get_trials(deepcopy=False)
    return [(one.number, one.state.name, one.value, one.params, one.user_attrs) for one in trials]


def forkserver():
    """Return where processes start in milliseconds, with the package imported."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
