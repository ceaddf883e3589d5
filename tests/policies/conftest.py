import pytest

from stoix_like.inference.load import load_policy
from support.trained_runs import train_pendulum


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


@pytest.fixture(scope="module")
def policy(pendulum):
    return load_policy(pendulum, "last")
