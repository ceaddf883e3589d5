import pytest

from support.trained_runs import train_members, train_pendulum


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


@pytest.fixture(scope="session")
def members(tmp_path_factory):
    return train_members(tmp_path_factory)
