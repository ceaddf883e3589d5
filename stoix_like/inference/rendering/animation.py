"""Animated gifs of episodes."""

from __future__ import annotations

import importlib
import logging
import math
import tempfile
from pathlib import Path

import numpy as np

from stoix_like.envs.environment import VectorEnvironment
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.inference.rendering.episode import Recording
from stoix_like.inference.rendering.scenes import Scene
from stoix_like.storage.files import write_bytes

MAX_FRAMES = 500
_DPI = 80
_SIZE = (4.6, 3.6)
"""Width and height of a frame in inches."""


def check_gif_path(path: Path) -> None:
    """Check that a gif can be written.

    Args:
        path: path of the gif.

    Raises:
        ConfigError: if the suffix is not `.gif`, or the directory does not exist or is not writable.
        MissingExtraError: if matplotlib is not installed.
    """
    if path.suffix != ".gif":
        use = path.with_suffix(".gif").name if path.name else "out.gif"
        raise ConfigError(f"render={path if path.name else ''} must be an animated gif: use {use}")
    try:
        # Permissions alone do not reveal read-only and special file systems.
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise ConfigError(
            f"render={path}: {path.parent} is not a writable directory ({error.strerror}): create it or use another one"
        ) from error
    if path.is_dir():
        raise ConfigError(f"render={path} is a directory: use another name")
    # Without a place for its caches, it warns.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    try:
        for module in ("matplotlib", "matplotlib.figure"):
            importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"render={path}", "matplotlib", "analysis") from error
    except OSError as error:
        raise ConfigError(
            f"render={path}: matplotlib cannot start ({' '.join(str(error).split())}): set MPLCONFIGDIR to a writable"
            " directory with some free space"
        ) from error


def frame_steps(length: int) -> list[int]:
    """Select the steps to draw, at most `MAX_FRAMES`: all, or every k-th step and the last.

    Args:
        length: T, steps of the episode.

    Returns:
        Indices from 0 to T.
    """
    stride = max(1, math.ceil(length / (MAX_FRAMES - 1)))
    steps = list(range(0, length + 1, stride))
    return steps if steps[-1] == length else [*steps, length]


def write_gif(path: Path, scene: Scene, env: VectorEnvironment, recording: Recording) -> int:
    """Write an animated gif of an episode.

    Args:
        path: path of the gif; overwritten if it exists.
        scene: the scene of the environment.
        env: the environment of the episode, with its wrappers.
        recording: the episode.

    Returns:
        The number of frames.
    """
    from matplotlib.animation import PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    # pyplot would select a backend and keep the figure in memory.
    figure = Figure(figsize=_SIZE, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    update = scene.draw(axes, env, recording)
    axes.set_title("step", fontsize=10)
    figure.draw_without_rendering()
    # Keep the layout: computing it again would take most of the time per frame.
    figure.set_layout_engine("none")
    writer = PillowWriter(fps=scene.fps)
    steps = frame_steps(len(recording.returns) - 1)
    with tempfile.TemporaryDirectory() as directory:
        # Pillow takes the format from the ending of the name.
        scratch = Path(directory) / "episode.gif"
        with writer.saving(figure, str(scratch), _DPI):
            for step in steps:
                update(step)
                axes.set_title(f"step {step}   return {np.round(recording.returns[step], 2):g}", fontsize=10)
                writer.grab_frame()
        write_bytes(path, scratch.read_bytes())
    return len(steps)
