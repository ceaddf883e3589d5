import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from stoix_like.errors import ConfigError
from support import conformance, menagerie, randomized
from support.lazily import Lazy

pytestmark = pytest.mark.slow

adapter = Lazy("stoix_like.envs.suites.playground")
mujoco_playground = Lazy("mujoco_playground")
# The quickest to compile: no contacts.
CHEAP = "PendulumSwingup"


def config(name=CHEAP, **changes):
    return conformance.env_config("playground", name, **changes)


def test_actions_lie_within_the_bounds_of_the_actuators():
    for name in adapter.dm_control_suite.ALL_ENVS:
        env = adapter.dm_control_suite.load(name, config_overrides={"impl": "jax"})
        assert (env.mj_model.actuator_ctrlrange == [-1, 1]).all(), name


@pytest.mark.parametrize("name", [CHEAP, "CartpoleBalance"])
def test_episode_equals_one_of_the_suite(name):
    num_steps = 20
    env = make_eval(config(name, params={"episode_length": num_steps}))
    reference = mujoco_playground.dm_control_suite.load(name, config_overrides={"impl": "jax"})
    actions = jax.random.uniform(jax.random.key(4), (num_steps, 1, reference.action_size), minval=-1.0)
    steps, done = conformance.check_physics(env, reference, actions)
    assert len(done) == num_steps
    assert not steps.terminated.any()
    np.testing.assert_array_equal(steps.truncated[:, 0], [False] * (num_steps - 1) + [True])


def test_randomised_environments_equal_those_of_the_suite():
    changes = {"randomization": "support.randomized.body_masses", "randomize_evaluation": True}
    env = make_eval(config("CartpoleBalance", **changes))
    inner = mujoco_playground.dm_control_suite.load("CartpoleBalance", config_overrides={"impl": "jax"})
    wrapper = mujoco_playground.wrapper.BraxDomainRandomizationVmapWrapper
    randomized.assert_same_steps(env, lambda randomize: wrapper(inner, randomize), randomized.body_masses)


def test_parameters_reach_the_simulation():
    """A control step of twice the length moves a pendulum about twice as far."""
    moved = {}
    for ctrl_dt in (0.02, 0.04):
        env = make_eval(config(params={"ctrl_dt": ctrl_dt}))
        keys = jax.random.split(jax.random.key(0), 1)
        state, first = jax.jit(env.reset)(keys)
        _, timestep = jax.jit(env.step)(keys, state, jnp.ones((1, 1)))
        moved[ctrl_dt] = np.abs(timestep.next_observation.agent_view - first.observation.agent_view)[0, -1]
    np.testing.assert_allclose(moved[0.04] / moved[0.02], 2.0, rtol=0.1)


def test_actions_are_repeated_as_the_suite_trains_a_task(monkeypatch):
    repeated = mujoco_playground.registry.get_default_config("CartpoleBalance")
    repeated.action_repeat, repeated.episode_length = 3, 7
    monkeypatch.setattr(mujoco_playground.registry, "get_default_config", lambda name: repeated)
    _, _, steps = conformance.rollout(make_eval(config("CartpoleBalance")), 3)
    # 7 steps of the suite are 3 decisions, and a balanced pole pays about one for each step.
    assert steps.truncated.sum(0).tolist() == [1] * steps.truncated.shape[1]
    assert steps.truncated[2].all()
    assert (steps.reward[0] > 2.0).all()


@pytest.mark.parametrize("name", menagerie.ROBOTS)
def test_robots_run_on_models_from_a_directory(name):
    env = make_eval(config(name, assets=menagerie.models_of(menagerie.ROBOTS[name])))
    conformance.check_carry(env)
    if name != "PandaPickCube":
        assert set(env.observation_space.spaces) == {"state", "privileged_state"}


def test_a_robot_is_randomised_as_the_suite_registers_it():
    assets = menagerie.models_of("unitree_go1")
    changes = {"randomization": "registered", "randomize_evaluation": True, "assets": assets}
    env = make_eval(config("Go1JoystickFlatTerrain", **changes))
    conformance.check_carry(env)
    keys = jax.random.split(jax.random.key(0), 3)
    parameters = jax.eval_shape(env.reset, keys)[0].env_state.env_state.parameters
    # Friction of the floor, position and mass of bodies, initial pose, friction and inertia of joints.
    assert len(parameters) == 6
    assert {leaf.shape[0] for leaf in parameters} == {3}
    with pytest.raises(ConfigError, match="registered: no randomisation is registered for playground/PandaPickCube"):
        make(config("PandaPickCube", randomization="registered", assets=menagerie.models_of("franka_emika_panda")))


def test_models_that_are_missing_raise_and_nothing_is_downloaded(tmp_path):
    name, clone = "Go1JoystickFlatTerrain", "which no run downloads: git clone https://.*/mujoco_menagerie PATH, git -C"
    with pytest.raises(ConfigError, match=f"env.scenario.name={name} needs models of mujoco_menagerie, {clone}"):
        make(config(name))
    with pytest.raises(ConfigError, match=f"{tmp_path}/none is not a directory of mujoco_menagerie, {clone}"):
        make(config(name, assets=f"{tmp_path}/none"))
    with pytest.raises(ConfigError, match=f"env.assets={tmp_path} does not fit {name} .*at commit [0-9a-f]{{40}}"):
        make(config(name, assets=str(tmp_path)))
    with pytest.raises(ConfigError, match=f"env.assets={tmp_path} has no effect: the model of {CHEAP}"):
        make(config(assets=str(tmp_path)))
    models = sys.modules[mujoco_playground.MjxEnv.__module__]
    assert not models.MENAGERIE_PATH.exists()
