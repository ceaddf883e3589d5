from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import Box, Dict, Discrete, EnvConfig, MultiDiscrete, ScenarioConfig, make_eval
from stoix_like.envs.check import check_environment
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes.base import from_pictures
from stoix_like.errors import ConfigError, FaultyEnvironmentError
from support.compiled import run


def discrete(n):
    return SimpleNamespace(n=n, shape=(), dtype=jnp.int32)


def box(*shape, low=-1.0, high=1.0):
    return SimpleNamespace(low=low, high=high, shape=shape, dtype=jnp.float32)


class State(NamedTuple):
    step: jax.Array
    sums: jax.Array


class Collect:
    """A long agent with three actions and a short one with two; action 2 of the long one ends the game."""

    max_steps = 4

    def __init__(self, max_steps=4):
        self.max_steps = max_steps
        self.agents = ["long", "short"]
        self.observation_spaces = {"long": box(3), "short": box(2)}
        self.action_spaces = {"long": discrete(3), "short": discrete(2)}

    def reset(self, key):
        state = State(jnp.zeros((), jnp.int32), jnp.zeros(2))
        return self.observe(state), state

    def step_env(self, key, state, actions):
        reward = {agent: jnp.asarray(actions[agent], jnp.float32) for agent in self.agents}
        state = State(state.step + 1, state.sums + jnp.stack([reward[agent] for agent in self.agents]))
        done = (actions["long"] == 2) | (state.step >= self.max_steps)
        dones = dict.fromkeys([*self.agents, "__all__"], done)
        return self.observe(state), state, reward, dones, {}

    def observe(self, state):
        parts = {"long": [state.sums[0], 0.5], "short": [state.sums[1]]}
        return {agent: jnp.stack([state.step / 10, *map(jnp.asarray, part)]) for agent, part in parts.items()}


class Shared(Collect):
    """Both agents receive the first one's reward, and a game has no limit."""

    max_steps = None
    team_reward = True

    def __init__(self):
        super().__init__()
        self.max_steps = None

    def step_env(self, key, state, actions):
        observed, after, reward, dones, infos = Collect(100).step_env(key, state, actions)
        return observed, after, dict.fromkeys(self.agents, reward["long"]), dones, infos

    def get_world_state(self, state):
        return state.sums.astype(jnp.int32)

    def get_avail_actions(self, state):
        """Allow the second agent one action after the first step."""
        return {"long": jnp.ones(3, jnp.uint8), "short": jnp.stack([jnp.uint8(1), (state.step == 0).astype(jnp.uint8)])}


def played(env, actions):
    vector = make_eval(EnvConfig("own", ScenarioConfig("x")), env)
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    def play():
        state, first = vector.reset(keys)
        step = lambda state, action: vector.step(keys, state, action)  # noqa: E731
        return first, jax.lax.scan(step, state, jnp.asarray(actions))[1]

    return vector, *jax.tree.map(np.asarray, play())


def test_rows_are_padded_masked_and_paid_each():
    vector, first, steps = played(Collect, [[1, 0], [0, 1], [1, 1], [1, 1]])
    assert (vector.num_agents, vector.team_reward, vector.truncates_after) == (2, False, 4)
    assert vector.action_space == Discrete(3)
    np.testing.assert_array_equal(first.observation.action_mask, [[True, True, True], [True, True, False]])
    np.testing.assert_allclose(steps.observation.agent_view[0], [[0.1, 1.0, 0.5], [0.1, 0.0, 0.0]])
    np.testing.assert_array_equal(steps.reward, [[1, 0], [0, 1], [1, 1], [1, 1]])
    np.testing.assert_array_equal(steps.truncated, [[False] * 2] * 3 + [[True] * 2])
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.episode.episode_return[-1], [6, 6])


class Told(Collect):
    def terminated(self, state):
        return state.sums[1] >= 2


def test_a_task_that_ends_in_the_last_step_terminates_where_the_environment_says_so():
    """The long agent's action 2 ends a game as before."""
    for actions, ends in (([1, 0, 0, 1], True), ([1, 0, 0, 0], False)):
        last = jax.tree.map(lambda x: x[-1], played(Told, [[0, action] for action in actions])[2])
        assert (last.terminated.tolist(), last.truncated.tolist()) == ([ends] * 2, [not ends] * 2)
    assert played(Told, [[0, 0], [2, 0]])[2].terminated[-1].all()


def test_a_team_has_one_reward_its_own_world_and_its_own_masks():
    vector, first, steps = played(Shared, [[1, 0], [0, 1]])
    assert vector.team_reward
    np.testing.assert_array_equal(steps.reward, [[1, 1], [0, 0]])
    np.testing.assert_array_equal(first.observation.action_mask[1], [True, True, False])
    np.testing.assert_array_equal(steps.observation.action_mask[0], [[True] * 3, [True, False, False]])
    config = EnvConfig("own", ScenarioConfig("x"), kwargs={"world": True})
    seen = make_eval(config, Shared)
    assert isinstance(seen.observation_space, Dict)
    view = run(seen.reset, jax.random.split(jax.random.key(0), 2))[1].observation.agent_view
    assert (view["own"].shape, view["world"].shape) == ((2, 3), (2, 2))
    assert seen.observation_space.spaces["world"].dtype == view["world"].dtype == jnp.float32
    # A constructor that takes any argument, as those of the suite do, knows no world.
    wide = type("Wide", (Shared,), {"__init__": lambda self, **kwargs: Shared.__init__(self)})
    assert isinstance(make_eval(config, wide).observation_space, Dict)
    # Without a state of its own, the world is the padded observations side by side.
    other = run(make_eval(config, Collect).reset, jax.random.split(jax.random.key(0), 2))[1].observation.agent_view
    np.testing.assert_array_equal(other["world"], np.stack([np.ravel(other["own"])] * 2))


def test_one_agent_is_an_environment_like_any_other():
    class Alone(Collect):
        def __init__(self):
            super().__init__()
            self.agents = ["long"]

        def step_env(self, key, state, actions):
            return Collect.step_env(Collect(), key, state, {**actions, "short": 0})

    vector = make_eval(EnvConfig("own", ScenarioConfig("x")), Alone)
    _, first = run(vector.reset, jax.random.split(jax.random.key(0), 5))
    assert (vector.num_agents, first.observation.agent_view.shape, first.observation.action_mask) == (1, (5, 3), None)


def test_an_environment_is_drawn_by_its_own_scene():
    scene = from_pictures(lambda state: state, fps=3)
    env = with_attributes(Collect, scene=lambda: scene)
    assert make_drawn(EnvConfig("own", ScenarioConfig("x")), env).scene() is scene
    for other in (Collect, with_attributes(Collect, scene="a map")):
        with pytest.raises(ConfigError, match=r"define its method scene\(\)"):
            make_drawn(EnvConfig("own", ScenarioConfig("x")), other)


def with_attributes(cls, **attributes):
    env = cls()
    for name, value in attributes.items():
        setattr(env, name, value)
    return env


def stepped(key, state, actions, at, value):
    result = list(Collect().step_env(key, state, actions))
    result[at] = value
    return tuple(result)


def test_a_sound_environment_has_no_faults():
    assert "no faults in 3 environments" in str(check_environment(Collect, num_steps=20))


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"observation_spaces": {"long": box(3)}}, r"does not follow JaxMARL's interface \(KeyError: 'short'"),
        ({"reset": lambda key: (Collect().reset(key)[0], ())}, "AttributeError: .* has no attribute 'step'"),
        ({"step_env": lambda *args: Collect().step_env(*args)[:4]}, r"interface \(not enough values"),
        ({"step_env": lambda *args: stepped(*args, 2, {"long": 0.0})}, "KeyError: 'short'"),
        ({"step_env": lambda *args: 1 / 0}, "does not follow JaxMARL's interface.*division by zero"),
        (
            {"action_spaces": {"long": discrete(3), "short": box(2)}},
            "short acts in Box.* and long in Discrete.*: only Disc",
        ),
        (
            {"action_spaces": {"long": SimpleNamespace(shape=()), "short": discrete(2)}},
            "long acts in a SimpleNamespace: use Dis",
        ),
    ],
)
def test_check_env_reports_faults(attributes, message):
    with pytest.raises(FaultyEnvironmentError, match=message):
        check_environment(with_attributes(Collect, **attributes))


def masked(**sizes):
    legal = {agent: np.ones(size, bool) for agent, size in sizes.items()}
    return with_attributes(Collect, get_avail_actions=lambda state: legal)


@pytest.mark.parametrize(
    ("env", "changes", "words"),
    [
        (Collect, {"params": {"gravity": 1}}, "env.params={'gravity': 1}: Collect has no parameters: use env.kwargs"),
        (Collect, {"kwargs": {"world": 2}}, "env.kwargs.world=2 is invalid for Collect: it must be true or false"),
        (Collect, {"kwargs": {"steps": 1}}, "env.kwargs.steps=1 is not a parameter of Collect: .*'max_steps'"),
        (masked(long=3, short=3), {}, r"a mask \(3,\) of short: return one of \(2,\)"),
        (masked(short=2), {}, "KeyError: 'long'"),
    ],
)
def test_what_does_not_fit_is_refused(env, changes, words):
    with pytest.raises(ConfigError, match=words):
        make_eval(EnvConfig("own", ScenarioConfig("x"), **changes), env)


def test_vectors_of_actions_are_cut_to_each_agent():
    class Steer(Collect):
        def __init__(self):
            super().__init__()
            self.action_spaces = {"long": box(3), "short": box(1)}

        def step_env(self, key, state, actions):
            assert actions["short"].shape == (1,)
            sums = {agent: jnp.sum(action).astype(jnp.int32) for agent, action in actions.items()}
            return Collect.step_env(self, key, state, sums)

    vector, _, steps = played(Steer, np.ones((2, 2, 3), np.float32))
    assert isinstance(vector.action_space, Box)
    np.testing.assert_array_equal(steps.reward[0], [3, 1])


def test_choices_of_all_agents_are_one_multi_discrete_action():
    class Choose(Collect):
        def __init__(self):
            super().__init__()
            space = SimpleNamespace(num_categories=jnp.asarray([2, 3]), shape=(2,))
            self.action_spaces = dict.fromkeys(self.agents, space)

        def step_env(self, key, state, actions):
            return Collect.step_env(self, key, state, {agent: action.max() for agent, action in actions.items()})

    vector, _, steps = played(Choose, np.asarray([[[0, 1], [1, 0]]]))
    assert vector.action_space == MultiDiscrete((2, 3))
    np.testing.assert_array_equal(steps.reward[0], [1, 1])
