"""Settings of the videos that are recorded during training, and their names."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Annotated

from stoix_like.schema import INT32_MAX, between, one_of

DREAM = "dream"
"""Suffix of the file name of a dream: `videos/640_dream.gif`."""


def kind_of(path: pathlib.Path) -> str:
    """Return what an animation shows, `video` or `dream`, from the name of its file."""
    return DREAM if path.stem.endswith(f"_{DREAM}") else "video"


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """Configuration of `logger.video`."""

    every_evals: Annotated[int, between(0, INT32_MAX)] = 0
    format: Annotated[str, one_of("gif", "mp4")] = "gif"
