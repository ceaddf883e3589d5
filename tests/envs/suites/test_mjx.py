"""Tests of gymnasium's MuJoCo tasks in the compiled program, step by step against gymnasium itself."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.envs import make, make_eval
from support import conformance
from support.lazily import Lazy

gymnasium, mjx = map(Lazy, ("gymnasium", "stoix_like.envs.suites.mjx"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.suites,
    pytest.mark.filterwarnings("ignore:Accessing `.*` directly from `Data` is deprecated:DeprecationWarning"),
]
# What observation and reward of one step from the same state may differ by, in half and in 95 % of the steps. Where a
# capsule stands steeper than 60 degrees on a plane, as the feet of the ant do, MJX turns the pyramid of friction to the
# axes of the world, and MuJoCo to the capsule: https://github.com/google-deepmind/mujoco/issues/2774
TOLERANCES = {
    **dict.fromkeys((f"{name}-v5" for name in ("Humanoid", "HumanoidStandup")), (1e-4, 1e-3)),
    **dict.fromkeys((f"{name}-v5" for name in ("HalfCheetah", "Hopper", "Walker2d")), (1e-5, 1e-4)),
    **dict.fromkeys((f"{name}-v5" for name in ("InvertedDoublePendulum", "InvertedPendulum")), (1e-5, 1e-5)),
    **dict.fromkeys((f"{name}-v5" for name in ("Pusher", "Reacher", "Swimmer")), (1e-5, 1e-5)),
    "Ant-v5": (1e-4, 0.3),
}


def env_of(name, **changes):
    return conformance.env_config("mjx", name, **changes)


def task_of(env):
    while not isinstance(env, mjx.MjxTask):
        env = env.env
    return env


def check_steps(name, starts, steps, cone=0, **kwargs):
    """Compare single steps from the states of gymnasium: it continues with its own."""
    native, task = gymnasium.make(name, **kwargs).unwrapped, task_of(make_eval(env_of(name, kwargs=kwargs)).unwrapped)
    native.model.opt.cone = cone
    task._model = mjx._put(native.model)

    @jax.jit
    def step(state, action):
        with jax.default_matmul_precision("highest"), task.tolerance():
            view, _, reward, terminated, _ = task.advance(jax.random.key(0), state, action)
        return view, reward, terminated

    rng, differences = np.random.default_rng(0), []
    for seed in range(starts):
        native.reset(seed=seed)
        for _ in range(steps):
            action = rng.uniform(native.action_space.low, native.action_space.high).astype(np.float32)
            data = native.data
            progress = mjx._TASKS[name].progress(task._args, data)
            view = np.zeros(task.observation_space.shape)
            numbers = data.qpos, data.qvel, data.act, data.qacc_warmstart, progress, view
            state = mjx.State(*(jnp.array(number, jnp.float32) for number in numbers))
            ours, (view, reward, terminated, _, _) = step(state, jnp.asarray(action)), native.step(action)
            scale = max(1.0, np.abs(view).max())
            differences.append(
                (np.abs(ours[0] - view).max() / scale, abs(ours[1] - reward), bool(ours[2]) != terminated)
            )
            if terminated:
                break
    return np.asarray(differences, float)


@pytest.mark.parametrize("name", TOLERANCES)
def test_steps_are_those_of_gymnasium(name):
    views, rewards, ends = check_steps(name, 20, 50).T
    for differences in (views, rewards):
        assert (np.quantile(differences, (0.5, 0.95)) < TOLERANCES[name]).all()
    assert ends.mean() < 0.005


def test_the_ant_differs_by_the_direction_of_its_pyramids_alone():
    """A cone of friction that is a circle has none."""
    views, rewards, _ = check_steps("Ant-v5", 10, 50, cone=1).T
    for differences in (views, rewards):
        assert (np.quantile(differences, (0.5, 0.95)) < (1e-5, 1e-3)).all()


@pytest.mark.parametrize(
    ("name", "kwargs"),
    [
        ("HalfCheetah-v5", {"forward_reward_weight": 2.0, "exclude_current_positions_from_observation": False}),
        ("Hopper-v5", {"terminate_when_unhealthy": False, "frame_skip": 2}),
        ("Ant-v5", {"include_cfrc_ext_in_observation": False, "contact_cost_weight": 0.0, "main_body": "torso"}),
        ("Humanoid-v5", {"include_cvel_in_observation": False, "ctrl_cost_weight": 0.5}),
    ],
)
def test_arguments_are_those_of_gymnasium(name, kwargs):
    views, rewards, ends = check_steps(name, 2, 10, **kwargs).T
    assert max(np.median(views), np.median(rewards)) < 1e-4
    assert not ends.any()


def test_activations_of_actuators_last(tmp_path):
    """Those of a filter of the first order, which gymnasium's models do not have."""
    model = Path(mjx.gymnasium.__file__).with_name("envs") / "mujoco/assets/inverted_pendulum.xml"
    file = tmp_path / "filtered.xml"
    file.write_text(model.read_text().replace("<motor", '<general dyntype="filter" dynprm="0.1"'))
    views, _, _ = check_steps("InvertedPendulum-v5", 2, 10, xml_file=str(file)).T
    assert views.max() < 1e-5


def test_other_masses_are_no_movement():
    task = task_of(make_eval(env_of("Humanoid-v5")).unwrapped)
    with task.tolerance():
        _, state = task.start(jax.random.key(0))
        task._model = task._model.replace(body_mass=task._model.body_mass.at[1].multiply(2.0))
        np.testing.assert_array_equal(task.start(jax.random.key(0))[1].progress, state.progress)


def test_the_model_is_randomised():
    keys, action = jax.random.split(jax.random.key(0), 3), jnp.ones((3, 1))

    def play(**changes):
        env = make_eval(env_of("InvertedPendulum-v5", randomize_evaluation=bool(changes), **changes))
        return np.asarray(jax.jit(lambda: env.step(keys, env.reset(keys)[0], action)[1].observation.agent_view)())

    # The start states are the same.
    assert (np.abs(play(randomization={"body_mass": (0.5, 2.0)}) - play())[:, 2:] > 1e-3).all()


def test_episodes_start_like_those_of_gymnasium():
    """Means and deviations of 2,000 starts: 5 standard errors of uniform noise of 0.1 / sqrt(3) are 0.0065."""
    for name in ("HalfCheetah-v5", "Reacher-v5", "Pusher-v5"):
        native, task = gymnasium.make(name).unwrapped, task_of(make_eval(env_of(name)).unwrapped)
        keys = jax.random.split(jax.random.key(0), 2000)
        ours = np.asarray(
            jax.vmap(lambda key, task=task: jnp.concatenate(task._task.start(task._args, task._initial, key)))(keys)
        )
        theirs = []
        for seed in range(2000):
            native.reset(seed=seed)
            theirs.append(np.concatenate([native.data.qpos, native.data.qvel]))
        np.testing.assert_allclose(ours.mean(0), np.mean(theirs, 0), atol=0.0135)
        np.testing.assert_allclose(ours.std(0), np.std(theirs, 0), atol=0.0135)


def test_actions_observations_and_limits_are_those_of_gymnasium():
    assert mjx.scenarios() == sorted(TOLERANCES)
    for name in TOLERANCES:
        native, env = gymnasium.make(name), make(env_of(name, rescale_actions=False))
        assert env.action_space.shape == native.action_space.shape
        np.testing.assert_array_equal(env.action_space.low, native.action_space.low)
        assert env.observation_space.shape == native.observation_space.shape
