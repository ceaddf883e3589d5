import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make_eval
from stoix_like.envs.factory import make_drawn
from support.conformance import NUM_ENVS, check, draw_start, env_config, side_by_side
from support.lazily import Lazy

pytestmark = pytest.mark.slow

wrappers = Lazy("jaxtari.wrappers")
HEIGHT, WIDTH = 210, 160


@pytest.fixture(autouse=True)
def data_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def sprites(data_home):
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


def test_games_that_lose_end_by_termination():
    _, _, steps = check("jaxtari", "pong", 400, action_repeat=16, params={"noop_max": 0})
    assert steps.terminated.any()
    assert not steps.truncated.any()
    assert steps.episode.episode_return[steps.terminated].max() < 0


@pytest.mark.parametrize(
    ("game", "changes", "ends"),
    [
        # The package reports 1,000 moves, of several frames each, as the end of the game.
        ("surround", {"time": 999, "score0": 0}, "truncated"),
        ("surround", {"time": 999, "score0": 10}, "terminated"),
        ("surround", {"time": 10, "score0": 10}, "terminated"),
        ("surround", {"time": 10, "score0": 0}, None),
        # The package reports five minutes as the end of the game.
        ("skiing", {"gates_seen": 0}, "truncated"),
        ("skiing", {"gates_seen": 20}, "terminated"),
    ],
)
def test_the_limit_of_a_game_is_a_truncation(game, changes, ends):
    env = make_eval(env_config("jaxtari", game, params={"noop_max": 0}))
    keys, consts = jax.random.split(jax.random.key(0), 1), env.unwrapped.env._env.consts
    last = {"substep": consts.MOVE_EVERY_N_STEPS - 1} if game == "surround" else {"step_count": consts.max_steps - 1}

    def last_step(keys):
        state, _ = env.reset(keys)
        inner = state.env_state
        changed = inner.env_state.replace(**{name: jnp.full(1, value) for name, value in {**changes, **last}.items()})
        return env.step(keys, state._replace(env_state=inner._replace(env_state=changed)), jnp.zeros(1, int))

    timestep = jax.jit(last_step)(keys)[1]
    assert [name for name in ("terminated", "truncated") if getattr(timestep, name)[0]] == ([ends] if ends else [])


def test_an_episode_equals_one_of_the_suite():
    num_steps, repeats = 500, 4
    config = env_config("jaxtari", "pong", params={"noop_max": 0}, action_repeat=repeats, frame_stack=2)
    env = make_eval(config)
    game = wrappers.AtariWrapper(
        env.unwrapped.env._env, sticky_actions=0.0, episodic_life=False, first_fire=False, noop_max=0
    )
    bare = wrappers.ObjectCentricWrapper(game, frame_stack_size=2, frame_skip=repeats, clip_reward=False)

    def step(key, state, action):
        view, state, reward, end, _, _ = bare.step(state, action)
        return (view, reward, end), state

    first, view, ours, (views, rewards, ends) = side_by_side(
        env, lambda key: bare.reset(jax.random.PRNGKey(0)), step, 6, num_steps
    )
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


def test_without_sprites_objects_are_drawn_as_rectangles():
    shown = draw_start(make_drawn(env_config("jaxtari", "pong")))[0]
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert len(np.unique(shown[:, 16:20].reshape(-1, 3), axis=0)) == 2
    assert (shown[:, 16:20].any(-1)).sum() == 16 * 4


def test_with_sprites_games_are_drawn_and_observed_as_pixels(sprites):
    shown = draw_start(make_drawn(env_config("jaxtari", "pong")))[0]
    assert shown.shape == (HEIGHT, WIDTH, 3)
    assert {(144, 72, 17), (92, 186, 92), (213, 130, 74)} <= {tuple(colour) for colour in shown.reshape(-1, 3)}
    pixels = {"kwargs": {"observation": "pixels"}, "params": {"noop_max": 2, "max_frames_per_episode": 40}}
    first, _, steps = check("jaxtari", "pong", 60, **pixels)
    assert first.observation.agent_view.shape == (NUM_ENVS, 84, 84, 1)
    assert first.observation.agent_view.dtype == np.uint8
    assert (steps.observation.agent_view[5] != steps.observation.agent_view[30]).any()
    assert draw_start(make_drawn(env_config("jaxtari", "pong", **pixels)))[0].shape == (HEIGHT, WIDTH, 3)
