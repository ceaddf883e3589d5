"""From what comes off the device to the numbers that are logged and kept."""

from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import numpy as np

from stoix_like.loggers import plain
from stoix_like.runner.anakin import EpisodeSums
from stoix_like.runner.evaluator import Episodes

PACKAGES = ("stoix_like", "jax", "jaxlib", "flax", "optax", "distrax", "gymnax", "hydra-core")


def evaluation(prefix: str, episodes: Episodes, count: int) -> dict[str, float]:
    """Statistics of the first `count` episodes; there may be more, since each device plays as many.

    Args:
        prefix: what the names begin with, `eval`.
        episodes: returns `[E]` and lengths `[E]`, on the host.
        count: how many were asked for.

    Returns:
        `prefix/episode_return_mean|std|min|max` and `prefix/episode_length_mean`.
    """
    returns, lengths = np.float64(episodes.returns[:count]), episodes.lengths[:count]
    return {
        f"{prefix}/episode_return_mean": float(returns.mean()),
        f"{prefix}/episode_return_std": float(returns.std()),
        f"{prefix}/episode_return_min": float(returns.min()),
        f"{prefix}/episode_return_max": float(returns.max()),
        f"{prefix}/episode_length_mean": float(lengths.mean()),
    }


def training(metrics: dict[str, Any], sums: EpisodeSums) -> dict[str, Any]:
    """What a window of updates reports.

    Args:
        metrics: the system's own, scalars on the host.
        sums: of the episodes that finished in the window, on the host.

    Returns:
        The metrics as `train/…`, and statistics of the episodes: None where none finished.
    """
    count = int(sums.number)
    episodes = {
        "episode_return_mean": sums.return_sum / max(count, 1),
        "episode_return_min": sums.return_min,
        "episode_return_max": sums.return_max,
        "episode_length_mean": sums.length_sum / max(count, 1),
    }
    return (
        {f"train/{name}": float(value) for name, value in metrics.items()}
        | {"train/episodes": count}
        | {f"train/{name}": float(value) if count else None for name, value in episodes.items()}
    )


def versions() -> dict[str, str | None]:
    """The versions of Python and of the packages that a result depends on."""
    found: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a file whole or not at all.

    Args:
        path: the file; replaced if it is there.
        values: what JSON can hold; NaN and infinities become null.
    """
    scratch = path.with_suffix(".tmp")
    scratch.write_text(json.dumps(plain(values), indent=2, allow_nan=False) + "\n")
    scratch.replace(path)
