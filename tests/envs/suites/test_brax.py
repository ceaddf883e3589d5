"""Tests of the adapter for brax against brax itself."""

import warnings
from types import SimpleNamespace

import conformance
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lazily import Lazy
from matplotlib.figure import Figure

from stoix_like.envs import Dict, list_scenarios, make, make_eval
from stoix_like.envs.factory import make_drawn
from stoix_like.envs.scenes import bodies
from stoix_like.envs.scenes.base import Recording
from stoix_like.errors import ConfigError

pytestmark = pytest.mark.slow

mujoco, brax_envs = map(Lazy, ("mujoco", "brax.envs"))
# The quickest to compile, apart from `fast`, which has no physics.
CHEAP = "inverted_pendulum"


def config(name=CHEAP, **changes):
    return conformance.env_config("brax", name, **changes)


def bare(name, **kwargs):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Brax System", UserWarning)
        return brax_envs.get_environment(name, **kwargs)


def test_all_registered_environments_are_listed():
    assert set(list_scenarios()["brax"]) == set(brax_envs._envs)


def test_bodies_are_drawn_in_their_positions_without_opengl(monkeypatch):
    monkeypatch.setattr(bodies, "_gl_context", lambda: None)
    env = make_drawn(config())
    state = jax.eval_shape(lambda key: env.native_state(env.reset(key[None])[0]), jax.random.key(0))
    # The pole is upright, then leans to the right.
    poses = np.array([[0.0, 0.0], [0.0, np.pi / 4]])
    states = state.replace(pipeline_state=SimpleNamespace(q=poses))
    monkeypatch.setattr(bodies, "entry_of", lambda states, entry: states.replace(pipeline_state=at(poses[entry])))
    axes = Figure().add_subplot()
    update = env.scene().draw(axes, Recording(np.arange(2), states, None, np.zeros(2), np.zeros(2)))
    tips = []
    for entry in range(2):
        update(entry)
        corners = np.concatenate([patch.get_xy() for patch in axes.patches])
        tips.append(corners[corners[:, 1].argmax()])
    # Its joint is at the origin; brax's model is 0.6 long, and the radius of its end is 0.049.
    assert tips[0] == pytest.approx([0.0, 0.649], abs=0.03)
    assert tips[1] == pytest.approx([0.6 / np.sqrt(2), 0.6 / np.sqrt(2) + 0.049], abs=0.03)


def at(q):
    return SimpleNamespace(q=q)


def test_mujoco_renders_bodies_where_opengl_starts():
    env = make_drawn(config())
    camera = bodies._open_camera(env.unwrapped.env._model)
    if camera is None:
        pytest.skip("OpenGL cannot start without a display")
    data = mujoco.MjData(env.unwrapped.env._model)
    pictures = []
    for angle in (0.0, 0.5):
        data.qpos[1] = angle
        mujoco.mj_forward(env.unwrapped.env._model, data)
        pictures.append(camera.picture(data))
    assert pictures[0].shape == (360, 480, 3)
    assert (pictures[0] != pictures[1]).any()


def test_time_limit_truncates_and_does_not_terminate():
    conformance.check_time_limit("brax", "fast", 5, params={"episode_length": 5})


def test_default_time_limit_is_that_of_brax():
    conformance.check_time_limit("brax", "fast", 1000)


def test_environment_without_physics_conforms():
    first, _, steps = conformance.check("brax", "fast", 60, params={"episode_length": 20})
    assert first.observation.agent_view.shape == (3, 2)
    np.testing.assert_array_equal(np.flatnonzero(steps.truncated[:, 0]), [19, 39, 59])


def test_dictionaries_of_observations_conform():
    kwargs = {"obs_mode": "dict_state", "asymmetric_obs": True}
    env = make(config("fast", kwargs=kwargs))
    assert isinstance(env.observation_space, Dict)
    assert {name: space.shape for name, space in env.observation_space.spaces.items()} == {
        "privileged_state": (4,),
        "state": (2,),
    }
    conformance.check("brax", "fast", 25, kwargs=kwargs, params={"episode_length": 20})


# Physics costs milliseconds per step in unoptimised programs: 300 steps instead of 2,000, with several episodes.
@pytest.mark.parametrize("name", [CHEAP, "reacher", "hopper"])
def test_environment_conforms(name):
    _, _, steps = conformance.check("brax", name, 300, params={"episode_length": 100})
    if name == "reacher":
        assert not steps.terminated.any()
        assert steps.truncated.sum() == 9
    else:
        assert steps.terminated.any()


@pytest.mark.parametrize("name", [CHEAP, "reacher"])
def test_episode_equals_one_of_brax(name):
    env, reference = make_eval(config(name)), bare(name)
    # Weak actions: the pole falls within 3 steps of strong ones.
    actions = jax.random.uniform(jax.random.key(4), (20, 1, reference.action_size), minval=-0.2, maxval=0.2)
    steps, done = conformance.check_physics(env, reference, actions)
    np.testing.assert_array_equal(steps.terminated[: len(done), 0], done)
    assert not steps.truncated[: len(done), 0].any()
    assert len(done) >= 5


def test_an_unhealthy_hopper_terminates_only_if_configured():
    steps = {}
    for terminate in (True, False):
        env = make_eval(config("hopper", kwargs={"terminate_when_unhealthy": terminate}))
        _, _, steps[terminate] = conformance.rollout(env, 150)
    assert steps[True].terminated.any(0).all()
    assert not steps[False].terminated.any()
    assert not steps[True].truncated.any()


def test_termination_wins_over_the_limit():
    name = CHEAP
    _, _, steps = conformance.rollout(make_eval(config(name)), 100)
    ends = steps.terminated.argmax(0)
    assert steps.terminated.any(0).all()
    env = make_eval(config(name, params={"episode_length": int(ends[0]) + 1}))
    _, _, limited = conformance.rollout(env, 100)
    assert limited.terminated[ends[0], 0]
    assert not limited.truncated[ends[0], 0]


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


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("antt", {}, "env.scenario.name='antt' is not a scenario of brax: did you mean 'ant'"),
        (CHEAP, {"params": {"episode_lenght": 3}}, "env.params.episode_lenght=3 .*'episode_length'"),
        (CHEAP, {"params": {"episode_length": 0}}, "env.params.episode_length=0 must be at least 1"),
        (
            CHEAP,
            {"params": {"episode_length": 1e12}},
            "env.params.episode_length=1000000000000 is too large for 32-bit",
        ),
        ("ant", {"kwargs": {"ctrl_cost_weight": float("nan")}}, "env.kwargs.ctrl_cost_weight=nan is invalid for ant"),
        (CHEAP, {"params": {"episode_length": 2.5}}, "env.params.episode_length=2.5 is invalid .*1000"),
        (CHEAP, {"kwargs": {"backnd": "mjx"}}, "env.kwargs.backnd='mjx' .*'backend'"),
        (CHEAP, {"kwargs": {"backend": "mujoco"}}, "env.kwargs=.*mujoco.* is invalid .*'generalized'"),
        ("ant", {"kwargs": {"use_contact_forces": True}}, "env.kwargs=.*is invalid for ant: use_contact_forces"),
    ],
)
def test_invalid_arguments_raise(name, changes, message):
    with pytest.raises(ConfigError, match=message):
        make(config(name, **changes))


@pytest.mark.parametrize("backend", ["spring", "positional", "mjx"])
def test_other_backends_run(backend):
    _, _, steps = conformance.rollout(make(config(kwargs={"backend": backend})), 5)
    assert np.isfinite(steps.observation.agent_view).all()
    conformance.check_carry(make_eval(config(kwargs={"backend": backend})))
