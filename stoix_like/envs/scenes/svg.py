"""Drawings of vector graphics, for suites that draw their states as SVG."""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from stoix_like.envs.scenes.base import RecordedEpisode, Scene, Update, entry_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.path import Path

_HREF = "{http://www.w3.org/1999/xlink}href"
_EMBEDDED = "data:image/svg+xml;base64,"
_INHERITED = ("fill", "stroke", "stroke-width", "font-size", "font-weight", "text-anchor")


def from_svg(to_svg: Callable[[Any], str], fps: int) -> Scene:
    """Build a scene from vector graphics of states."""

    def draw(axes: Axes, recording: RecordedEpisode) -> Update:
        def update(entry: int) -> None:
            title = axes.get_title()
            axes.clear()
            axes.set_title(title, fontsize=10)
            draw_svg(axes, to_svg(entry_of(recording.states, entry)))

        update(0)
        return update

    return Scene(draw, fps)


def draw_svg(axes: Axes, svg: str) -> None:
    """Draw the shapes and the text of a vector graphic."""
    root = ElementTree.fromstring(svg)
    width, height = _number(root, "width"), _number(root, "height")
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.set_axis_off()
    axes.apply_aspect()
    # Widths of lines and sizes of fonts are in points.
    points = axes.bbox.width * 72 / axes.figure.dpi / width
    _draw(axes, root, {"fill": "black"}, np.eye(3), points)


def _draw(axes: Axes, element: ElementTree.Element, outer: Mapping[str, str], onto: np.ndarray, points: float) -> None:
    """Draw an element and its children. `onto`: `[3, 3]` from the coordinates of its parent to the drawing's."""
    from matplotlib.patches import PathPatch
    from matplotlib.transforms import Affine2D

    given = element.attrib | dict(re.findall(r"([\w-]+):\s*([^;]+?)\s*(?:;|$)", element.get("style", "")))
    style = {**outer, **{name: given[name] for name in _INHERITED if name in given}}
    onto = onto @ _transform(given.get("transform", ""))
    scale = math.sqrt(abs(np.linalg.det(onto[:2, :2]))) * points
    tag = element.tag.rpartition("}")[2]
    # In the order of the document.
    zorder = len(axes.patches) + len(axes.texts)
    if tag == "text":
        _write(axes, element, style, onto, scale, zorder)
    elif tag == "image" and (href := element.get(_HREF, "")).startswith(_EMBEDDED):
        inner = ElementTree.fromstring(base64.b64decode(href.removeprefix(_EMBEDDED)))
        size = _number(element, "width") / _number(inner, "width")
        placed = onto @ _transform(f"translate({element.get('x', 0)},{element.get('y', 0)}) scale({size})")
        _draw(axes, inner, {"fill": "black"}, placed, points)
    elif (path := _path(tag, element)) is not None:
        patch = PathPatch(
            Affine2D(onto).transform_path(path),
            facecolor="none" if tag == "line" else _colour(style.get("fill", "black")),
            edgecolor=_colour(style.get("stroke", "none")),
            linewidth=_float(style.get("stroke-width", "1")) * scale,
            zorder=zorder,
        )
        axes.add_patch(patch)
    if tag in ("svg", "g"):
        for child in element:
            _draw(axes, child, style, onto, points)


def _write(
    axes: Axes, element: ElementTree.Element, style: Mapping[str, str], onto: np.ndarray, scale: float, zorder: int
) -> None:
    x, y, _ = onto @ [_number(element, "x"), _number(element, "y"), 1.0]
    axes.text(
        x,
        y,
        element.text or "",
        fontsize=_float(style.get("font-size", "16")) * scale,
        fontweight=style.get("font-weight", "normal"),
        color=_colour(style.get("fill", "black")),
        ha={"middle": "center", "end": "right"}.get(style.get("text-anchor", ""), "left"),
        va="baseline",
        rotation=-math.degrees(math.atan2(onto[1, 0], onto[0, 0])),
        zorder=zorder,
    )


def _path(tag: str, element: ElementTree.Element) -> Path | None:
    """Return the outline of a shape; None if the element is no shape."""
    from matplotlib.path import Path

    number = partial(_number, element)
    if tag == "rect":
        x, y, width, height = (number(name) for name in ("x", "y", "width", "height"))
        return Path([(x, y), (x + width, y), (x + width, y + height), (x, y + height), (x, y)], closed=True)
    if tag == "circle":
        return Path.circle((number("cx"), number("cy")), number("r"))
    if tag == "line":
        return Path([(number("x1"), number("y1")), (number("x2"), number("y2"))])
    if tag == "polygon":
        corners = np.reshape(_numbers(element.get("points", "")), (-1, 2))
        return Path(np.concatenate([corners, corners[:1]]), closed=True)
    return _outline(element.get("d", "")) if tag == "path" else None


def _outline(description: str) -> Path:
    # A part of fontTools, on which matplotlib depends.
    from fontTools.pens.recordingPen import RecordingPen
    from fontTools.svgLib.path import parse_path
    from matplotlib.path import Path

    pen = RecordingPen()
    parse_path(description, pen)
    codes = {"moveTo": Path.MOVETO, "lineTo": Path.LINETO, "qCurveTo": Path.CURVE3, "curveTo": Path.CURVE4}
    steps = [(codes[name], point) for name, points in pen.value if name in codes for point in points]
    return Path([point for _, point in steps], [code for code, _ in steps])


def _transform(text: str) -> np.ndarray:
    """Return the matrix `[3, 3]` of an attribute; its last function is applied first."""
    from matplotlib.transforms import Affine2D

    matrix = np.eye(3)
    for name, arguments in re.findall(r"(\w+)\(([^)]*)\)", text):
        values = _numbers(arguments)
        if name == "translate":
            part = Affine2D().translate(values[0], values[1] if len(values) > 1 else 0)
        elif name == "scale":
            part = Affine2D().scale(values[0], values[-1])
        elif name == "rotate":
            x, y = values[1:] or (0.0, 0.0)
            part = Affine2D().rotate_deg_around(x, y, values[0])
        else:
            part = Affine2D.from_values(*values)
        matrix = matrix @ part.get_matrix()
    return matrix


def _colour(value: str) -> Any:
    """Convert a colour of SVG to one of matplotlib."""
    return [channel / 255 for channel in _numbers(value)] if value.startswith("rgb(") else value or "none"


def _number(element: ElementTree.Element, name: str) -> float:
    return _float(element.get(name, "0"))


def _float(text: str) -> float:
    return float(text.removesuffix("px"))


def _numbers(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"-?\d*\.?\d+(?:[eE][-+]?\d+)?", text)]
