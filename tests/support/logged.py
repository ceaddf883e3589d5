"""What tests of loggers write."""

from PIL import Image

from stoix_like.loggers import RunInfo
from stoix_like.loggers.console import ConsoleConfig

RECORDS = (
    {"env_steps": 0, "train/loss": None, "eval/episode_return_mean": 9.5},
    {"env_steps": 640, "train/loss": 0.25, "eval/episode_return_mean": None},
    {"env_steps": 1280, "train/loss": 0.125, "eval/episode_return_mean": [100.0, 200.0]},
)
SUMMARY = {"env_steps": 1280, "absolute/episode_return_mean": 150.0, "versions": {"jax": "0.10"}, "best": None}
SILENT = ConsoleConfig(enabled=False)


def run_info(run_dir):
    return RunInfo(run_dir, "ppo/ff_ppo", "gymnax/CartPole-v1", 3, 10, 1280, 2, {"arch": {"seed": 3}})


def tiny_gif(tmp_path):
    path = tmp_path / "640.gif"
    frames = [Image.new("L", (3, 2), shade) for shade in (0, 255)]
    frames[0].save(path, save_all=True, append_images=frames[1:])
    return path
