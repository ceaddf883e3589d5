"""The interface of drawings, and what several suites share."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from stoix_like.base_types import PyTree

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DARK, LIGHT, ACCENT, GROUND = "#333344", "#9aa0b4", "#d1495b", "#1b1b26"


class RecordedEpisode(NamedTuple):
    """An episode as K host arrays, one for each step that was kept, the reset first and the end last."""

    steps: np.ndarray  # `[K]` int, the step of each entry
    states: Any  # `[K, ...]` states of the suite's environment; of environments on the host, pictures `[K, H, W, 3]`
    views: PyTree  # `[K, *view]` views of the agent, an array or a dictionary of arrays
    returns: np.ndarray  # `[K]` sums of the rewards so far
    finished: np.ndarray  # `[K]` bool; the last is False only if recording stopped before the end of the episode


Update = Callable[[int], None]
"""A function that updates a drawing to an entry of a recording."""
Draw = Callable[["Axes", RecordedEpisode], Update]
"""A function that prepares the drawing of a recording, and returns an `Update`."""


class Scene(NamedTuple):
    """The drawing of an environment."""

    draw: Draw  # the drawing function
    fps: int  # frames per second


def from_pictures(picture: Callable[[Any], Any], fps: int) -> Scene:
    """Build a scene from pictures of states.

    `picture`: `state -> [H, W, 3]`, uint8, or floats in `[0, 1]`; the state of one environment, as host arrays.
    """

    def draw(axes: Axes, recording: RecordedEpisode) -> Update:
        def at(entry: int) -> np.ndarray:
            with jax.numpy_rank_promotion("allow"):  # as suites need it
                return np.asarray(picture(entry_of(recording.states, entry)))

        return show_pictures(axes, at)

    return Scene(draw, fps)


def show_pictures(axes: Axes, at: Callable[[int], np.ndarray]) -> Update:
    """Fill axes with pictures. `at`: returns the picture `[H, W, 3]` of an entry."""
    axes.set_axis_off()
    first = at(0)
    # A gif has the resolution of the figure: large pictures are averaged, the pixels of small ones stay sharp.
    interpolation = "nearest" if max(first.shape[:2]) < 200 else "antialiased"
    shown = axes.imshow(first, interpolation=interpolation, vmin=0, vmax=1)
    return lambda entry: shown.set_data(at(entry))


def entry_of(tree: PyTree, entry: int) -> PyTree:
    """Return one entry of a tree of arrays `[K, ...]`."""
    return jax.tree.map(lambda leaf: leaf[entry], tree)


def frame(axes: Axes, x_limits: tuple[float, float], y_limits: tuple[float, float]) -> None:
    """Set the limits of axes with equal scales, and hide them."""
    axes.set(xlim=x_limits, ylim=y_limits, aspect="equal")
    axes.set_axis_off()
