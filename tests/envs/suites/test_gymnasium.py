import os
import platform

import gymnasium
import jax
import numpy as np
import pytest

from stoix_like.envs import make
from stoix_like.envs.host_batches import HostOptions
from stoix_like.envs.suites.gymnasium import GymnasiumBatch, adopt, preprocessed_id, scenarios
from support.conformance import NUM_ENVS, check, check_atari, env_config, rollout


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


@pytest.mark.slow
def test_atari_games_are_preprocessed():
    options = {"params": {"terminal_on_life_loss": True}, "reward_clip": 0.5}
    config = env_config("gymnasium", "ALE/Breakout-v5", kwargs={"repeat_action_probability": 0.0}, **options)
    training = check_atari(config)
    assert training.episode.episode_return.max() >= 1.0


def test_every_raw_atari_game_has_a_preprocessed_one():
    games = {name for name, spec in gymnasium.registry.items() if spec.entry_point == "ale_py.env:AtariEnv"}
    raw = {name for name in games if not name.startswith("ALE/")}
    assert {"BreakoutNoFrameskip-v4", "Breakout-v0"} <= raw
    assert not raw & {*scenarios()}
    # `Breakout` is the name of both.
    for name in raw:
        assert preprocessed_id(name) == f"ALE/{name.partition('-')[0].removesuffix('NoFrameskip')}-v5"
    assert preprocessed_id("CartPole-v1") == preprocessed_id("NotRegistered-v0") == ""


def test_a_raw_atari_game_stays_possible():
    raw = make(env_config("gymnasium", "PongNoFrameskip-v4"))
    preprocessed = make(env_config("gymnasium", "ALE/Pong-v5"))
    assert (raw.observation_space.shape, preprocessed.observation_space.shape) == ((210, 160, 3), (84, 84, 4))
    for env in (raw, preprocessed):
        env.close()


class Drawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def render(self):
        return np.zeros((2, 2, 3), np.uint8)


@pytest.mark.parametrize(
    ("system", "present", "expected"), [("Darwin", None, "dummy"), ("Darwin", "x11", "x11"), ("Linux", None, None)]
)
def test_pictures_need_no_display_on_macos(system, present, expected, monkeypatch):
    """There, SDL would open it outside the main thread, which ends the process."""
    variables = {} if present is None else {"SDL_VIDEODRIVER": present}
    monkeypatch.setattr(os, "environ", variables)
    monkeypatch.setattr(platform, "system", lambda: system)
    adopt(Drawn(), None, "Drawn", HostOptions(drawn=True))
    assert variables.get("SDL_VIDEODRIVER") == expected
