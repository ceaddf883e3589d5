"""Tests of categorical distributions of returns."""

import pytest
from off_policy_runs import set_up_small

from stoix_like.errors import ConfigError


def test_empty_support_of_one_member_raises():
    members = "arch.population.hyperparams={vmin:[-100,1]}"
    with pytest.raises(ConfigError, match="hyperparams, member 1: system.vmin=1.0 must be less than system.vmax=0.0"):
        set_up_small("ddpg/ff_d4pg", members, "system.vmax=0")


def test_empty_support_raises():
    with pytest.raises(ConfigError, match=r"system.vmin=3.0 must be less than system.vmax=2.0"):
        set_up_small("ddpg/ff_d4pg", "system.vmin=3", "system.vmax=2")
