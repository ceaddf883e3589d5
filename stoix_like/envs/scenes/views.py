"""Drawings of what the agent sees: grids of few channels, and images."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from stoix_like.envs.legends import VIEW
from stoix_like.envs.scenes.base import DARK, GROUND, RecordedEpisode, Scene, Update, show_pictures
from stoix_like.envs.spaces import ArraySpace, Box, ObservationSpace, entries
from stoix_like.envs.worlds import OWN, WORLD
from stoix_like.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Limits of legible grids: cells per side, and channels, one colour each.
MAX_SIDE, MAX_CHANNELS = 64, 10
# Of pixels.
_MIN_SIDE = 8
_FPS = 10
COLOURS = ("#ffd166", "#ef476f", "#8d99ae", "#118ab2", "#f78c6b", "#06d6a0", "#9b5de5", "#83c5be", "#a47148", "#eeeeee")


def find_scene(space: ObservationSpace, names: tuple[str | None, ...] = ()) -> Scene | None:
    """Return a scene of the images in the observation.

    `names`: names of the channels for a legend; channels named None are hidden.
    Returns a scene of the first entry that is an image; None if there is none.
    """
    spaces = entries(space)
    for name, entry in spaces.items():
        if _is_grid(entry):
            return Scene(partial(_draw_grid, spaces, name, names), _FPS)
        if _is_image(entry):
            return Scene(partial(_draw_image, spaces, name), _FPS)
    return None


def _is_grid(space: ArraySpace) -> bool:
    shape = space.shape
    is_colour = isinstance(space, Box) and space.dtype == np.uint8 and np.max(space.high) == 255 and shape[2:] == (3,)
    if is_colour and min(shape[:2]) >= _MIN_SIDE:
        return False
    return len(shape) in (2, 3) and max(shape[:2]) <= MAX_SIDE and math.prod(shape[2:]) <= MAX_CHANNELS


def _is_image(space: ArraySpace) -> bool:
    """Return whether larger arrays are pixels: bytes, or floats from 0 to 1."""
    if not isinstance(space, Box) or len(space.shape) not in (2, 3) or min(space.shape[:2]) < _MIN_SIDE:
        return False
    return space.dtype == np.uint8 or bool(np.all(space.low == 0.0) and np.all(space.high == 1.0))


def _draw_grid(
    spaces: Mapping[str, ArraySpace], name: str, names: tuple[str | None, ...], axes: Axes, recording: RecordedEpisode
) -> Update:
    """Draw the newest view of the agent, with one colour per channel and the first channel on top."""
    height, width = spaces[name].shape[:2]
    images = newest_views(recording.views, spaces, name).reshape(len(recording.steps), height, width, -1)
    images = images.astype(np.float32)
    span = max(float(np.abs(images).max()), 1e-6)
    shown = [channel for channel in range(images.shape[-1]) if not names or names[channel]]
    picture = axes.imshow(np.zeros((height, width, 3)), interpolation="nearest", vmin=0, vmax=1)
    axes.set_axis_off()
    axes.hlines(np.arange(height + 1) - 0.5, -0.5, width - 0.5, color=GROUND, linewidth=0.5)
    axes.vlines(np.arange(width + 1) - 0.5, -0.5, height - 0.5, color=GROUND, linewidth=0.5)
    if names:
        for channel in shown:
            axes.plot([], [], "s", color=COLOURS[channel], markeredgecolor=DARK, label=names[channel])
        axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, fontsize=8, handletextpad=0.2)

    def update(entry: int) -> None:
        picture.set_data(composed(np.abs(images[entry][..., shown]) / span, shown))

    return update


def _draw_image(spaces: Mapping[str, ArraySpace], name: str, axes: Axes, recording: RecordedEpisode) -> Update:
    """Draw an image in colour, or in grey the last of its channels, which is the newest of stacked frames."""
    space = spaces[name]
    images = newest_views(recording.views, spaces, name)
    # Flattened dictionaries hold bytes as floats from 0 to 1.
    scale = 255 if images.dtype == np.uint8 or images.max() > 1 else 1

    def at(entry: int) -> np.ndarray:
        image = images[entry].reshape(*space.shape[:2], -1)
        image = image if image.shape[-1] == 3 else np.repeat(image[..., -1:], 3, axis=-1)
        return np.clip(image / scale, 0.0, 1.0)

    return show_pictures(axes, at)


def composed(strength: np.ndarray, channels: Sequence[int]) -> np.ndarray:
    """Paint channels on top of each other, the first one on top.

    `strength`: `[..., H, W, C]` in [0, 1].
    Returns `[..., H, W, 3]` colours in [0, 1].
    """
    canvas = np.broadcast_to(np.array(rgb(GROUND)), (*strength.shape[:-1], 3))
    for place, channel in reversed(list(enumerate(channels))):
        covered = strength[..., place, None]
        canvas = (1 - covered) * canvas + covered * np.array(rgb(COLOURS[channel]))
    return canvas


def newest_views(views: Any, spaces: Mapping[str, ArraySpace], name: str) -> np.ndarray:
    """Extract one entry of the newest of stacked, possibly flattened views.

    `views`: `[K, *view]` views of the agent, an array or a dictionary of arrays.
    Returns `[K, *shape]` with the shape of the entry.
    """
    if isinstance(views, Mapping):
        # What environments draw is their own, below a wrapper that adds a world.
        if {OWN, WORLD} <= views.keys() and name.partition(".")[0] not in (OWN, WORLD):
            return newest_views(views[OWN], spaces, name)
        found = entries(views)
        # A view that is no dictionary has a name next to what a wrapper adds.
        return np.asarray(found[name]) if name in found else newest_views(found[VIEW], spaces, name)
    shape = spaces[name].shape
    if views.ndim - 1 == len(shape) > 1:
        return np.asarray(views[..., -shape[-1] :])
    sizes = {entry: math.prod(space.shape) for entry, space in spaces.items()}
    # Stacked views come first, and what wrappers append comes last.
    total = sum(sizes.values())
    last = views.shape[1] // total * total
    if not last:
        raise ConfigError("the observations lack entries of the picture: draw without env.observation_mask")
    newest = views[:, last - total : last]
    start = sum(list(sizes.values())[: list(sizes).index(name)])
    return np.asarray(newest[:, start : start + sizes[name]].reshape(len(views), *shape))


def rgb(colour: str) -> tuple[float, ...]:
    """Return a colour such as `#ffd166` as red, green and blue in [0, 1]."""
    return tuple(int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
