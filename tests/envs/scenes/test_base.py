"""Pictures of suites as drawings."""

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image, ImageSequence

from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.envs.suites import jumanji
from stoix_like.rendering.animation import write_animation
from support.composed import compose_config
from support.recordings import record


@pytest.mark.slow
@pytest.mark.parametrize("name", ["navix/empty_5x5", "xminigrid/empty_5x5", "pgx/tic_tac_toe"])
def test_suites_are_drawn_by_their_own_pictures(name, tmp_path):
    env = factory.make_drawn(parse_config(compose_config([f"env={name}"])).env)

    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        return state.carry, jnp.ones((1,), jnp.int32) if mask is None else jnp.argmax(mask, -1), ()

    path = tmp_path / "out.gif"
    assert write_animation(path, env.scene(), record(env, 2, act)) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    # The title above changes in any case.
    assert (frames[1][40:] != frames[0][40:]).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(jumanji._DRAWN))
def test_jumanji_is_drawn_by_its_own_viewer(name, tmp_path):
    config = parse_config(compose_config(["env=jumanji", f"env.scenario.name={name}", "env.time_limit=3"])).env
    env = factory.make_drawn(config)
    open_before = pyplot.get_fignums()  # other tests may leave theirs open

    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        sizes = getattr(env.action_space, "nvec", (mask.shape[-1],))
        choices = [jnp.argmax(part, -1) for part in jnp.split(mask, np.cumsum(sizes)[:-1], -1)]
        return state.carry, choices[0] if len(choices) == 1 else jnp.stack(choices, -1), ()

    path = tmp_path / "out.gif"
    assert write_animation(path, env.scene(), record(env, 3, act, seed=1)) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    height = len(frames[0]) // 8
    # The title above changes in any case.
    assert any((frame[height:] != frames[0][height:]).any() for frame in frames)
    assert pyplot.get_fignums() == open_before
