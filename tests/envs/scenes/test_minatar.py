import jax
import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

from stoix_like.envs.scenes import minatar
from support.recordings import make, still


@pytest.mark.parametrize("name", minatar.CHANNELS)
def test_every_minatar_channel_has_a_name(name):
    env = make(name)
    assert len(minatar.CHANNELS[name]) == env.observation_space.shape[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [[], ["env.frame_stack=3"], ["env.frame_stack=3", "env.flatten_observation=true"]]
)
def test_breakout_drawing_shows_objects_at_their_positions(overrides):
    env = make("Breakout-MinAtar", *overrides)
    keys = jax.random.key(0)[None]
    state, timestep = env.step(keys, env.reset(keys)[0], jnp.ones((1,), jnp.int32))
    native, timestep = jax.tree.map(lambda leaf: leaf[0], (env.native_state(state), timestep))
    axes = Figure().add_subplot()
    env.scene().draw(axes, still(None, np.asarray(timestep.observation.agent_view)[None]))(0)
    image = np.asarray(axes.images[0].get_array())
    texts, lines = axes.get_legend().get_texts(), axes.get_legend().legend_handles
    legend = {text.get_text(): line.get_color() for text, line in zip(texts, lines, strict=True)}
    assert list(legend) == ["paddle", "ball", "trail", "brick"]

    def colour(name):
        return [int(legend[name][start : start + 2], 16) / 255 for start in (1, 3, 5)]

    np.testing.assert_allclose(image[9, native.pos], colour("paddle"))
    np.testing.assert_allclose(image[native.ball_y, native.ball_x], colour("ball"))
    # The ball started on a brick, which its trail now covers.
    np.testing.assert_allclose(image[native.last_y, native.last_x], colour("trail"))
    shown = np.isclose(image, colour("brick")).all(-1)
    assert shown.sum() == native.brick_map.sum() - native.brick_map[native.last_y, native.last_x] == 29
