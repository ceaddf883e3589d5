import random
import re

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like import cli
from stoix_like.base_types import Observation
from stoix_like.envs import Box, Discrete, Environment, MultiDiscrete, Tuple, Vectorize, check, check_environment
from stoix_like.envs.check import check_interface
from stoix_like.envs.environment import restart, transition
from stoix_like.envs.factory import EnvConfig, ScenarioConfig, make, make_scenario
from stoix_like.envs.suites import probes
from stoix_like.envs.suites.goals import BitFlip
from stoix_like.errors import FaultyEnvironmentError
from support import custom_envs, scripted


class Sound(Environment):
    """Episodes of five steps from a random start in [0, 1]; each step adds 1."""

    observation_space = Box(0.0, 6.0, (1,))
    action_space = Discrete(2)

    def observe(self, x):
        return Observation(x[None], jnp.array([True, True]))

    def reset(self, key):
        x = jax.random.uniform(key)
        return {"x": x, "t": jnp.zeros((), jnp.int32)}, restart(self.observe(x))

    def step(self, key, state, action):
        state = {"x": state["x"] + 1, "t": state["t"] + 1}
        return state, transition(self.observe(state["x"]), 1.0, state["t"] >= 5, False)


def sound(**attributes):
    return type("Changed", (Sound,), attributes)


def observing(observe):
    return sound(observe=lambda self, x: observe(x))


def stepping(change):
    def step(self, key, state, action):
        return change(*Sound.step(self, key, state, action), action)

    return sound(step=step)


def replacing(**values):
    return stepping(lambda s, t, action: (s, t._replace(**{name: value(t, action) for name, value in values.items()})))


def starting(change):
    return sound(reset=lambda self, key: change(*Sound.reset(self, key)))


WrongShape = sound(observation_space=Box(0.0, 6.0, (2,)))
WrongDtype = observing(lambda x: Observation(jnp.asarray(x[None], jnp.int32)))
BadMask = observing(lambda x: Observation(x[None], jnp.ones(3, bool)))
VectorReward = replacing(reward=lambda t, _: t.reward[None])


class WeakState(Sound):
    def reset(self, key):
        state, timestep = super().reset(key)
        return {**state, "x": jax.lax.full_like(state["x"], 0.5)}, timestep

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return {**state, "t": jnp.asarray(1)}, timestep


class PythonBranch(Sound):
    def step(self, key, state, action):
        if action == 1:
            return super().step(key, state, action)
        return super().step(key, state, 1 - action)


class TruncatesEarly(replacing(truncated=lambda t, _: t.terminated, terminated=lambda t, _: t.terminated & False)):
    truncates_after = 6


class ResetsItself(Sound):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        fresh, start = self.reset(key)
        ended = timestep.terminated
        state = jax.tree.map(lambda new, old: jnp.where(ended, new, old), fresh, state)
        view = jnp.where(ended, start.observation.agent_view, timestep.observation.agent_view)
        observed = Observation(view, jnp.ones(2, bool))
        return state, timestep._replace(observation=observed, next_observation=observed)


class Impure(Sound):
    def __init__(self):
        self.random = random.Random(0)  # the same programs in every process, which are compiled once

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(reward=timestep.reward * self.random.random())


class ImpureBehindACallback(Sound):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        self.traces = getattr(self, "traces", 0) + 1
        traces = self.traces
        reward = timestep.reward
        changed = jax.pure_callback(lambda x: x + np.float32(traces), reward, reward, vmap_method="sequential")
        return state, timestep._replace(reward=changed)


class Charged(BitFlip):
    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(reward=timestep.reward - 0.1 * action)


FAULTS = [
    (sound(goal_reward=lambda self, achieved, desired: (1.0, False)), "lacks achieved_goal or desired_goal"),
    (Charged, "goal_reward of the goals after a step is not its reward"),
    (WrongShape, r"observation.agent_view of reset is float32\[1\], but the space is Box\(0, 6, \(2,\), float32\)"),
    (WrongDtype, r"observation.agent_view of reset is int32\[1\], but the space is Box"),
    (
        sound(observation_space=Box(0.0, 3.0, (1,))),
        r"the observation reaches from .* to 5.* and leaves the bounds of Box\(0, 3, \(1,\), float32\)",
    ),
    (
        observing(lambda x: Observation(jnp.where(x > 4, jnp.nan, x)[None])),
        "the observation is NaN or infinite after some actions",
    ),
    (sound(action_space=Box(0, 5, (2,), jnp.int32)), "action_space is a Box of int32: use MultiDiscrete for integers"),
    (BadMask, r"action_mask of reset is bool\[3\], but Discrete\(2\) needs bool\[2\]"),
    (observing(lambda x: Observation(x[None], jnp.full((2,), x < 4))), "action_mask is all False in some state"),
    (
        starting(lambda s, t: (s, restart(Observation(s["x"][None])))),
        "the time step has another structure after step than after reset",
    ),
    (
        stepping(lambda s, t, _: ({**s, "t": s["t"].astype(jnp.float32)}, t)),
        r"the state\['t'\] is int32\[\] after reset and float32\[\] after step",
    ),
    (WeakState, r"the state\['t'\] is int32\[\] after reset and int32\[\], weakly typed after step"),
    (
        stepping(lambda s, t, _: ({**s, "more": s["x"]}, t)),
        "the state has another structure after step than after reset",
    ),
    (PythonBranch, r"step cannot be compiled with jit and vmap: TracerBoolConversionError: .*\(use jax.nu"),
    (replacing(truncated=lambda t, _: t.terminated), "terminated and truncated are both True in some step"),
    (TruncatesEarly, "an episode is truncated after 5 steps, and truncates_after=6 is declared"),
    (VectorReward, r"reward of step is float32\[1\]: return a scalar of dtype float32"),
    (replacing(reward=lambda _, action: jnp.float32(1) / (action - 1)), "reward is NaN or infinite after some actions"),
    (ResetsItself, "next_observation at the end of .* is a start observation: .* do not reset in step"),
    (
        starting(lambda s, t: (s, t._replace(truncated=jnp.ones((), bool)))),
        "first time step of an episode is terminated or truncated: build it with restart",
    ),
    (Impure, "equal keys and actions give different results"),
    pytest.param(ImpureBehindACallback, "equal keys and actions give different results", marks=pytest.mark.slow),
    (stepping(lambda s, t, _: (s, t.observation, t.reward, t.terminated)), r"step must return \(state, TimeStep\)"),
    (observing(lambda x: x[None]), "observation of reset is a .*: wrap it in stoix_like.base_types.Observation"),
    (
        sound(action_space=gymnasium.spaces.Discrete(2)),
        "action_space is a gymnasium.*Discrete: use one of stoix_like.envs: Box, Discrete, MultiDiscrete",
    ),
    (sound(observation_space=None), "observation_space is missing: use one of stoix_like.envs"),
]


@pytest.mark.parametrize(("env", "words"), FAULTS)
def test_each_fault_is_one_sentence(env, words):
    with pytest.raises(FaultyEnvironmentError, match=words) as refused:
        check_environment(env(), num_steps=40)
    assert "\n" not in "".join(refused.value.faults)
    assert len(refused.value.faults) <= 2


def test_a_declared_shape_is_compared_with_that_of_observations():
    with pytest.raises(FaultyEnvironmentError, match=r"GymnaxNarrow returns observations of shape .*shape \[2\]: make"):
        check_environment(custom_envs.GymnaxNarrow())
    # Training takes the observations as they are, and says so.
    env = make(EnvConfig("own", _target_="support.custom_envs.GymnaxNarrow"))
    assert env.observation_space.shape == (1,)
    assert [fault.startswith("GymnaxNarrow returns") for fault in env.unwrapped.faults] == [True]


@pytest.mark.slow
def test_an_environment_of_gymnasium_is_checked_as_well():
    assert check_environment(gymnasium.make("CartPole-v1"), num_steps=40).num_episodes > 0


@pytest.mark.parametrize(("env", "method"), [(WrongShape, Sound.reset), (VectorReward, VectorReward.step)])
def test_faults_name_the_method_of_the_environment(env, method):
    with pytest.raises(FaultyEnvironmentError, match=rf"\({__file__}:{method.__code__.co_firstlineno}\)"):
        check_interface(Vectorize(env()))


@pytest.mark.parametrize("env", [WeakState, sound(observation_space=Box(0.0, 6.0, (1,), np.float64)), WrongDtype])
def test_training_takes_what_jax_converts(env):
    check_interface(Vectorize(env()))


def test_errors_name_the_line_that_raised_them():
    line = PythonBranch.step.__code__.co_firstlineno
    with pytest.raises(FaultyEnvironmentError, match=rf"\({__file__}:(\d+)\)") as refused:
        check_interface(Vectorize(PythonBranch()))
    assert line < int(re.search(r"\.py:(\d+)", str(refused.value))[1]) < line + 5


def test_episodes_that_never_end_are_reported():
    assert "No episode ended" in str(check_environment(Sound(), num_steps=1))


@pytest.mark.parametrize(
    "env",
    [
        Sound(),
        custom_envs.GymnaxWalk(2),
        *(pytest.param(env, marks=pytest.mark.slow) for env in (Sound, custom_envs.Corridor(), Vectorize(Sound()))),
    ],
)
def test_sound_environments_pass(env):
    checked = check_environment(env, num_steps=40)
    assert checked.num_episodes >= 5
    assert "no faults in 3 environments × 40 random steps" in str(checked)


@pytest.mark.slow
@pytest.mark.parametrize("fails", [False, True])
def test_environments_on_the_host_play_their_own_episodes(fails):
    scripted.Scripted.open_environments = 0
    env = make_scenario(
        EnvConfig("gymnasium", ScenarioConfig("support.scripted:Scripted-v0"), kwargs={"fail_at": 4 if fails else None})
    )
    if fails:
        with pytest.raises(FaultyEnvironmentError, match="Scripted-v0 failed: RuntimeError: the simulator exploded"):
            check_environment(env, num_steps=20)
    else:
        check_environment(env, num_steps=20)
        # One batch for both rollouts, and one of start states.
        assert scripted.Scripted.open_environments == check.NUM_ENVS + check._NUM_STARTS
    env.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", probes.PROBES)
def test_probes_pass(name):
    check_environment(probes.make(name, {}, {}))


SPACES = [Tuple([Discrete(2), Box(0.0, 1.0, ()), Discrete(3)]), MultiDiscrete((2, 3))]


@pytest.mark.slow
@pytest.mark.parametrize("space", SPACES)
def test_masks_of_several_entries(space):
    class Entries(Sound):
        action_space = space

        def observe(self, x):
            return Observation(x[None], jnp.array([True, False, *np.full(3, self.legal)]))

    Entries.legal = True
    check_environment(Entries(), num_steps=10)
    Entries.legal = False
    with pytest.raises(FaultyEnvironmentError, match="action_mask is all False"):
        check_environment(Entries(), num_steps=10)


CORRIDOR = "env._target_=support.custom_envs.Corridor"


@pytest.mark.slow
def test_the_command_counts_episodes_that_env_time_limit_truncates(capsys):
    # Without a limit, a walk of a hundred steps ends in none of ten.
    arguments = ["check-env", CORRIDOR, "+env.kwargs.size=100", "+env.kwargs.limit=100"]
    cli.main([*arguments, "--steps", "10"])
    assert "(0 episodes)" in (out := capsys.readouterr().out)
    assert "truncate with env.time_limit" in out
    cli.main([*arguments, "--steps", "10", "env.time_limit=5"])
    assert "(6 episodes)" in (out := capsys.readouterr().out)
    assert "env.time_limit" not in out


@pytest.mark.slow
def test_the_command_prints_one_line_per_fault_and_exits_with_code_1(capfd, refused):
    cli.main(["check-env", CORRIDOR, "+env.kwargs.size=2", "--steps", "50", "env.time_limit=3"])
    out = capfd.readouterr().out
    assert out.startswith("own/support.custom_envs.Corridor: no faults in 3 environments × 50 random steps")
    assert out.count("\n") == 1
    with pytest.raises(SystemExit) as stopped:
        cli.main(["check-env", f"env._target_={__name__}.BadMask"])
    assert stopped.value.code == 1
    assert "action_mask" in capfd.readouterr().out
    assert refused("check-env", "env=gymnax", "env.scenario.name=CartPol-v1")
