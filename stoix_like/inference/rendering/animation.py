"""An episode as an animated picture."""

from __future__ import annotations

import importlib
import math
import os
from pathlib import Path

import numpy as np

from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.inference.rendering.episode import Recording
from stoix_like.inference.rendering.scenes import Scene

MAX_FRAMES = 500
_DPI = 80
_SIZE = (4.6, 3.6)
"""Width and height of a picture in inches."""


def check_picture(path: Path) -> None:
    """Refuse a picture that could not be written.

    Args:
        path: the file.

    Raises:
        ConfigError: it is no gif, or its directory is not there.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix != ".gif":
        raise ConfigError(f"render={path}: the picture is an animated gif: use {path.with_suffix('.gif').name}")
    if not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise ConfigError(f"render={path}: {path.parent} is no directory that can be written to")
    try:
        importlib.import_module("matplotlib")
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"render={path}", "matplotlib", "analysis") from error


def frame_steps(length: int) -> list[int]:
    """The steps that are drawn of an episode: all, or every k-th and the last, at most `MAX_FRAMES`.

    Args:
        length: T, steps of the episode.

    Returns:
        Numbers from 0 to T.
    """
    stride = max(1, math.ceil(length / (MAX_FRAMES - 1)))
    steps = list(range(0, length + 1, stride))
    return steps if steps[-1] == length else [*steps, length]


def write_gif(path: Path, scene: Scene, env: VectorEnvironment, recording: Recording) -> int:
    """Draw an episode.

    Args:
        path: the file; replaced if it is there.
        scene: how the environment is drawn.
        env: the environment that was played, with every wrapper.
        recording: the episode.

    Returns:
        How many frames the picture has.
    """
    from matplotlib.animation import PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # Without pyplot, which would choose a backend and keep the figure.
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    update = scene.draw(axes, env, recording)
    axes.set_title("step", fontsize=10)
    figure.draw_without_rendering()
    # What has been laid out stays: doing it again takes most of a frame's time.
    figure.set_layout_engine("none")
    writer = PillowWriter(fps=scene.fps)
    steps = frame_steps(len(recording.returns) - 1)
    scratch = path.with_name(f".{path.stem}.{os.getpid()}.gif")
    try:
        with writer.saving(figure, str(scratch), _DPI):
            for step in steps:
                update(step)
                axes.set_title(f"step {step}   return {np.round(recording.returns[step], 2):g}", fontsize=10)
                writer.grab_frame()
        scratch.replace(path)
    finally:
        scratch.unlink(missing_ok=True)
    return len(steps)
