import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib import pyplot
from PIL import Image, ImageSequence

from stoix_like.envs import factory
from stoix_like.envs.suites import jumanji
from stoix_like.rendering.animation import write_animation
from support.recordings import record
from support.set_ups import config_of


def first_legal(env):
    def act(shared, state, key):
        mask = state.timestep.observation.action_mask
        if mask is None:
            return state.carry, jnp.ones((1,), jnp.int32), ()
        sizes = getattr(env.action_space, "nvec", (mask.shape[-1],))
        choices = [jnp.argmax(part, -1) for part in jnp.split(mask, np.cumsum(sizes)[:-1], -1)]
        return state.carry, choices[0] if len(choices) == 1 else jnp.stack(choices, -1), ()

    return act


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "steps", "seed"),
    [
        *((f"env={name}", 2, 0) for name in ("navix/empty_5x5", "xminigrid/empty_5x5", "pgx/tic_tac_toe")),
        *((f"env=jumanji env.scenario.name={name} env.time_limit=3", 3, 1) for name in sorted(jumanji._DRAWN)),
    ],
)
def test_suites_are_drawn_by_their_own_pictures(words, steps, seed, tmp_path):
    env = factory.make_drawn(config_of(*words.split()).env)
    open_before = pyplot.get_fignums()  # other tests may leave theirs open
    path = tmp_path / "out.gif"
    assert write_animation(path, env.scene(), record(env, steps, first_legal(env), seed=seed)) >= 2
    with Image.open(path) as gif:
        frames = [np.asarray(frame.convert("RGB")) for frame in ImageSequence.Iterator(gif)]
    # The title above changes in any case.
    below = 40 if steps == 2 else len(frames[0]) // 8
    assert any((frame[below:] != frames[0][below:]).any() for frame in frames)
    assert pyplot.get_fignums() == open_before
