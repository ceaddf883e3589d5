"""Tests of the adapter of JAXtari against its own wrappers, without sprites and with some drawn here."""

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes.base import RecordedEpisode
from stoix_like.errors import ConfigError
from support.conformance import NUM_ENVS, check, check_time_limit, env_config
from support.lazily import Lazy

pytestmark = pytest.mark.slow

core = Lazy("jaxtari.core")
wrappers = Lazy("jaxtari.wrappers")
pong = Lazy("jaxtari.games.jax_pong")
NOTHING = 0
HEIGHT, WIDTH = 210, 160


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    """A user's directory without sprites, whatever the machine has."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def sprites(data_home):
    """Sprites of Pong: rectangles, the ball white, on a brown ground."""
    directory = data_home / "jaxtari/sprites/pong"
    directory.mkdir(parents=True)

    def save(name, height, width, colour):
        np.save(directory / f"{name}.npy", np.full((height, width, 4), (*colour, 255), np.uint8))

    save("background", HEIGHT, WIDTH, (144, 72, 17))
    save("player", 16, 4, (92, 186, 92))
    save("enemy", 16, 4, (213, 130, 74))
    save("ball", 4, 2, (236, 236, 236))
    for digit in range(10):
        save(f"player_score_{digit}", 20, 12, (92, 186, 92))
        save(f"enemy_score_{digit}", 20, 12, (213, 130, 74))
    return directory


@pytest.mark.parametrize("name", ["pong", "freeway", "surround"])
def test_conformance(name):
    check("jaxtari", name, 300, params={"max_frames_per_episode": 100})


def test_games_that_lose_end_by_termination():
    _, _, steps = check("jaxtari", "pong", 400, action_repeat=16, params={"noop_max": 0})
    assert steps.terminated.any()
    assert not steps.truncated.any()
    assert steps.episode.episode_return[steps.terminated].max() < 0


def test_time_limit_counts_frames_and_is_a_truncation():
    def wait(timestep):
        return jnp.full(timestep.reward.shape, NOTHING)

    check_time_limit("jaxtari", "pong", 4, wait, params={"max_frames_per_episode": 4})
    check_time_limit("jaxtari", "pong", 3, wait, params={"max_frames_per_episode": 12}, action_repeat=4)


@pytest.mark.parametrize(("won", "at_limit"), [(False, True), (True, True), (True, False), (False, False)])
def test_the_limit_of_surround_is_a_truncation(won, at_limit):
    """The package reports 1,000 moves, of several frames each, as the end of the game."""
    env = make_eval(env_config("jaxtari", "surround", params={"noop_max": 0}))
    keys = jax.random.split(jax.random.key(0), 1)

    def last_step(keys):
        state, _ = env.reset(keys)
        inner = state.env_state.env_state
        moves = env.unwrapped.env._env.consts.MOVE_EVERY_N_STEPS - 1
        changed = inner.replace(
            time=jnp.full(1, 999 if at_limit else 10),
            score0=jnp.full(1, 10 if won else 0),
            substep=jnp.full(1, moves),
        )
        return env.step(keys, state._replace(env_state=state.env_state._replace(env_state=changed)), jnp.zeros(1, int))

    timestep = jax.jit(last_step)(keys)[1]
    assert bool(timestep.terminated[0]) is won
    assert bool(timestep.truncated[0]) is (at_limit and not won)


@pytest.mark.parametrize("arrived", [False, True])
def test_the_limit_of_skiing_is_a_truncation(arrived):
    """The package reports five minutes as the end of the game."""
    env = make_eval(env_config("jaxtari", "skiing", params={"noop_max": 0}))
    keys = jax.random.split(jax.random.key(0), 1)

    def last_step(keys):
        state, _ = env.reset(keys)
        inner = state.env_state.env_state
        limit = env.unwrapped.env._env.consts.max_steps
        changed = inner.replace(step_count=jnp.full(1, limit - 1), gates_seen=jnp.full(1, 20 if arrived else 0))
        return env.step(keys, state._replace(env_state=state.env_state._replace(env_state=changed)), jnp.zeros(1, int))

    timestep = jax.jit(last_step)(keys)[1]
    assert (bool(timestep.terminated[0]), bool(timestep.truncated[0])) == (arrived, not arrived)


def test_an_episode_equals_one_of_the_suite():
    num_steps, repeats = 500, 4
    config = env_config("jaxtari", "pong", params={"noop_max": 0}, action_repeat=repeats, frame_stack=2)
    env = make_eval(config)
    game = wrappers.AtariWrapper(
        env.unwrapped.env._env, sticky_actions=0.0, episodic_life=False, first_fire=False, noop_max=0
    )
    bare = wrappers.ObjectCentricWrapper(game, frame_stack_size=2, frame_skip=repeats, clip_reward=False)

    def both(key):
        reset_key, *keys = jax.random.split(key, num_steps + 1)
        state, first = env.reset(reset_key[None])
        view, inner = bare.reset(jax.random.PRNGKey(0))

        def step(carry, key):
            state, inner = carry
            action = jax.random.randint(key, (), 0, 6)
            state, ours = env.step(key[None], state, action[None])
            view, inner, reward, end, _, _ = bare.step(inner, action)
            inner = jax.tree.map(lambda leaf, old: jnp.asarray(leaf, old.dtype), inner, carry[1])
            return (state, inner), (ours, (view, reward, end))

        inner = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.result_type(leaf)), inner)
        return first, view, jax.lax.scan(step, (state, inner), jnp.stack(keys))[1]

    with jax.numpy_rank_promotion("allow"):
        first, view, (ours, (views, rewards, ends)) = jax.jit(both)(jax.random.key(0))
    end = int(np.argmax(ends)) if ends.any() else num_steps
    assert end > 200
    assert (rewards[:end] != 0).any()
    np.testing.assert_array_equal(first.observation.agent_view[0], view.reshape(-1))
    np.testing.assert_array_equal(ours.next_observation.agent_view[:end, 0], views[:end].reshape(end, -1))
    np.testing.assert_array_equal(ours.reward[:end, 0], rewards[:end])


def test_episodes_start_after_frames_without_an_action():
    env = make_eval(env_config("jaxtari", "pong"))
    state, _ = jax.jit(env.reset)(jax.random.split(jax.random.key(0), 200))
    frames = env.native_state(state).step_counter
    assert frames.min() == 0
    assert frames.max() == 30


def test_the_legend_names_objects_and_buttons():
    env = make_eval(env_config("jaxtari", "pong"))
    legend = env.legend()
    assert legend.actions == ("noop", "fire", "right", "left", "right fire", "left fire")
    assert [feature.name for feature in legend.features][:2] == ["player.x", "player.y"]
    assert len(legend.features) == env.observation_space.shape[0] == 26
    assert legend.features[-1].name == "score_enemy"


def pictures(env, num_envs=1):
    state, timestep = jax.jit(env.reset)(jax.random.split(jax.random.key(0), num_envs))
    states, view = jax.tree.map(np.asarray, (env.native_state(state), timestep.observation.agent_view))
    recording = RecordedEpisode(np.arange(1), states, view, np.zeros(1), np.ones(1, bool))
    axes = plt.figure().add_subplot()
    env.scene().draw(axes, recording)(0)
    shown = np.asarray(axes.images[0].get_array())
    plt.close("all")
    return shown


def test_without_sprites_objects_are_drawn_as_rectangles():
    shown = pictures(make_drawn(env_config("jaxtari", "pong")))
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert len(np.unique(shown[:, 16:20].reshape(-1, 3), axis=0)) == 2
    assert (shown[:, 16:20].any(-1)).sum() == 16 * 4


def test_with_sprites_games_are_drawn_and_observed_as_pixels(sprites):
    shown = pictures(make_drawn(env_config("jaxtari", "pong")))
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert {(144, 72, 17), (92, 186, 92), (213, 130, 74)} <= {tuple(colour) for colour in shown.reshape(-1, 3)}
    pixels = {"kwargs": {"observation": "pixels"}, "params": {"noop_max": 2, "max_frames_per_episode": 40}}
    first, _, steps = check("jaxtari", "pong", 60, **pixels)
    assert first.observation.agent_view.shape == (NUM_ENVS, 84, 84, 1)
    assert first.observation.agent_view.dtype == np.uint8
    assert (steps.observation.agent_view[5] != steps.observation.agent_view[30]).any()
    assert pictures(make_drawn(env_config("jaxtari", "pong", **pixels))).shape == (HEIGHT, WIDTH, 3)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("pong", {"kwargs": {"observation": "pixels"}}, "env.kwargs.observation=pixels needs the sprites of pong"),
        ("asterix", {}, "env.scenario.name=asterix needs the sprites of asterix, .*python -m jaxtari.install_sprites"),
        ("alien", {}, "env.scenario.name=alien needs the sprites of alien"),
        ("gravitar", {}, "env.scenario.name=gravitar needs the sprites of gravitar"),
    ],
)
def test_missing_sprites_are_refused_in_one_sentence(name, changes, message):
    with pytest.raises(ConfigError, match=message) as caught:
        make(env_config("jaxtari", name, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Pong", {}, "env.scenario.name='Pong' is not a scenario of jaxtari: .*'pong'"),
        ("pong", {"kwargs": {"size": 3}}, "env.kwargs.size=3 is not a parameter of pong"),
        ("pong", {"kwargs": {"observation": "pixel"}}, "env.kwargs.observation='pixel' .*'pixels'"),
        ("pong", {"params": {"noop_max": -1}}, "env.params.noop_max=-1 must be at least 0"),
        ("pong", {"params": {"screen_size": 42}}, "env.params.screen_size=42 has no effect on .*observation=objects"),
        ("pong", {"params": {"max_frames_per_episode": 0}}, "max_frames_per_episode=0 must be at least 1"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("jaxtari", name, **changes))
