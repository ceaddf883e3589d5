import logging
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import Discrete, EnvConfig, Environment, ScenarioConfig, list_scenarios, make, make_eval, suites
from stoix_like.errors import ConfigError, MissingExtraError
from support.compiled import run
from support.nim import Nim
from support.set_ups import config_of

ADD = {"_target_": "support.custom_envs.AddReward"}


def composed(*overrides):
    return config_of(*overrides).env


def of(suite, name, **changes):
    return EnvConfig(suite, ScenarioConfig(name), **changes)


def probe(name="value", **changes):
    return of("probe", name, **changes)


def own(name="Corridor", **changes):
    return of("own", name, _target_=f"support.custom_envs.{name}", **changes)


def nim(**changes):
    return of("own", "Nim", _target_="support.nim.Nim", **changes)


def test_scenario_without_a_yaml_is_built_by_name():
    config = composed("env=gymnax", "env.scenario.name=Acrobot-v1", "+env.params.max_steps_in_episode=3")
    assert config == of("gymnax", "Acrobot-v1", params={"max_steps_in_episode": 3})
    assert make(config).action_space == Discrete(3)


def test_yaml_defaults_are_the_dataclass_defaults():
    assert composed("env=probe/value") == probe()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (of("gymnx", "CartPole-v1"), "env.env_name='gymnx' .*'gymnax'"),
        (of("gymnax", "CartPole-v1", assets="models"), "env.assets=models has no effect: gymnax"),
        (EnvConfig("gymnax"), "env=gymnax names no environment: .*choose from Acrobot-v1"),
        (probe(time_in_observation=True), "env.time_in_observation=True needs a time limit: set env.time_limit"),
        (probe("multi_discrete", _target_="mine.Env"), "env._target_=mine.Env does not fit env.env_name=probe"),
        (EnvConfig("own"), "env._target_ is not set"),
        (EnvConfig("own", _target_="mine.Env"), "env._target_=mine.Env cannot be imported .*No module named 'mine'"),
        (own(kwargs={"sise": 3}), "env.kwargs.sise=3 is not a parameter of support.custom_envs.Corridor: .*'size'"),
        (own(kwargs={"size": 0}), "env.kwargs={'size': 0} is invalid .*: size=0 must be at least 1"),
        (own(params={"size": 3}), "env.params={'size': 3}: Corridor has no parameters: use env.kwargs"),
        (own("GymnaxWalk", params={"gaol": 3}), "env.params.gaol=3 is not a parameter of GymnaxWalk: .*'goal'"),
        (probe(wrappers=({"size": 3},)), r"env.wrappers\[0\]={'size': 3} has no _target_"),
        (probe(wrappers=({**ADD, "sum": 3},)), r"env.wrappers\[0\].sum=3 is not a parameter of .*: choose from amount"),
        (probe(wrappers=({"_target_": "support.custom_envs.not_a_wrapper"},)), "not_a_wrapper returned a NoneType"),
    ],
)
def test_unknown_names_and_invalid_values_raise(config, message):
    with pytest.raises(ConfigError, match=message):
        make(config)


@pytest.mark.parametrize(
    ("package", "changes", "words"),
    [
        ("gymnax", {}, r"env.env_name=gymnax needs .*'gymnax'.*\[envs\]"),
        ("envpool", {"vectorization": "envpool"}, r"env.vectorization=envpool needs .*pip install .*\[envpool\]"),
        ("kinetix", {}, r"\[kinetix\]', then pip install --no-deps kinetix-env"),
        ("jaxmarl", {}, r"env.env_name=jaxmarl needs .*\[jaxmarl\]"),
        ("robotics", {}, r"env.env_name=robotics needs the package 'mujoco': .*\[robotics\]"),
    ],
)
def test_missing_package_error_names_the_extra(package, changes, words, monkeypatch):
    monkeypatch.setitem(sys.modules, (package, *suites.SUITES[package].engines)[-1], None)
    monkeypatch.delitem(sys.modules, f"stoix_like.envs.suites.{package}", raising=False)
    with pytest.raises(MissingExtraError, match=words):
        make(of("gymnasium" if changes else package, "CartPole-v1", **changes))
    monkeypatch.setattr(suites, "SUITES", {name: suites.SUITES[name] for name in (package, "probe")})
    scenarios = list_scenarios()
    assert scenarios.pop(package) == []
    assert scenarios["probe"]


def test_missing_module_of_another_package_propagates(monkeypatch):
    monkeypatch.setitem(suites.SUITES, "broken", suites.Suite("stoix_like.envs.broken", "gymnax", "envs"))
    with pytest.raises(ModuleNotFoundError, match=r"stoix_like\.envs\.broken"):
        make(of("broken", "x"))


def wrapper_names(env):
    names = []
    while hasattr(env, "env"):
        names.append(type(env).__name__)
        env = env.env
    return names


def test_disabled_wrappers_are_not_applied():
    assert wrapper_names(make(probe())) == ["FreshReset", "RecordEpisode", "Vectorize"]
    assert wrapper_names(make_eval(probe())) == ["RecordEpisode", "Vectorize"]


def test_wrappers_have_a_fixed_order():
    everything = probe(
        "continuous_policy", auto_reset="pool", time_limit=3, frame_stack=2, step_count=True, reward_scale=2.0,
        reward_clip=1.0, flatten_observation=True, sticky_actions=0.25, action_repeat=2, random_start_steps=5,
        observation_clip=1.0, time_in_observation=True,
        wrappers=tuple({**ADD, "amount": amount} for amount in (2.0, 1.0)),
    )  # fmt: skip
    # No FlattenObservation: the observation is already a vector.
    inner = [
        "RecordEpisode", "CountSteps", "AddTime", "StackFrames", "ClipObservation", "ClipActions", "RescaleActions",
        "TimeLimit", "RepeatActions", "StickyActions",
    ]  # fmt: skip
    own = ["AddReward", "AddReward", "Vectorize"]
    assert wrapper_names(make(everything)) == ["PoolReset", "ClipReward", "ScaleReward", *inner, "RandomStarts", *own]
    assert wrapper_names(make_eval(everything)) == [*inner, *own]
    dictionary = of("jumanji", "Tetris-v0", flatten_observation=True, observation_clip=0.5)
    assert wrapper_names(make_eval(dictionary))[:3] == ["RecordEpisode", "ClipObservation", "FlattenObservation"]
    image = of("gymnax", "Catch-bsuite", flatten_observation=True)
    assert make(image).observation_space.shape == (50,)


def test_automatic_reset_resets_every_wrapper():
    env = make(probe("time_limit", kwargs={"limit": 9}, time_limit=2, frame_stack=2, step_count=True, reward_scale=0.5))
    keys = jax.random.split(jax.random.key(0), 1)
    state, _ = env.reset(keys)
    timesteps = []
    for _ in range(4):
        state, timestep = run(env.step, keys, state, jnp.zeros((1,), jnp.int32))
        timesteps.append(timestep)
    assert [bool(t.truncated[0]) for t in timesteps] == [False, True, False, True]
    assert [int(t.observation.step_count[0]) for t in timesteps] == [1, 0, 1, 0]
    assert [int(t.next_observation.step_count[0]) for t in timesteps] == [1, 2, 1, 2]
    np.testing.assert_allclose([float(t.reward[0]) for t in timesteps], 0.5)
    np.testing.assert_allclose([float(t.episode.episode_return[0]) for t in timesteps], [1.0, 2.0, 1.0, 2.0])


class Lonely(Nim):
    against = Environment.against


LIMIT = {"_target_": "stoix_like.envs.wrappers.TimeLimit", "limit": 4}


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (probe(eval_opponent="my.player"), "env.eval_opponent=my.player has no effect: it .*opponent=self"),
        (nim(step_count=True), "env.step_count=True mixes the two players of Nim: leave it out"),
        (nim(wrappers=[LIMIT]), "env.wrappers: TimeLimit mixes the two players of Nim: leave it out"),
        (nim(eval_opponent="support.nim.take"), r"failed \(.*nim.py:\d+\): it must be a function \(key, game\) -> act"),
    ],
)
def test_opponents_that_cannot_play_are_refused(config, words):
    with pytest.raises(ConfigError, match=words):
        make(config), make_eval(config)


@pytest.mark.parametrize(
    ("game", "words"),
    [
        (
            type("Silent", (Nim,), {"against": lambda self, opponent: None}),
            r"failed \(AttributeError: .*: against must re",
        ),
        (Lonely, "env.eval_opponent=random: Lonely has no opponents: define its `against`"),
    ],
)
def test_games_without_opponents_are_refused(game, words):
    with pytest.raises(ConfigError, match=words):
        make_eval(of("own", game.__name__), game())


def test_the_device_that_mjx_logs_is_left_out(caplog):
    with caplog.at_level(logging.INFO):
        logging.info("Using JAX default device: %s.", "cpu:0")
        logging.info("another line")
    assert caplog.messages == ["another line"]


@pytest.mark.parametrize(
    ("wrapper", "arguments", "instead"),
    [
        ("TimeLimit", {"limit": 5}, "use env.time_limit"),
        ("RepeatActions", {"repeats": 5}, "leave it out"),
        ("ReachEntries", {"entries": [0], "goal": [0.3]}, "leave it out"),
    ],
)
def test_training_on_the_host_refuses_wrappers_that_start_or_end_episodes(wrapper, arguments, instead):
    entry = {"_target_": f"stoix_like.envs.wrappers.{wrapper}", **arguments}
    config = of("gymnasium", "CartPole-v1", wrappers=(entry,))
    with pytest.raises(ConfigError, match=f"{wrapper} does not fit gymnasium, which resets itself: {instead}"):
        make(config)
