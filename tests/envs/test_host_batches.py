import jax
import numpy as np
import pytest
from conformance import rollout
from scripted import Scripted

from stoix_like.envs import EnvConfig, ScenarioConfig, make, make_eval
from stoix_like.errors import HostEnvironmentError

N, T = 3, 40


def config(**changes):
    return EnvConfig("gymnasium", ScenarioConfig("scripted:Scripted-v0"), **changes)


def test_released_environments_are_reused_and_all_are_closed():
    Scripted.open_environments = 0
    env = make_eval(config())

    @jax.jit
    def play(key):
        state, timestep = env.reset(jax.random.split(key, N))
        env.release(state)
        return timestep.observation.agent_view

    first, second = play(jax.random.key(0)), play(jax.random.key(1))
    again = play(jax.random.key(0))
    assert Scripted.open_environments == N
    np.testing.assert_array_equal(first, again)
    assert (np.asarray(first) != np.asarray(second)).any()
    env.close()
    assert Scripted.open_environments == 0


def test_an_exception_on_the_host_is_raised_by_check():
    env = make(config(kwargs={"fail_at": 4}))
    _, _, steps = rollout(env, T)
    with pytest.raises(
        HostEnvironmentError, match="gymnasium/scripted:Scripted-v0 failed: RuntimeError: the simulator"
    ):
        env.check()
    # Episode 1, the first of at least 4 steps, starts after the first step.
    assert steps.terminated[4:].all()
    env.check()
    env.close()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("hang", r"Scripted-v0 failed: no answer within 0.5 seconds \(env.timeout\)"),
        ("observation", "Scripted-v0 failed: environment 0 of 3 returned NaN in its observation"),
        pytest.param(
            "reward", "Scripted-v0 failed: environment 0 of 3 returned NaN in its reward", marks=pytest.mark.slow
        ),
    ],
)
def test_a_faulty_environment_is_reported_by_check(fault, message):
    env = make(config(kwargs={"fail_at": 4, "fault": fault}, timeout=0.5 if fault == "hang" else 300.0))
    _, _, steps = rollout(env, 8)
    with pytest.raises(HostEnvironmentError, match=message):
        env.check()
    assert not steps.terminated[:4].all()
    assert steps.terminated[4:].all()
    env.close()
