import pytest

from stoix_like.envs.suites import goals, memory
from support.conformance import check, check_time_limit

# The warning is of octax.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:scatter inputs have incompatible types")]

CLASSIC, LEVEL, EMPTY = "Craftax-Classic-Symbolic-v1", "s_h4_thrust_aim", "Navix-Empty-5x5-v0"
KINDS = (("entities", "discrete"), ("pixels", "continuous"))
VIEWS = ("symbolic_first_person", "categorical", "categorical_first_person", "rgb", "rgb_first_person")
ENDED = ("Breakout", "Tetris", "AutoEncode", "CountRecall", "BattleShip")  # games that report it in other ways


def params(**values):
    return {"params": values}


CONFORMANT = [
    ("brax", "fast", 60, params(episode_length=20)),
    ("brax", "fast", 25, {"kwargs": {"obs_mode": "dict_state", "asymmetric_obs": True}, **params(episode_length=20)}),
    *(("brax", name, 300, params(episode_length=100)) for name in ("inverted_pendulum", "reacher", "hopper")),
    ("craftax", CLASSIC, 2000, {}),
    *(("craftax", name, 40, params(max_timesteps=15)) for name in ("Craftax-Symbolic-v1", "Craftax-Classic-Pixels-v1")),
    ("envpool", "CartPole-v1", 200, {}),
    *(("goals", name, 200, {}) for name in goals.TASKS),
    *(("jaxtari", name, 300, params(max_frames_per_episode=100)) for name in ("pong", "freeway", "surround")),
    ("kinetix", LEVEL, 300, params(max_timesteps=80)),
    *(("kinetix", LEVEL, 20, {"kwargs": {"observation": o, "action": a}, **params(max_timesteps=8)}) for o, a in KINDS),
    *(("memory", name, 400, {}) for name in memory.TASKS),
    *(("mjx", name, 120, params(episode_length=30)) for name in ("InvertedPendulum-v5", "HalfCheetah-v5")),
    ("navix", EMPTY, 2000, {}),
    *(("navix", f"Navix-{x}-v0", 2000, {}) for x in ("Dynamic-Obstacles-5x5", "DoorKey-5x5", "KeyCorridorS3R1")),
    *(("navix", EMPTY, 120, {"kwargs": {"observation_fn": view}}) for view in VIEWS),
    ("octax", "brix", 120, {}),
    *(("playground", name, 250, params(episode_length=100)) for name in ("CartpoleBalance", "ReacherEasy")),
    *(("popgym_arcade", f"{name}Easy", 2000, {}) for name in ("CartPole", "Skittles", "MineSweeper")),
    *(("popgym_arcade", f"{name}Easy", 300, params(max_steps_in_episode=60)) for name in ENDED),
    *(("xminigrid", f"MiniGrid-{name}", 2000, {}) for name in ("Empty-5x5", "DoorKey-5x5", "Playground")),
]


@pytest.mark.parametrize(("suite", "name", "num_steps", "changes"), CONFORMANT)
def test_conformance(suite, name, num_steps, changes, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # without the sprites of jaxtari
    _, _, steps = check(suite, name, num_steps, **changes)
    if name in (CLASSIC, "brix"):
        assert steps.terminated.any()
        assert not steps.truncated.any()


LIMITS = [
    ("brax", "fast", 1000, {}),
    ("brax", "fast", 5, params(episode_length=5)),
    *(("craftax", name, 4, {"num_envs": 1, **params(max_timesteps=4)}) for name in (CLASSIC, "Craftax-Symbolic-v1")),
    ("goals", "point_maze", 4, {"kwargs": {"limit": 4, "radius": 0.001}}),
    ("jaxtari", "pong", 4, params(max_frames_per_episode=4)),
    ("jaxtari", "pong", 3, {"action_repeat": 4, **params(max_frames_per_episode=12)}),
    ("kinetix", LEVEL, 4, {"num_envs": 1, **params(max_timesteps=4)}),
    ("memory", "t_maze", 12, {"actions": 1, "kwargs": {"length": 2}}),
    ("mjx", "Reacher-v5", 50, {"actions": None}),
    ("navix", EMPTY, 4, {"actions": None, **params(max_steps=4)}),
    ("octax", "brix", 5, {"actions": 2, **params(max_steps_in_episode=5)}),
    ("playground", "PendulumSwingup", 1000, {"actions": None}),
    *(
        ("popgym_arcade", f"{name}Easy", 4, {"num_envs": 1, **params(max_steps_in_episode=4)})
        for name in ("CartPole", "Breakout", "Tetris", "MineSweeper", "AutoEncode")
    ),
    *(
        ("xminigrid", name, 4, {"actions": None, **params(max_steps=4)})
        for name in ("MiniGrid-Empty-5x5", "MiniGrid-MemoryS8")
    ),
]


@pytest.mark.parametrize(("suite", "name", "limit", "changes"), LIMITS)
def test_a_time_limit_is_a_truncation(suite, name, limit, changes, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    # The first action does nothing, or leads nowhere.
    check_time_limit(suite, name, limit, **{"actions": None if suite == "brax" else 0, **changes})
