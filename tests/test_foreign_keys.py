import pytest
from omegaconf import OmegaConf

from stoix_like.composition import compose_config, config_dir, group_choices
from stoix_like.foreign_keys import FOREIGN_KEYS, FRAMEWORKS, SWITCHED_OFF


@pytest.fixture(scope="module")
def hyperparameters():
    """The keys of all systems, with their defaults as they are written in overrides."""
    defaults = {}
    for system in group_choices("system"):
        for key, value in OmegaConf.load(config_dir() / "system" / f"{system}.yaml").items():
            defaults.setdefault(f"system.{key}", set()).add(str(value).lower())
    return defaults


@pytest.mark.parametrize("framework", [*FRAMEWORKS, ""])
def test_every_name_has_one_row_and_leads_to_keys_and_choices_that_exist(framework, hyperparameters):
    # These networks have the parts of the others, and a world model.
    composed = compose_config(["network=dreamer_s"], return_hydra_config=True)
    rows = [row for row in FOREIGN_KEYS if row.framework == framework]
    assert len(rows) == len({row.theirs for row in rows}) > 10
    for key, _, choice in (name.partition("=") for row in rows for name in row.ours):
        if choice and "." not in key:
            assert choice in group_choices(key)
        elif key not in hyperparameters:
            path, _, name = key.rpartition(".")
            assert name in OmegaConf.select(composed, path), key


def test_switches_are_off_by_default_or_have_an_override_that_exists(hyperparameters):
    choices = compose_config([], return_hydra_config=True).hydra.runtime.choices
    for row in FOREIGN_KEYS:
        if row.theirs in SWITCHED_OFF:
            key, _, choice = SWITCHED_OFF[row.theirs].partition("=")
            assert key in hyperparameters or choice in group_choices(key)
        elif row.is_switch and "=" not in row.theirs:
            for key, _, choice in (name.partition("=") for name in row.ours):
                assert choice not in hyperparameters.get(key, {choices.get(key)}), row
