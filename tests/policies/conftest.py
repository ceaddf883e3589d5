import pytest

from stoix_like.inference.load import load_policy
from support.trained_runs import train_pendulum


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


@pytest.fixture(scope="session")
def policy(pendulum):
    return load_policy(pendulum, "last")


@pytest.fixture(scope="session")
def sampling(pendulum):
    return load_policy(pendulum, "last", greedy=False)
