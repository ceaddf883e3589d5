"""The network configurations of the package."""

from pathlib import Path

from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs" / "network"


def config(name="mlp", **changes):
    loaded = OmegaConf.load(CONFIGS / f"{name}.yaml")
    for key, value in changes.items():
        OmegaConf.update(loaded, key.replace("__", "."), value)
    return loaded
