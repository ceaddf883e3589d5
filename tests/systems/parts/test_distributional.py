import pytest

from stoix_like.envs.spaces import Box
from support.set_ups import config_of


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
    (note,) = config_of(*overrides).system.notes(Box(-2.0, 2.0, (1,)))
    assert note.startswith(
        f"system.{key}: the entropy of random actions is worth {worth} in soft returns, above system."
    )


@pytest.mark.parametrize(
    "overrides", [["system=sac/ff_sac_c51"], ["+experiment=_simba_v2"], ["+experiment=_xqc"], ["system=reppo/ff_reppo"]]
)
def test_a_temperature_that_fits_the_support_is_not_noted(overrides):
    """One action with the temperature and discount of SimBaV2: 0.01 ln 2 / (1 - 0.995) = 1.4, below 5."""
    assert config_of(*overrides).system.notes(Box(-1.0, 1.0, (1,))) == ()
