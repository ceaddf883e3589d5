"""Tests of the adapter of Octax against its own environments."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes.base import RecordedEpisode
from stoix_like.errors import ConfigError
from support.conformance import check, check_time_limit, env_config
from support.lazily import Lazy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")]

environments = Lazy("octax.environments")


def test_conformance():
    _, _, steps = check("octax", "brix", 120)
    assert steps.terminated.any()
    assert not steps.truncated.any()


def test_time_limit_is_a_truncation():
    limit = 5

    def wait(timestep):
        return jnp.full(timestep.reward.shape, 2)

    check_time_limit("octax", "brix", limit, wait, params={"max_steps_in_episode": limit})


def test_an_end_at_the_time_limit_is_a_termination():
    env = make_eval(env_config("octax", "brix", params={"max_steps_in_episode": 1}))
    keys = jax.random.split(jax.random.key(0), 1)

    @jax.jit
    def step(lives):
        state, _ = env.reset(keys)
        game = state.env_state
        return env.step(keys, state._replace(env_state=game.replace(V=game.V.at[:, 14].set(lives))), jnp.full(1, 2))[1]

    lost, alive = step(4), step(5)
    assert (bool(lost.terminated[0]), bool(lost.truncated[0])) == (True, False)
    assert (bool(alive.terminated[0]), bool(alive.truncated[0])) == (False, True)


def test_an_episode_equals_one_of_the_suite():
    num_steps = 100
    env, (bare, _) = make_eval(env_config("octax", "brix")), environments.create_environment("brix")

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        inner, frames, _ = bare.reset(jax.random.key_data(reset_key))
        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), inner)

        def step(carry, key):
            state, inner = carry
            action = jax.random.randint(key, (), 0, 3)
            state, ours = env.step(key[None], state, action[None])
            inner, frames, reward, end, _, _ = bare.step(inner.replace(rng=jax.random.key_data(key)), action)
            inner = jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), inner, carry[1])
            return (state, inner), (ours, (frames, reward, end))

        return first, frames, jax.lax.scan(step, (state, inner), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        first, frames, (ours, (displays, rewards, ends)) = jax.jit(both)(jax.random.key(0))
    end = int(np.argmax(ends)) + 1
    assert 1 < end < num_steps
    assert rewards[:end].any()
    np.testing.assert_array_equal(first.observation.agent_view[0] > 0, np.transpose(frames, (2, 1, 0)))
    views = ours.next_observation.agent_view[:end, 0]
    np.testing.assert_array_equal(views > 0, np.transpose(displays[:end], (0, 3, 2, 1)))
    assert set(np.unique(views)) == {0, 255}
    np.testing.assert_array_equal(ours.reward[:end, 0], rewards[:end])
    np.testing.assert_array_equal(ours.terminated[:end, 0], ends[:end])


def test_every_game_and_level_has_a_name_and_is_drawn_by_the_suite():
    env = make_drawn(env_config("octax", "space_flight10"))
    assert env.legend().actions == ("key 1", "key 4", "none")
    state, timestep = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 1))
    states, view = jax.tree.map(np.asarray, (env.native_state(state), timestep.observation.agent_view))
    axes = plt.figure().add_subplot()
    env.scene().draw(axes, RecordedEpisode(np.arange(1), states, view, np.zeros(1), np.ones(1, bool)))(0)
    shown = np.asarray(axes.images[0].get_array())
    plt.close("all")
    assert shown.shape == (32 * 8, 64 * 8, 3)
    lit = shown[::8, ::8, 0] > 100
    np.testing.assert_array_equal(lit, view[0, :, :, -1] > 0)


def test_a_step_has_as_many_channels_as_frames():
    env = make_eval(env_config("octax", "pong", kwargs={"frame_skip": 2}))
    assert env.observation_space.shape == (32, 64, 2)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Brix", {}, "env.scenario.name='Brix' is not a scenario of octax: .*'brix'"),
        ("cavern", {}, "env.scenario.name='cavern' is not a scenario of octax: .*'cavern3'"),
        ("brix", {"kwargs": {"size": 3}}, "env.kwargs.size=3 is not a parameter of brix"),
        ("brix", {"kwargs": {"frame_skip": 0}}, "env.kwargs.frame_skip=0 is invalid for brix: use an integer of"),
        ("brix", {"kwargs": {"instruction_frequency": 30}}, "instruction_frequency=30 is less than one .*fps=60"),
        ("brix", {"params": {"max_steps": 3}}, "env.params.max_steps=3 .*'max_steps_in_episode'"),
        ("brix", {"params": {"max_steps_in_episode": 0}}, "max_steps_in_episode=0 must be at least 1"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("octax", name, **changes))
