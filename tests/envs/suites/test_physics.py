import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make
from support import conformance
from support.lazily import Lazy

pytestmark = pytest.mark.slow
mujoco, brax_envs = map(Lazy, ("mujoco", "brax.envs"))


# The quickest to compile, apart from `fast`, which has no physics.
CHEAP = "inverted_pendulum"


def config(name=CHEAP, **changes):
    return conformance.env_config("brax", name, **changes)


@pytest.fixture
def registered(monkeypatch):
    class Diverging(brax_envs.Env):
        """Observes the number of steps, and NaN from the third step on."""

        observation_size, action_size, backend = 1, 1, "none"

        def reset(self, rng):
            zero = jnp.zeros(())
            return brax_envs.State(None, jnp.zeros(1), zero, zero, {"steps": zero}, {})

        def step(self, state, action):
            state.metrics["steps"] = state.metrics["steps"] + 1
            steps = state.metrics["steps"]
            value = jnp.where(steps >= 3, jnp.nan, steps)
            return state.replace(obs=value[None], reward=value)

    class Truncating(Diverging):
        """Reports its own time limit of two steps as brax does."""

        def reset(self, rng):
            state = super().reset(rng)
            return state.replace(info={"truncation": state.done})

        def step(self, state, action):
            state = super().step(state, action)
            at_limit = jnp.where(state.metrics["steps"] >= 2, 1.0, 0.0)
            return state.replace(done=at_limit, info={"truncation": at_limit})

    class Drawing(Truncating):
        """Observes a number that it draws from the key in its state, as robots of Playground draw their commands."""

        def reset(self, rng):
            state = super().reset(rng)
            return state.replace(info=state.info | {"rng": rng})

        def step(self, state, action):
            rng, draw = jax.random.split(state.info["rng"])
            state = super().step(state, action)
            return state.replace(obs=jax.random.uniform(draw, (1,)), info=state.info | {"rng": rng})

    monkeypatch.setitem(brax_envs._envs, "drawing", Drawing)
    monkeypatch.setitem(brax_envs._envs, "diverging", Diverging)
    monkeypatch.setitem(brax_envs._envs, "truncating", Truncating)


@pytest.mark.usefixtures("registered")
def test_a_diverged_simulation_terminates_with_its_last_finite_observation():
    _, _, steps = conformance.rollout(make(config("diverging")), 6)
    np.testing.assert_array_equal(steps.terminated[:, 0], [False, False, True] * 2)
    assert not steps.truncated.any()
    np.testing.assert_array_equal(steps.next_observation.agent_view[:, 0, 0], [1, 2, 2] * 2)
    np.testing.assert_array_equal(steps.observation.agent_view[:, 0, 0], [1, 2, 0] * 2)
    np.testing.assert_array_equal(steps.reward[:, 0], [1, 2, 0] * 2)


@pytest.mark.usefixtures("registered")
def test_a_truncation_that_the_environment_reports_is_not_a_termination():
    _, _, steps = conformance.rollout(make(config("truncating")), 4)
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.truncated[:, 0], [False, True] * 2)


@pytest.mark.usefixtures("registered")
def test_a_start_state_that_is_used_again_does_not_repeat_its_random_events():
    _, _, steps = conformance.rollout(make(config("drawing", auto_reset="cached")), 6)
    assert len(np.unique(steps.next_observation.agent_view[:, 0])) == 6
