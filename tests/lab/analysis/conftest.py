import sys

import pytest

from support.lazily import Lazy
from support.recorded import write_run

known_policies = Lazy("support.known_policies")


@pytest.fixture(autouse=True)
def closed_figures():
    """Close what a test has drawn: pyplot keeps figures, and warns of many."""
    yield
    if (pyplot := sys.modules.get("matplotlib.pyplot")) is not None:
        pyplot.close("all")


@pytest.fixture
def few_resamples(monkeypatch):
    """Draw few bootstrap samples: `test_statistics` tests the intervals themselves."""
    for module in ("statistics", "plots"):
        monkeypatch.setattr(f"stoix_like.lab.analysis.{module}.NUM_RESAMPLES", 200)


@pytest.fixture
def two(tmp_path):
    """PPO, far better, as a population of five; and DQN as five runs of one seed each."""
    write_run(tmp_path / "ppo", (90.0, 95.0, 100.0, 105.0, 110.0))
    for seed, value in enumerate((10.0, 12.0, 14.0, 16.0, 18.0)):
        write_run(tmp_path / f"dqn/{seed}", (value,), seed=seed, system="q_learning/ff_dqn")
    return tmp_path


@pytest.fixture(scope="module")
def pendulum():
    return known_policies.known_pendulum()


@pytest.fixture(scope="module")
def visits(pendulum):
    return pendulum.play(episodes=3)


@pytest.fixture(scope="module")
def cartpole():
    return known_policies.untrained_cartpole()
