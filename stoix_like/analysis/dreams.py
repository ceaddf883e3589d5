"""Pictures of dreams: what a world model predicts of an episode, beside what happened."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure, SubFigure

from stoix_like.analysis.plots import new_axes
from stoix_like.rendering.dream_drawing import Picture, draw_line, lines, pictures
from stoix_like.rendering.dreams import DreamedEpisode

_COLUMNS, _MAX_FEATURES = 4, 10
_FRAMES = 12
# As many images in a row bound the size of those of short episodes.
_MIN_COLUMNS = 8
_WIDTH, _LINE_HEIGHT = 14.0, 2.2  # inches of the figure, and of one row of panels


def draw_dream(episode: DreamedEpisode) -> Figure:
    """Draw an episode, and what the world model predicts of it from its first observations and all actions.

    Args:
        episode: from `dream_episode`.

    Returns:
        The figure: of images truth, dream and difference in some steps; of other observations one panel per feature;
        the reward, and the probability that the episode continues.
    """
    shown, numbers = pictures(episode), lines(episode, _MAX_FEATURES)
    columns = min(len(numbers), _COLUMNS)
    rows = -(-len(numbers) // columns)
    frames = min(_FRAMES, len(episode.reward))
    heights = [3 * _WIDTH / max(frames, _MIN_COLUMNS) + 0.3] * len(shown) + [rows * _LINE_HEIGHT]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.5), layout="constrained")
    *parts, below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, picture in zip(parts, shown, strict=True):
        _draw_frames(part, picture, episode.context, frames)
    for place, line in enumerate(numbers):
        axes = new_axes(below.add_subplot(rows, columns, place + 1))
        draw_line(axes, line, episode.context)
        axes.set_xlabel("step", fontsize=8)
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"{episode.name}: {len(episode.reward)} observations of an episode; the model saw {episode.context} and dreamed"
        " the others"
    )
    return figure


def _draw_frames(figure: SubFigure, picture: Picture, context: int, frames: int) -> None:
    """Draw truth, dream and difference, one column for each of some steps."""
    steps = np.unique(np.linspace(0, len(picture.truth) - 1, frames).round().astype(int))
    figure.suptitle(picture.name, fontsize=9)
    for row, label in enumerate(("truth", "dream", "difference")):
        for column, step in enumerate(steps):
            axes = figure.add_subplot(3, len(steps), row * len(steps) + column + 1)
            axes.imshow(getattr(picture, label)[step], interpolation="nearest", cmap="magma", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"{step}{' (seen)' if step < context else ''}", fontsize=8)
            if column == 0:
                axes.set_ylabel(label, fontsize=9)
