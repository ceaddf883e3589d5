"""Training runs of minutes, as the experiments of the package configure them."""

import pytest

from stoix_like.config import compose_config, typed
from stoix_like.loggers import MultiLogger
from stoix_like.runner.prepared import prepare
from stoix_like.runner.session import Session


@pytest.mark.learning
@pytest.mark.parametrize(
    ("experiment", "least"),
    [
        ("sac_pendulum", -180.0),
        ("td3_pendulum", -180.0),
        ("ddpg_pendulum", -180.0),
        ("d4pg_pendulum", -180.0),
        ("sac_mountain_car_continuous", 90.0),
        ("td3_mountain_car_continuous", 90.0),
        ("sac_discrete_cartpole", 475.0),
    ],
)
def test_experiment(experiment, least):
    overrides = [f"+experiment={experiment}", "arch.seed=0", "arch.compile_cache=false", "arch.num_devices=1"]
    session = Session(prepare(typed(compose_config(overrides))), MultiLogger([]))
    session.train()
    assert session.summary()["absolute/episode_return_mean"] >= least
