import pytest
from omegaconf import OmegaConf

from stoix_like.composition import compose_config, config_dir, group_choices
from stoix_like.foreign_keys import foreign_keys, tables


@pytest.fixture(scope="module")
def hyperparameters():
    files = [OmegaConf.load(config_dir() / "system" / f"{system}.yaml") for system in group_choices("system")]
    return {f"system.{key}" for file in files for key in file}


@pytest.mark.parametrize("framework", tables()["keys"])
def test_rows_lead_to_keys_and_choices_that_exist(framework, hyperparameters):
    # These networks have the parts of the others, and a world model.
    composed = compose_config(["network=dreamer_s"], return_hydra_config=True)
    rows = [row for row in foreign_keys() if row.framework == framework]
    assert len(rows) > 10
    for key, _, choice in (name.partition("=") for row in rows for name in row.ours):
        if choice and "." not in key:
            assert choice in group_choices(key)
        elif key not in hyperparameters:
            path, _, name = key.rpartition(".")
            assert name in OmegaConf.select(composed, path), key
