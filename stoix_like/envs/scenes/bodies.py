"""Drawings of rigid bodies: by MuJoCo's renderer where it can start, otherwise outlines seen from the side."""

from __future__ import annotations

import contextlib
import itertools
import os
import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mujoco
import numpy as np
from scipy.spatial import ConvexHull, QhullError

from stoix_like.envs.scenes.base import DARK, LIGHT, RecordedEpisode, Scene, Update, entry_of, frame, show_pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Pixels.
_WIDTH, _HEIGHT = 480, 360
_FLAT = (mujoco.mjtGeom.mjGEOM_PLANE, mujoco.mjtGeom.mjGEOM_HFIELD)


def find_scene(model: mujoco.MjModel, pose: Callable[[Any], dict[str, Any]], seconds: float) -> Scene:
    """Return a scene of the bodies of a model.

    `pose`: what a state of one environment sets of `mujoco.MjData`, by name: `qpos` and others; None sets nothing.
    """

    def draw(axes: Axes, recording: RecordedEpisode) -> Update:
        data = mujoco.MjData(model)

        def move_to(entry: int) -> mujoco.MjData:
            for name, values in pose(entry_of(recording.states, entry)).items():
                if values is not None:
                    getattr(data, name)[:] = values
            mujoco.mj_forward(model, data)
            return data

        if (camera := _open_camera(model)) is None:
            show = _outlines(axes, model, move_to(0))
            return lambda entry: show(move_to(entry))
        return show_pictures(axes, lambda entry: camera.picture(move_to(entry)))

    return Scene(draw, fps=max(1, round(1 / seconds)))


def _open_camera(model: mujoco.MjModel) -> _Camera | None:
    """Return a camera; None where MuJoCo finds no way to render without a display."""
    # Whatever keeps OpenGL from starting, from a missing library to a missing driver.
    with contextlib.suppress(Exception):
        return _Camera(model)
    return None


class _Camera:
    """MuJoCo's renderer, in the first camera of the model or, without one, in a free camera that sees all of it."""

    def __init__(self, model: mujoco.MjModel) -> None:
        self._model = model
        model.vis.global_.offwidth, model.vis.global_.offheight = _WIDTH, _HEIGHT
        self._gl = _gl_context()(_WIDTH, _HEIGHT)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene, self._options = mujoco.MjvScene(model, maxgeom=10_000), mujoco.MjvOption()
        # Without a GPU, each would take as long as all the rest.
        for costly in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[costly] = False
        self._camera = mujoco.MjvCamera()
        mujoco.mjv_defaultFreeCamera(model, self._camera)
        if model.ncam:
            self._camera.type, self._camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, 0
        self._picture = np.empty((_HEIGHT, _WIDTH, 3), np.uint8)

    def picture(self, data: mujoco.MjData) -> np.ndarray:
        """Return a picture `[H, W, 3]`, uint8."""
        self._gl.make_current()
        everything = mujoco.mjtCatBit.mjCAT_ALL.value
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._camera, everything, self._scene)
        area = mujoco.MjrRect(0, 0, _WIDTH, _HEIGHT)
        mujoco.mjr_render(area, self._scene, self._context)
        mujoco.mjr_readPixels(self._picture, None, area, self._context)
        return self._picture[::-1].copy()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self._context.free()
            self._gl.free()


def _gl_context() -> Any:
    """Return the class of OpenGL contexts: as MUJOCO_GL says, otherwise one that needs no display."""
    if platform.system() == "Linux" and os.environ.get("MUJOCO_GL", "") in ("", "egl"):
        from mujoco.egl import GLContext

        return GLContext
    return mujoco.GLContext


def _outlines(axes: Axes, model: mujoco.MjModel, first: mujoco.MjData) -> Callable[[mujoco.MjData], None]:
    """Draw the outlines of all geoms on the plane of x and z, and follow their middle along x."""
    from matplotlib.patches import Polygon

    solid = [geom for geom in range(model.ngeom) if model.geom_type[geom] not in _FLAT and model.geom_rgba[geom, 3] > 0]
    clouds = [_surface(model, geom) for geom in solid]
    corners = [_projected(first, *pair) for pair in zip(solid, clouds, strict=True)]
    low, high = np.concatenate(corners).min(0), np.concatenate(corners).max(0)
    span = max(1.4 * float((high - low).max()), 0.1)
    bottom = min(low[1], 0.0) - 0.1 * span
    frame(axes, (0.0, span), (bottom, bottom + 0.8 * span))
    axes.axhline(0.0, color=LIGHT, zorder=0)
    (ticks,) = axes.plot([], [], "|", color=LIGHT, markersize=8, zorder=0)
    shapes = []
    for geom in solid:
        shapes.append(Polygon([(0, 0)], facecolor=model.geom_rgba[geom, :3], edgecolor=DARK, linewidth=0.8))
        axes.add_patch(shapes[-1])

    def show(data: mujoco.MjData) -> None:
        for shape, geom, cloud in zip(shapes, solid, clouds, strict=True):
            shape.set_xy(_outline(_projected(data, geom, cloud)))
            # What is nearer covers what is farther away.
            shape.set_zorder(2 - np.arctan(data.geom_xpos[geom, 1]) / np.pi)
        middle = float(data.geom_xpos[solid, 0].mean())
        axes.set_xlim(middle - span / 2, middle + span / 2)
        places = np.arange(np.floor(middle - span), middle + span)
        ticks.set_data(places, np.zeros_like(places))

    return show


def _surface(model: mujoco.MjModel, geom: int) -> np.ndarray:
    """Return points `[P, 3]` in the frame of a geom; their convex hull is its shape."""
    kind, size = model.geom_type[geom], model.geom_size[geom]
    if kind == mujoco.mjtGeom.mjGEOM_MESH:
        mesh = model.geom_dataid[geom]
        start = model.mesh_vertadr[mesh]
        return np.asarray(model.mesh_vert[start : start + model.mesh_vertnum[mesh]], np.float64)
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        return size * np.array(list(itertools.product((-1, 1), repeat=3)))
    height, angle = np.meshgrid(np.linspace(-1, 1, 9), np.linspace(0, 2 * np.pi, 17))
    radius = np.sqrt(1 - height**2)
    ball = np.stack([radius * np.cos(angle), radius * np.sin(angle), height], -1).reshape(-1, 3)
    if kind == mujoco.mjtGeom.mjGEOM_ELLIPSOID:
        return size * ball
    if kind == mujoco.mjtGeom.mjGEOM_SPHERE:
        return size[0] * ball
    along = np.array([0.0, 0.0, size[1]])
    if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
        return np.concatenate([size[0] * ball + along, size[0] * ball - along])
    circle = size[0] * np.stack([np.cos(angle[:, 0]), np.sin(angle[:, 0]), 0 * angle[:, 0]], -1)
    return np.concatenate([circle + along, circle - along])


def _projected(data: mujoco.MjData, geom: int, cloud: np.ndarray) -> np.ndarray:
    return (cloud @ data.geom_xmat[geom].reshape(3, 3).T + data.geom_xpos[geom])[:, [0, 2]]


def _outline(points: np.ndarray) -> np.ndarray:
    try:
        return np.asarray(points[ConvexHull(points).vertices])
    except QhullError:
        # A shape seen edge-on is a line.
        return points
