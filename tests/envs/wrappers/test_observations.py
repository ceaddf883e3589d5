import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs import Box, Dict, Discrete, MultiDiscrete, Vectorize, wrappers
from stoix_like.envs.spaces import choices
from stoix_like.errors import ConfigError
from support import nested
from support.compiled import run
from support.countable_envs import KEY, ZERO, Counter, play, ramp


def test_flatten_observation_flattens_views_and_bounds():
    env = wrappers.FlattenObservation(ramp())
    assert env.observation_space.shape == (4,)
    np.testing.assert_array_equal(env.observation_space.low, [0.0, 1.0, 2.0, 3.0])
    for t in play(env, [ZERO]):
        assert t.observation.agent_view.shape == t.next_observation.agent_view.shape == (4,)


def test_frames_are_stacked_on_the_last_axis():
    env = wrappers.StackFrames(ramp(), 3)
    assert env.observation_space.shape == (2, 6)
    np.testing.assert_array_equal(env.observation_space.low[1], [2, 3, 2, 3, 2, 3])
    views = [t.next_observation.agent_view for t in play(env, [ZERO] * 3)]
    # The oldest frame first; the reset fills the stack.
    for view, frames in zip(views, [(0, 0, 0), (0, 0, 1), (0, 1, 2), (1, 2, 3)], strict=True):
        np.testing.assert_array_equal(view, np.tile(np.repeat(frames, 2), (2, 1)))


class Careless(Counter):
    observation_space = Dict({"count": Box(-100.0, 100.0, (2,))})

    def observe(self, count, action):
        view = {"count": jnp.array([count, action], jnp.int32)}
        return Observation(view, jnp.asarray(jnp.arange(10) > count, jnp.int8))


def test_observations_are_converted_to_what_is_declared():
    assert wrappers.as_declared(plain := Vectorize(Counter(masked=True))) is plain
    env = wrappers.as_declared(Vectorize(Careless()))
    for timestep in play(env, [1, 9]):
        for observation in (timestep.observation, timestep.next_observation):
            view, mask, _ = observation
            assert (view["count"].dtype, mask.dtype) == (jnp.float32, bool)
    assert play(wrappers.AddTime(wrappers.FlattenObservation(env), 4), [1])[1].observation.agent_view[2] == 0.75


@pytest.mark.parametrize(
    ("declared", "seen", "converted"),
    [(np.float32, np.uint8, np.float32), (np.uint8, np.float32, np.float32), (np.int32, np.int16, np.int16)],
)
def test_views_and_space_have_one_dtype(declared, seen, converted):
    counter = Counter()
    counter.observation_space = Box(0, 100, (2,), declared)
    counter.observe = lambda count, action: Observation(jnp.array([count, action], seen))
    env = wrappers.as_declared(Vectorize(counter))
    assert (env.observation_space.dtype, play(env, [1])[1].observation.agent_view.dtype) == (converted, converted)
    if converted != np.float32:
        with pytest.raises(ConfigError, match="needs observations that are arrays of floats"):
            wrappers.AddTime(env, 4)


@pytest.mark.parametrize("space", [Discrete(3, start=1), MultiDiscrete((3, 2), start=(1, 0))])
@pytest.mark.parametrize("traced", [True, False])
def test_categories_are_one_hot_vectors(space, traced):
    counter = Counter()
    counter.observation_space = space
    counter.observe = lambda count, action: Observation(jnp.stack([count + 1, action]) if space.shape else count + 1)
    env = wrappers.as_declared(Vectorize(counter), traced)
    assert env.observation_space.shape == (sum(choices(space)),)
    expected = [[0, 1, 0], [0, 1, 0, 0, 1]][len(space.shape)]
    assert play(env, [1])[1].observation.agent_view.tolist() == expected


@pytest.mark.parametrize(
    ("space", "goal"),
    [(Discrete(5, start=1), [3]), (MultiDiscrete((3, 2), start=(1, 0)), [2, 1]), (Box(0.0, 9.0, (2,)), [4, 7])],
)
def test_goals_are_rewarded_as_the_environment_observes_them(space, goal):
    """The reward is the sum of an integer goal, which the agent sees as one-hot vectors or as floats."""
    counter, element = Counter(), jnp.array(goal, jnp.int32).reshape(space.shape)
    names = ("achieved_goal", "desired_goal")
    counter.observation_space = Dict(dict.fromkeys(names, space))
    counter.observe = lambda count, action: Observation(dict.fromkeys(names, element))
    counter.goal_reward = lambda achieved, desired: (jnp.sum(achieved) * 1.0, jnp.all((achieved ^ desired) == 0))
    env = wrappers.as_declared(Vectorize(counter))
    view = play(env, [1])[1].observation.agent_view
    reward, terminated = env.goal_reward(*(view[name] for name in names))
    assert (float(reward), bool(terminated)) == (sum(goal), True)


def test_masks_without_choices_are_dropped():
    counter = Counter(masked=True)
    counter.action_space = Box(0.0, 9.0, ())
    assert play(wrappers.as_declared(Vectorize(counter)), [])[0].observation.action_mask is None


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: wrappers.RepeatActions(env, 2),
        lambda env: wrappers.RandomStarts(env, 2),
        lambda env: wrappers.NoisyObservation(env, 0.1),
        lambda env: wrappers.FlickerObservation(env, 0.1),
    ],
)
def test_stacks_that_are_not_of_successive_steps_are_stored_whole(wrap):
    env = wrappers.StackFrames(ramp(), 3)
    assert (env.observation_space.stacked, wrap(env).observation_space.stacked) == (3, 1)


def test_integers_without_bounds_are_stacked():
    counter = Counter()
    counter.observation_space = Box(0, np.inf, (2,), np.int32)
    space = wrappers.StackFrames(Vectorize(counter), 2).observation_space
    assert (space.low.tolist(), space.high.tolist(), space.dtype) == ([0] * 4, [np.inf] * 4, np.int32)


def test_observations_and_their_bounds_are_clipped():
    env = wrappers.ClipObservation(Vectorize(Counter()), 2.5)
    timesteps = play(env, [1, 9, 2])
    assert [t.observation.agent_view.tolist() for t in timesteps] == [[0, 0], [1, 1], [2, 2.5], [2.5, 2]]
    assert timesteps[3].next_observation.agent_view.tolist() == [2.5, 2]
    assert (env.observation_space.low, env.observation_space.high) == (-2.5, 2.5)


def test_the_remaining_fraction_of_the_time_limit_is_appended():
    env = wrappers.AddTime(wrappers.TimeLimit(Vectorize(Counter()), 4), 4)
    timesteps = play(env, [1, 1, 1, 1])
    assert [float(t.observation.agent_view[2]) for t in timesteps] == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert bool(timesteps[4].truncated)
    assert env.observation_space.shape == (3,)
    assert env.observation_space.low.tolist() == [-100, -100, 0]
    assert env.observation_space.high.tolist() == [100, 100, 1]
    with pytest.raises(ConfigError, match="env.flatten_observation=true"):
        wrappers.AddTime(ramp(), 4)


class TestDictionaries:
    """On `nested.Nested`, whose image is 0 or 255 everywhere, and whose three features are -1 or 1."""

    @staticmethod
    def envs():
        return nested.make("discrete", {}, {})

    def test_flattened_views_are_floats_sorted_by_name(self):
        plain, env = self.envs(), wrappers.FlattenObservation(self.envs())
        keys = jax.random.split(KEY, 8)
        view, flat = run(plain.reset, keys)[1].observation.agent_view, run(env.reset, keys)[1]
        assert flat.observation.agent_view.dtype == jnp.float32
        features, pixels = np.split(flat.observation.agent_view, [3], axis=-1)
        np.testing.assert_array_equal(features, view["inner"]["features"])
        np.testing.assert_array_equal(pixels, view["pixels"].reshape(8, 36) / np.float32(255))
        assert len(np.unique(pixels)) == len(np.unique(features)) == 2
        space = env.observation_space
        np.testing.assert_array_equal(space.low, [-1.0] * 3 + [0.0] * 36)
        np.testing.assert_array_equal(space.high, [1.0] * 39)
        assert (space.shape, space.dtype) == ((39,), jnp.float32)
        np.testing.assert_array_equal(flat.next_observation.agent_view, flat.observation.agent_view)

    def test_discrete_entries_are_flattened(self):
        env = self.envs()
        env.observation_space = Dict({"a": Discrete(4), "b": MultiDiscrete((2, 3))})
        space = wrappers.FlattenObservation(env).observation_space
        np.testing.assert_array_equal(space.high, [3.0, 1.0, 2.0])
        np.testing.assert_array_equal(space.low, [0.0] * 3)

    def test_stacks_refuse_dictionaries(self):
        with pytest.raises(ConfigError, match=r"env\.frame_stack=4 stacks arrays, but .* inner\.features, pixels: set"):
            wrappers.StackFrames(self.envs(), 4)

    def test_scalars_are_refused_where_vectors_are_needed(self):
        env = self.envs()
        env.observation_space = Box(0.0, 1.0, ())
        with pytest.raises(ConfigError, match=r"env\.frame_stack=4 stacks along .* scalar: set env\.flatten_obs"):
            wrappers.StackFrames(env, 4)
        env.observation_space = Discrete(4)
        with pytest.raises(ConfigError, match=r"Discrete\(4\) is not a Box: observe a one-hot vector"):
            wrappers.FlattenObservation(env)
