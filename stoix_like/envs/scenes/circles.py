"""Drawings of flat worlds, in which everything is a circle."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stoix_like.envs.scenes.base import DARK, RecordedEpisode, Scene, Update, frame

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def from_circles(circles: Callable[[Any], tuple[Any, Any, Any, Any]], fps: int) -> Scene:
    """Build a scene that shows all places that the circles of an episode reach.

    `circles`: returns the C circles of the states `[K, ...]` of a recording, the first one on top.
    """

    def draw(axes: Axes, recording: RecordedEpisode) -> Update:
        from matplotlib.patches import Circle

        centres, radii, colours, opacities = circles(recording.states)
        least, largest = (centres - radii[:, None]).min(axis=(0, 1)), (centres + radii[:, None]).max(axis=(0, 1))
        frame(axes, *zip(least, largest, strict=True))
        shapes = [
            axes.add_patch(Circle((0, 0), radius, facecolor=colour, edgecolor=DARK, linewidth=0.8, zorder=-place))
            for place, (radius, colour) in enumerate(zip(radii, colours, strict=True))
        ]

        def update(entry: int) -> None:
            for shape, centre, opacity in zip(shapes, centres[entry], opacities[entry], strict=True):
                shape.set(center=centre, alpha=opacity)

        return update

    return Scene(draw, fps)
