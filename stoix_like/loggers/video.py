"""Settings of the videos that are recorded during training."""

from __future__ import annotations

import dataclasses
from typing import Annotated

from stoix_like.schema import INT32_MAX, between, one_of


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """Configuration of `logger.video`."""

    every_evals: Annotated[int, between(0, INT32_MAX)] = 0
    format: Annotated[str, one_of("gif", "mp4")] = "gif"
