import pytest

from stoix_like.policies.load import load_policy


@pytest.fixture(scope="session")
def policy(pendulum):
    return load_policy(pendulum, "last")


@pytest.fixture(scope="session")
def sampling(pendulum):
    return load_policy(pendulum, "last", greedy=False)
