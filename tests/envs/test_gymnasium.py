"""Tests of the adapter for gymnasium against gymnasium itself."""

import gymnasium
import jax
import numpy as np
import pytest
from conformance import NUM_ENVS, check, check_atari, env_config, rollout

from stoix_like.envs import Box, Dict, Discrete, MultiDiscrete, make
from stoix_like.envs.gymnasium_spaces import make_spec, native_actions
from stoix_like.envs.host import HostEnvironment
from stoix_like.envs.suites.gymnasium import GymnasiumBatch, scenarios
from stoix_like.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "num_steps", "kwargs"),
    [
        ("CartPole-v1", 120, {}),
        pytest.param("Pendulum-v1", 450, {"g": 5.0}, marks=pytest.mark.slow),
        pytest.param("FrozenLake-v1", 120, {"is_slippery": False}, marks=pytest.mark.slow),
        pytest.param("LunarLander-v3", 300, {"continuous": True}, marks=pytest.mark.slow),
        pytest.param("Hopper-v5", 100, {}, marks=pytest.mark.slow),
    ],
)
def test_steps_equal_those_of_gymnasium(name, num_steps, kwargs, monkeypatch):
    seeds, reset = [], GymnasiumBatch.reset
    monkeypatch.setattr(GymnasiumBatch, "reset", lambda self, given: seeds.append(given) or reset(self, given))
    env = make(env_config("gymnasium", name, kwargs=kwargs))
    first, actions, steps = rollout(env, num_steps)
    env.check()
    env.close()
    for n in range(NUM_ENVS):
        reference = gymnasium.make(name, **kwargs)
        np.testing.assert_array_equal(first.observation.agent_view[n], observed(reference.reset(seed=seeds[0][n])[0]))
        for t in range(num_steps):
            view, reward, terminated, truncated, _ = reference.step(actions[t, n])
            at = jax.tree.map(lambda leaf, t=t, n=n: leaf[t, n], steps)
            np.testing.assert_array_equal(at.next_observation.agent_view, observed(view))
            assert (at.reward, at.terminated) == (np.float32(reward), terminated)
            assert at.truncated == (truncated and not terminated)
            if terminated or truncated:
                view, _ = reference.reset()
            np.testing.assert_array_equal(at.observation.agent_view, observed(view))
        reference.close()
    assert (steps.terminated | steps.truncated).any()


def observed(view):
    return np.eye(16, dtype=np.float32)[view] if np.ndim(view) == 0 else np.asarray(view, np.float32)


def test_the_adapter_follows_the_protocol():
    check("gymnasium", "CartPole-v1", 200)


@pytest.mark.parametrize(
    ("name", "limit", "expected"),
    [("Pendulum-v1", 500, 200), pytest.param("ALE/Pong-v5", 6, 6, marks=pytest.mark.slow)],
)
def test_a_time_limit_counts_steps_in_addition_to_the_limit_of_the_environment(name, limit, expected):
    env = make(env_config("gymnasium", name, time_limit=limit))
    _, _, steps = rollout(env, 2 * expected, num_envs=1)
    env.close()
    assert not steps.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [expected - 1, 2 * expected - 1])


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("ALE/Pong-v5", {"params": {"frame_skip": 1.5}}, "env.params.frame_skip=1.5 is invalid for ALE/Pong-v5"),
        ("ALE/Pong-v5", {"params": {"terminal_on_life_loss": "maybe"}}, "env.params.terminal_on_life_loss='maybe'"),
        ("ALE/Pong-v5", {"kwargs": {"mode": 77}}, "env.kwargs={'mode': 77} is invalid for ALE/Pong-v5: Invalid game"),
        ("Hopper-v5", {"kwargs": {"xml_file": "none.xml"}}, "'none.xml'} is invalid for Hopper-v5: .*does not exist"),
    ],
)
def test_invalid_settings_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(env_config("gymnasium", name, **changes))


@pytest.mark.slow
def test_atari_games_are_preprocessed():
    options = {"params": {"terminal_on_life_loss": True}, "reward_clip": 0.5}
    config = env_config("gymnasium", "ALE/Breakout-v5", kwargs={"repeat_action_probability": 0.0}, **options)
    training = check_atari(config)
    assert training.episode.episode_return.max() >= 1.0


def test_spaces_are_converted():
    spaces = gymnasium.spaces
    observations = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 3, 3), np.uint8),
            "position": spaces.Box(-1.0, 2.0, (2,), np.float64),
            "tool": spaces.Discrete(3, start=5),
            "switches": spaces.MultiDiscrete([2, 3]),
        }
    )
    spec = make_spec("suite/name", observations, spaces.MultiDiscrete([2, 4]))
    assert isinstance(spec.observation_space, Dict)
    assert isinstance(spec.observation_space.spaces["position"], Box)
    assert spec.action_space == MultiDiscrete((2, 4))
    view = {
        "image": np.ones((1, 2, 3, 3), np.uint8),
        "position": np.array([[0.5, -0.5]], np.float32),
        "tool": np.array([6], np.int32),
        "switches": np.array([[1, 2]], np.int32),
    }
    encoded = spec.encode(view)
    np.testing.assert_array_equal(encoded["tool"], [[0, 1, 0]])
    np.testing.assert_array_equal(encoded["switches"], [[0, 1, 0, 0, 1]])
    np.testing.assert_array_equal(encoded["image"], view["image"])
    for name, space in spec.observation_space.spaces.items():
        assert encoded[name].shape[1:] == space.shape
        assert encoded[name].dtype == space.dtype


def test_images_with_channels_first_are_transposed():
    image = gymnasium.spaces.Box(0, 255, (4, 2, 3), np.uint8)
    spec = make_spec("suite/name", image, gymnasium.spaces.Discrete(2), channels_first=True)
    view = np.arange(24, dtype=np.uint8).reshape(1, 4, 2, 3)
    assert spec.observation_space.shape == (2, 3, 4)
    np.testing.assert_array_equal(spec.encode(view), view.transpose(0, 2, 3, 1))


def test_views_are_made_of_observations_with_any_batch_axes():
    spaces = gymnasium.spaces.Dict(
        {"count": gymnasium.spaces.Discrete(3, start=1), "features": gymnasium.spaces.Box(-1, 1, (2,))}
    )
    env = HostEnvironment(None, make_spec("mine", spaces, gymnasium.spaces.Discrete(2)), timeout=1.0)
    view = env.view_of({"count": 2, "features": [0.5, 0.25]})
    np.testing.assert_array_equal(view["count"], [0, 1, 0])
    np.testing.assert_array_equal(view["features"], [0.5, 0.25])
    view = env.view_of({"count": np.asarray([[3, 1]]), "features": np.ones((1, 2, 2))})
    np.testing.assert_array_equal(view["count"], [[[0, 0, 1], [1, 0, 0]]])
    assert view["features"].shape == (1, 2, 2)
    image = gymnasium.spaces.Box(0, 255, (4, 6, 5), np.uint8)
    images = HostEnvironment(None, make_spec("mine", image, spaces["count"], channels_first=True), timeout=1.0)
    frames = np.arange(120, dtype=np.uint8).reshape(4, 6, 5)
    np.testing.assert_array_equal(images.view_of(frames), np.moveaxis(frames, 0, -1))


def test_discrete_actions_start_where_the_environment_counts_from():
    space = gymnasium.spaces.Discrete(3, start=-1)
    assert make_spec("suite/name", gymnasium.spaces.Discrete(2), space).action_space == Discrete(3)
    actions = native_actions(space, np.array([0, 1, 2], np.int32))
    np.testing.assert_array_equal(actions, [-1, 0, 1])
    assert all(action in space for action in actions)


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (gymnasium.spaces.Text(3), gymnasium.spaces.Discrete(2), "suite/name has observations of the space Text"),
        (
            gymnasium.spaces.Discrete(2),
            gymnasium.spaces.MultiBinary(2),
            "suite/name has actions of the space MultiBinary",
        ),
        (
            gymnasium.spaces.Discrete(2),
            gymnasium.spaces.Box(0, 3, (2,), np.int32),
            "actions of the space Box.*of floats",
        ),
    ],
)
def test_other_spaces_raise(observations, actions, message):
    with pytest.raises(ConfigError, match=message):
        make_spec("suite/name", observations, actions)


def test_scenarios_are_ids():
    assert {"CartPole-v1", "LunarLander-v3", "HalfCheetah-v5", "ALE/Pong-v5"} <= set(scenarios())
