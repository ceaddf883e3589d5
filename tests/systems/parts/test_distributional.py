"""Tests of categorical distributions of returns."""

import pytest

from stoix_like.config import parse_config
from stoix_like.envs.spaces import Box
from stoix_like.errors import ConfigError
from support.composed import compose_config
from support.off_policy_runs import set_up_small


def test_empty_support_of_one_member_raises():
    members = "arch.population.hyperparams={vmin:[-100,1]}"
    with pytest.raises(ConfigError, match="hyperparams, member 1: system.vmin=1.0 must be less than system.vmax=0.0"):
        set_up_small("ddpg/ff_d4pg", members, "system.vmax=0")


def test_empty_support_raises():
    with pytest.raises(ConfigError, match=r"system.vmin=3.0 must be less than system.vmax=2.0"):
        set_up_small("ddpg/ff_d4pg", "system.vmin=3", "system.vmax=2")


@pytest.mark.parametrize(
    ("overrides", "key", "worth"),
    [
        (["system=sac/ff_sac_c51", "system.vmax=5"], "init_alpha=1", "69.3"),
        (["system=sac/ff_sac_c51", "system.vmax=5", "system.autotune=false"], "ent_coef=0.2", "13.9"),
        (["system=sac/ff_sac_c51", "system.vmax=5", "system.gamma=1"], "init_alpha=1", "any number"),
        (["system=reppo/ff_reppo", "system.vmax=0.5"], "init_alpha=0.01", "0.693"),
    ],
)
def test_a_temperature_worth_more_than_the_support_is_noted(overrides, key, worth):
    """One action: ln 2 / (1 - 0.99) = 69.3 times the temperature."""
    (note,) = parse_config(compose_config(overrides)).system.notes(Box(-2.0, 2.0, (1,)))
    assert note.startswith(
        f"system.{key}: the entropy of random actions is worth {worth} in soft returns, above system."
    )


@pytest.mark.parametrize("overrides", [["system=sac/ff_sac_c51"], ["+experiment=_simba_v2"], ["system=reppo/ff_reppo"]])
def test_a_temperature_that_fits_the_support_is_not_noted(overrides):
    """One action with the temperature and discount of SimBaV2: 0.01 ln 2 / (1 - 0.995) = 1.4, below 5."""
    assert parse_config(compose_config(overrides)).system.notes(Box(-1.0, 1.0, (1,))) == ()
