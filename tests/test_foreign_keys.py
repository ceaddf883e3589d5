import pytest
from omegaconf import OmegaConf

from stoix_like.composition import compose_config, config_dir, group_choices
from stoix_like.foreign_keys import FOREIGN_KEYS, FRAMEWORKS


@pytest.fixture(scope="module")
def hyperparameters():
    """The keys of all systems."""
    files = (config_dir() / "system" / f"{system}.yaml" for system in group_choices("system"))
    return {f"system.{key}" for file in files for key in OmegaConf.load(file)}


@pytest.mark.parametrize("framework", [*FRAMEWORKS, ""])
def test_every_name_has_one_row_and_leads_to_keys_and_choices_that_exist(framework, hyperparameters):
    composed = compose_config([], return_hydra_config=True)
    rows = [row for row in FOREIGN_KEYS if row.framework == framework]
    assert len(rows) == len({row.theirs for row in rows}) > 10
    for key, _, choice in (name.partition("=") for row in rows for name in row.ours):
        if choice and "." not in key:
            assert choice in group_choices(key)
        elif key not in hyperparameters:
            path, _, name = key.rpartition(".")
            assert name in OmegaConf.select(composed, path), key
