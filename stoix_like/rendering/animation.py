"""Animated gifs and mp4 files of episodes."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import math
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from stoix_like.envs.scenes.base import RecordedEpisode, Scene
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.storage.files import check_writable, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("gif", "mp4")
_DPI = 80
_SIZE = (4.6, 3.6)
"""Width and height of a frame in inches."""
# Browsers show delays below 20 ms as 100 ms.
_MAX_GIF_FPS = 50


def check_path(path: Path) -> None:
    """Check that an animation can be written."""
    if path.suffix.removeprefix(".") not in FORMATS:
        use = path.with_suffix(".gif").name if path.name else "out.gif"
        raise ConfigError(f"render={path if path.name else ''} must be an animated gif or an mp4 file: use {use}")
    check_writable(path, "render")
    check_writer(path.suffix.removeprefix("."), f"render={path}")


def check_writer(file_format: str, setting: str) -> None:
    """Check that animations of a format can be written."""
    # Without a place for its caches, it warns.
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    if file_format == "mp4" and _ffmpeg() is None:
        raise MissingExtraError(setting, "imageio_ffmpeg", "video", alternative="ffmpeg")


def _ffmpeg() -> str | None:
    """Return the path of ffmpeg: of the system, or of the package imageio-ffmpeg; None if there is none."""
    if (found := shutil.which("ffmpeg")) is not None or importlib.util.find_spec("imageio_ffmpeg") is None:
        return found
    return str(importlib.import_module("imageio_ffmpeg").get_ffmpeg_exe())


def write_animation(
    path: Path, scene: Scene, recording: RecordedEpisode, stopped: Callable[[], bool] = lambda: False
) -> int:
    """Write an animation of an episode."""
    from matplotlib.figure import Figure

    # pyplot would select a backend and keep the figure in memory.
    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.add_subplot()
    update = scene.draw(axes, recording)
    axes.set_title("step", fontsize=10)

    def show(entry: int) -> None:
        update(entry)
        step, total = recording.steps[entry], np.round(recording.returns[entry], 2)
        axes.set_title(f"step {step}   return {total:g}", fontsize=10)

    return write_frames(path, figure, scene.fps, len(recording.steps), show, stopped)


def write_frames(
    path: Path, figure: Figure, fps: int, count: int, show: Callable[[int], None], stopped: Callable[[], bool]
) -> int:
    """Write an animation of a figure; a gif of more than 50 frames per second skips some and keeps the time."""
    import matplotlib
    from matplotlib.animation import FFMpegWriter, PillowWriter
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(figure)
    figure.draw_without_rendering()
    # Keep the layout: computing it again would take most of the time per frame.
    figure.set_layout_engine("none")
    shown_fps = min(fps, _MAX_GIF_FPS) if path.suffix == ".gif" else fps
    frames = np.linspace(0, count - 1, 1 + math.ceil((count - 1) * shown_fps / fps)).round().astype(int).tolist()
    if path.suffix == ".mp4":
        # The writer reads it when it is built and when it starts.
        matplotlib.rcParams["animation.ffmpeg_path"] = _ffmpeg()
    writer = (PillowWriter if path.suffix == ".gif" else FFMpegWriter)(fps=shown_fps)
    with tempfile.TemporaryDirectory() as directory:
        # The writers take the format from the ending of the name.
        scratch = Path(directory) / f"episode{path.suffix}"
        try:
            with writer.saving(figure, str(scratch), _DPI):
                for frame in frames:
                    if stopped():
                        raise InterruptedError(f"{path} was not drawn to its end")
                    show(frame)
                    writer.grab_frame()
        except subprocess.CalledProcessError as error:
            raise ConfigError(f"{path} cannot be written, {error}: use a .gif, or an ffmpeg with H.264") from error
        write_bytes(path, scratch.read_bytes())
    return len(frames)
