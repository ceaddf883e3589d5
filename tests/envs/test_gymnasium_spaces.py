import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import Box, Dict, Discrete, MultiDiscrete, wrappers
from stoix_like.envs.custom import make
from stoix_like.envs.gymnasium_spaces import make_spec
from stoix_like.envs.host import HostEnvironment
from stoix_like.errors import ConfigError
from support.compiled import run


def test_bounds_of_actions_are_rounded_inwards():
    space = gymnasium.spaces.Box(-np.pi, 0.1, (2,), np.float64)
    box = make_spec("suite/name", gymnasium.spaces.Discrete(2), space).action_space
    for bound in (box.low, box.high):
        assert space.contains(bound.astype(np.float64))
    np.testing.assert_allclose([box.low[0], box.high[0]], [-np.pi, 0.1], rtol=1e-6)
    # Bounds beyond float32 end at its largest number, without a warning.
    unbounded = gymnasium.spaces.Box(-1e300, 1e300, (2,), np.float64)
    assert np.isfinite(make_spec("suite/name", unbounded, unbounded).action_space.high).all()


def test_spaces_are_converted():
    spaces = gymnasium.spaces
    observations = spaces.Dict(
        {
            "image": spaces.Box(0, 255, (2, 3, 3), np.uint8),
            "position": spaces.Box(-1.0, 2.0, (2,), np.float64),
            "tool": spaces.Discrete(3, start=5),
            "switches": spaces.MultiDiscrete([2, 3]),
            "cards": spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2, start=3)]),
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
        "cards": np.array([[0, 4]], np.int32),
    }
    encoded = spec.encode(view)
    np.testing.assert_array_equal(encoded["tool"], [[0, 1, 0]])
    np.testing.assert_array_equal(encoded["switches"], [[0, 1, 0, 0, 1]])
    np.testing.assert_array_equal(encoded["cards"], [[1, 0, 0, 1]])
    np.testing.assert_array_equal(encoded["image"], view["image"])
    for name, space in spec.observation_space.spaces.items():
        assert encoded[name].shape[1:] == space.shape
        assert encoded[name].dtype == space.dtype


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


def taking(space):
    class Taking(gymnasium.Env):
        observation_space, action_space, taken = gymnasium.spaces.Box(-1, 1, (1,)), space, []

        def reset(self, *, seed=None, options=None):
            return np.zeros(1, np.float32), {}

        def step(self, action):
            assert action in space
            self.taken.append(action)
            return np.zeros(1, np.float32), float(action["mode"] if isinstance(action, dict) else 0), False, False, {}

    return Taking


def act(env, actions):
    keys = jax.random.split(jax.random.key(0), len(actions))
    state, _ = env.reset(keys)
    _, timestep = run(env.step, keys, state, jnp.array(actions))
    env.check()
    env.release(state)
    return timestep


def test_discrete_actions_start_where_the_environment_counts_from():
    lever = taking(gymnasium.spaces.Discrete(3, start=-1))
    env = make(lever, {}, {})
    assert (env.action_space, env.unwrapped.action_space) == (Discrete(3), Discrete(3, start=-1))
    act(env, [0, 1, 2])
    assert [int(action) for action in lever.taken] == [-1, 0, 1]
    np.testing.assert_array_equal(env.native_action(jnp.array([0, 1, 2])), [-1, 0, 1])


def test_dictionaries_and_tuples_of_actions_reach_the_environment():
    spaces = gymnasium.spaces
    arm = taking(spaces.Dict({"mode": spaces.Discrete(2, start=1), "arm": spaces.Tuple([spaces.Box(-2, 2, (1,))])}))
    env = wrappers.ClipActions(wrappers.RescaleActions(make(arm, {}, {})))
    # The parts in the order of jax: arm.0, mode.
    np.testing.assert_array_equal(act(env, [[0.5, 0.0], [-3.0, 1.0]]).reward, [1.0, 2.0])
    assert [float(action["arm"][0][0]) for action in arm.taken] == [1.0, -2.0]


@pytest.mark.parametrize(
    ("observations", "actions", "message"),
    [
        (gymnasium.spaces.Text(3), gymnasium.spaces.Discrete(2), "suite/name has observations of the space Text"),
        (
            gymnasium.spaces.Tuple([gymnasium.spaces.Box(0, 1)]),
            gymnasium.spaces.Discrete(2),
            "has observations of the space Tuple",
        ),
        (gymnasium.spaces.Discrete(2), gymnasium.spaces.MultiBinary(2), "actions of the space MultiBinary"),
        (gymnasium.spaces.Discrete(2), gymnasium.spaces.Box(0, 3, (2,), np.int32), "actions of the space Box"),
    ],
)
def test_other_spaces_raise(observations, actions, message):
    with pytest.raises(ConfigError, match=message):
        make_spec("suite/name", observations, actions)
