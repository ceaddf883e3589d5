from types import SimpleNamespace

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes import bodies
from stoix_like.envs.scenes.base import RecordedEpisode
from support import conformance
from support.lazily import Lazy

pytestmark = pytest.mark.slow
mujoco, brax_envs = map(Lazy, ("mujoco", "brax.envs"))


# The quickest to compile, apart from `fast`, which has no physics.
CHEAP = "inverted_pendulum"


def test_bodies_are_drawn_in_their_positions_without_opengl(monkeypatch):
    monkeypatch.setattr(bodies, "_gl_context", lambda: None)
    env = make_drawn(conformance.env_config("brax", CHEAP))
    state = jax.eval_shape(lambda key: env.native_state(env.reset(key[None])[0]), jax.random.key(0))
    # The pole is upright, then leans to the right.
    poses = np.array([[0.0, 0.0], [0.0, np.pi / 4]])
    states = state.replace(pipeline_state=SimpleNamespace(q=poses))
    still = lambda _, entry: state.replace(pipeline_state=SimpleNamespace(q=poses[entry]))  # noqa: E731
    monkeypatch.setattr(bodies, "entry_of", still)
    axes = Figure().add_subplot()
    update = env.scene().draw(axes, RecordedEpisode(np.arange(2), states, None, np.zeros(2), np.zeros(2)))
    tips = []
    for entry in range(2):
        update(entry)
        corners = np.concatenate([patch.get_xy() for patch in axes.patches])
        tips.append(corners[corners[:, 1].argmax()])
    # Its joint is at the origin; brax's model is 0.6 long, and the radius of its end is 0.049.
    assert tips[0] == pytest.approx([0.0, 0.649], abs=0.03)
    assert tips[1] == pytest.approx([0.6 / np.sqrt(2), 0.6 / np.sqrt(2) + 0.049], abs=0.03)


def test_mujoco_renders_bodies_where_opengl_starts():
    env = make_drawn(conformance.env_config("brax", CHEAP))
    camera = bodies._open_camera(env.unwrapped.env._model)
    if camera is None:
        pytest.skip("OpenGL cannot start without a display")
    data = mujoco.MjData(env.unwrapped.env._model)
    pictures = []
    for angle in (0.0, 0.5):
        data.qpos[1] = angle
        mujoco.mj_forward(env.unwrapped.env._model, data)
        pictures.append(camera.picture(data))
    assert pictures[0].shape == (360, 480, 3)
    assert (pictures[0] != pictures[1]).any()
