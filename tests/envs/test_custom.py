import contextlib
import functools
import re
import threading

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.base_types import Observation
from stoix_like.envs import Box, Discrete, EnvConfig, Environment, check_environment, custom, make, make_eval
from stoix_like.envs.custom import as_overrides, unused_methods
from stoix_like.envs.wrappers import StackFrames
from stoix_like.errors import ConfigError, FaultyEnvironmentError
from stoix_like.storage import config_file
from support import custom_envs
from support.compiled import run
from support.games import Match
from support.recorded import write_config
from support.set_ups import config_of

TINY = [
    "arch.total_timesteps=512", "arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.total_num_envs=4",
    "arch.absolute_metric=false", "logger=silent", "system.rollout_length=64",
    "network.actor_network.pre_torso.layer_sizes=[8]", "network.critic_network.pre_torso.layer_sizes=[8]",
]  # fmt: skip


def walk_right(env, num_steps):
    keys = jax.random.split(jax.random.key(0), 1)
    state, _ = env.reset(keys)
    timesteps = []
    for _ in range(num_steps):
        state, timestep = run(env.step, keys, state, jnp.ones((1,), jnp.int32))
        timesteps.append(timestep)
    return timesteps


@pytest.mark.parametrize("name", ["Corridor", "make_corridor", "GymnaxWalk"])
def test_an_import_path_selects_a_class_or_function_with_its_arguments(name):
    config = config_of(f"env._target_=support.custom_envs.{name}", "+env.kwargs.size=2")
    assert (config.env.env_name, config.env.scenario.name) == ("own", f"support.custom_envs.{name}")
    env = make_eval(config.env)
    assert env.action_space == Discrete(2)
    first, last = walk_right(env, 2)
    assert [float(t.observation.agent_view[0, 0]) for t in (first, last)] == [0.5, 1.0]
    assert [float(t.reward[0]) for t in (first, last)] == [0.0, 1.0]
    assert [bool(t.terminated[0]) for t in (first, last)] == [False, True]


def test_parameters_of_the_interface_of_gymnax_are_set_and_its_limit_truncates():
    overrides = ["+env.kwargs.size=9", "+env.params.max_steps_in_episode=3"]
    env = make_eval(config_of("env._target_=support.custom_envs.GymnaxWalk", *overrides).env)
    last = walk_right(env, 3)[-1]
    assert bool(last.truncated[0])
    # Others may override is_truncated, or start in the middle.
    assert env.truncates_after is None
    assert not bool(last.terminated[0])
    near = config_of("env._target_=support.custom_envs.GymnaxWalk", "+env.kwargs.size=1", "+env.params.goal=5").env
    assert float(walk_right(make_eval(near), 1)[0].reward[0]) == 5.0


def test_a_mask_of_the_interface_of_gymnax_that_nothing_reads_is_reported(monkeypatch):
    assert unused_methods(custom.make(custom_envs.GymnaxWalk(), {}, {})) == ()
    monkeypatch.setattr(custom_envs.GymnaxWalk, "action_mask", lambda self, state, params: None, raising=False)
    (note,) = unused_methods(custom_envs.AddReward(custom.make(custom_envs.GymnaxWalk(), {}, {})))
    assert note.startswith("GymnaxWalk.action_mask is called by nothing, and actions are not masked: return")
    # Here, it helps to write observations.
    monkeypatch.setattr(custom_envs.Corridor, "action_mask", lambda self, state: None, raising=False)
    assert unused_methods(custom.make(custom_envs.Corridor(), {}, {})) == ()


def test_wrappers_of_ones_own_count_in_the_episode_return():
    add = "_target_: support.custom_envs.AddReward"
    wrappers = f"env.wrappers=[{{{add}, amount: 2.0}}, {{{add}}}]"
    env = make_eval(config_of("env._target_=support.custom_envs.Corridor", wrappers).env)
    np.testing.assert_array_equal([float(t.reward[0]) for t in walk_right(env, 4)], [3, 3, 3, 4])
    assert float(walk_right(env, 4)[-1].episode.episode_return[0]) == 13.0


@pytest.mark.parametrize(("name", "stacked"), [("AddReward", 1), ("AddRewardAlone", 2)])
def test_stacks_behind_a_wrapper_of_ones_own_are_no_longer_those_of_successive_steps(name, stacked):
    env = StackFrames(custom.make(custom_envs.Corridor(), {}, {}), 2)
    wrapped = custom.wrap(env, [{"_target_": f"support.custom_envs.{name}"}])
    assert wrapped.observation_space.stacked == stacked
    assert env.observation_space.stacked == 2
    nested = custom.wrap(env, [{"_target_": f"support.custom_envs.{name}AndMore"}])
    assert nested.observation_space.stacked == stacked


@pytest.mark.parametrize("env", ["env=gymnax/cartpole", "env=gymnasium/cartpole"])
def test_wrappers_are_checked_as_environments_are(env):
    config = config_of(env, "env.wrappers=[{_target_: support.custom_envs.WholeRewards}]").env
    with pytest.raises(FaultyEnvironmentError, match=r"reward of step is int32.*return a scalar .*float32 \(.*py"):
        make(config)


def test_wrappers_that_episodes_on_the_host_pass_by_are_refused():
    shifted = "env.wrappers=[{_target_: support.custom_envs.OwnReset}]"
    with pytest.raises(ConfigError, match="gymnasium starts its next episodes itself without calling OwnReset.reset"):
        make(config_of("env=gymnasium/cartpole", shifted).env)
    make(config_of("env=gymnax/cartpole", shifted).env)


class Counting(gymnasium.Env):
    """Counts its steps from a start value, and is truncated by `env.time_limit` alone."""

    observation_space = gymnasium.spaces.Box(0.0, 100.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, start=0):
        self.start = start

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.count = self.start
        return np.array([self.count], np.float32), {}

    def step(self, action):
        self.count += 1
        return np.array([self.count], np.float32), 1.0, False, False, {}


class Spaceless(Environment):
    reset = custom_envs.Spot.reset
    step = custom_envs.Spot.step


class Short(custom_envs.Spot):
    observation_space = Box(0.0, 1.0, (7,))


def broken():
    return {}["absent"]


def with_attribute(env, name, value):
    setattr(env, name, value)
    return env


DM_ENV = type("Environment", (), {"__module__": "dm_env.environment"})()


class Unfinished(gymnasium.Env):
    """Has no spaces."""


class Raising(custom_envs.GymnaxWalk):
    def reset_env(self, key, params):
        raise NameError("lost")


VECTORS, LOCKED = gymnasium.make_vec("CartPole-v1", num_envs=2), with_attribute(Counting(), "lock", threading.Lock())


@pytest.mark.parametrize(
    ("env", "changes", "words"),
    [
        (DM_ENV, {}, "not an environment in JAX: it has the interface of dm_env, .*: wrap it as a gymnasium.Env"),
        (object(), {}, "object is not an environment in JAX: subclass stoix_like.envs.Environment"),
        (Spaceless(), {}, "Spaceless has no observation_space: set it to a space of stoix_like.envs"),
        (Short(), {}, r"of reset is uint8.*, but the space is .*custom_envs.py:\d+\)"),
        (broken, {}, r"is invalid for broken: KeyError: 'absent' \(.*test_custom.py:\d+\)"),
        (LOCKED, {}, r"Counting cannot be copied \(.*lock.*\): pass its class"),
        (VECTORS, {}, "vector environment of gymnasium: pass its id, or one environment"),
        (Unfinished, {}, "Unfinished is not a gymnasium environment"),
        (Raising, {}, "Raising does not follow the interface of gymnax .*lost"),
        (Counting, {"kwargs": {"opponent": "self"}}, "Counting is not a pgx game: leave it out"),
        (Counting, {"kwargs": {"world": True}}, "world=True: Counting is not a game of several agents: leave it out"),
        (Match, {"kwargs": {"world": 1}}, "env.kwargs.world=1 is invalid for Match: it must be true or false"),
        (Counting, {"params": {"gravity": 3}}, "Counting has no parameters: use env.kwargs"),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_environment_and_arguments_without_effect_are_refused(env, changes, words):
    with pytest.raises(ConfigError, match=words):
        make(EnvConfig("own", **changes), env)


@pytest.mark.parametrize("env", [Counting(start=3), Counting, lambda start=3: Counting(start)])
def test_environments_of_gymnasium_are_vectorised_from_an_object_or_its_class(env):
    kwargs = {} if isinstance(env, Counting) else {"start": 3}
    envs = make_eval(EnvConfig("own", kwargs=kwargs, time_limit=2), env)
    keys = jax.random.split(jax.random.key(0), 2)
    state, first = envs.reset(keys)
    for _ in range(2):
        state, last = envs.step(keys, state, jnp.zeros(2, jnp.int32))
    envs.check()
    envs.close()
    np.testing.assert_array_equal(first.observation.agent_view, [[3.0], [3.0]])
    np.testing.assert_array_equal(last.next_observation.agent_view, [[5.0], [5.0]])
    assert last.truncated.all()


class Noisy(Counting):
    """Counts from a random start, from a generator that a reset may seed."""

    def __init__(self, seeded=False):
        super().__init__()
        self.rng, self.seeded = np.random.default_rng(0), seeded

    def reset(self, *, seed=None, options=None):
        if self.seeded and seed is not None:
            self.rng = np.random.default_rng(seed)
        self.start = self.rng.normal()
        return super().reset(seed=seed)


@pytest.mark.parametrize("env", [Noisy(), Noisy])
def test_a_generator_that_no_reset_seeds_is_a_fault(env):
    message = r"Noisy.rng is a random generator that reset\(seed=\) does not seed.*gymnasium's self.np_random"
    (note,) = make_eval(EnvConfig("own"), env).unwrapped.faults
    assert re.match(message, note)
    with pytest.raises(FaultyEnvironmentError, match=message):
        check_environment(env, num_steps=1)
    assert make_eval(EnvConfig("own", kwargs={"seeded": True}), Noisy).unwrapped.faults == ()


@pytest.mark.parametrize("env", [Counting(), Counting])
def test_only_an_environment_of_gymnasium_that_was_built_here_is_closed(env, monkeypatch):
    closed = []
    monkeypatch.setattr(Counting, "close", lambda self: closed.append(self))
    make_eval(EnvConfig("own"), env)
    assert len(closed) == (env is Counting)


@pytest.mark.parametrize(
    ("override", "refused"),
    [
        ("env._target_=support.custom_envs.Corridor", "env._target_"),
        ("env.wrappers=[{_target_: support.custom_envs.AddReward}]", "env.wrappers.0._target_"),
        ("env.wrappers=[{_target_: stoix_like.envs.wrappers.jax.jit}]", "env.wrappers.0._target_=stoix"),
        ("env.wrappers=[{_target_: stoix_like.envs.wrappers.ClipReward, limit: 1}]", ""),
    ],
)
def test_code_of_ones_own_needs_trust_and_wrappers_of_this_package_do_not(override, refused, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    write_config(tmp_path, config_of(override).resolved)
    message = f"{refused}.* is executed when the run is loaded.*--trust"
    with pytest.raises(ConfigError, match=message) if refused else contextlib.nullcontext():
        config_file.read_config(tmp_path)


def test_an_environment_cannot_be_given_twice():
    with pytest.raises(ConfigError, match="env is given twice"):
        stoix_like.train("ppo/ff_ppo", ["env=gymnax/cartpole"], env=custom_envs.Corridor)
    with pytest.raises(ConfigError, match="env.kwargs={'size': 3}: Corridor is built already"):
        stoix_like.train("ppo/ff_ppo", ["+env.kwargs.size=3"], env=custom_envs.Corridor())


def test_an_environment_that_names_possible_agents_stays_one_in_jax():
    env = custom_envs.Corridor(size=2)
    env.possible_agents = ["walker"]
    assert not make_eval(EnvConfig("own"), env).on_host


def test_a_class_with_arguments_is_passed_as_one_and_an_anonymous_function_has_a_name_for_paths():
    env = functools.partial(custom_envs.Corridor, size=2)
    assert as_overrides(env) == as_overrides(custom_envs.Corridor(size=2))
    config = config_of(*as_overrides(env))
    assert make(config.env, env).unwrapped.env.size == 2
    config = config_of(*as_overrides(lambda: custom_envs.Corridor()))
    assert (config.env.env_name, config.env.scenario.name) == ("own", "lambda")


@pytest.mark.slow
def test_a_class_is_recorded_by_its_import_path(tmp_path):
    result = stoix_like.train("ppo/ff_ppo", [*TINY, "+env.kwargs.size=2"], env=custom_envs.Corridor, run_dir=tmp_path)
    assert "_target_: support.custom_envs.Corridor" in (tmp_path / "config.yaml").read_text()
    assert result.summary["environment"] == "own/support.custom_envs.Corridor"
    assert stoix_like.resume(tmp_path, ["arch.total_timesteps=1024"]).summary["updates"] == 4
    assert stoix_like.load_policy(tmp_path)(Observation(jnp.zeros(1), jnp.array([False, True]))) == 1


@pytest.mark.slow
def test_an_object_is_passed_again(tmp_path):
    stoix_like.train("ppo/ff_ppo", TINY, env=custom_envs.Corridor(size=2), run_dir=tmp_path)
    # A policy knows the spaces from the run's directory.
    assert stoix_like.load_policy(tmp_path)(Observation(jnp.zeros(1), jnp.array([False, True]))) == 1
    for load in (stoix_like.resume, stoix_like.evaluate):
        with pytest.raises(ConfigError, match=r"env._target_ is not set: .* pass it from Python again, env=MyEnv\(\)"):
            load(tmp_path)
        with pytest.raises(ConfigError, match="env=GymnaxWalk: the run was trained on Corridor"):
            load(tmp_path, env=custom_envs.GymnaxWalk())
    env = custom_envs.Corridor(size=2)
    assert stoix_like.resume(tmp_path, ["arch.total_timesteps=1024"], env=env).summary["updates"] == 4
    assert len(stoix_like.evaluate(tmp_path, 3, env=env)["episode_returns"]) == 3
    stoix_like.load_policy(tmp_path, env=env)
