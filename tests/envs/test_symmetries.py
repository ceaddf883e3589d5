"""Tables of symmetries: against the spaces of tasks, and step by step against the simulator."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Observation
from stoix_like.envs import symmetries
from support.compiled import run
from support.lazily import Lazy

mjx, brax_envs = map(Lazy, ("stoix_like.envs.suites.mjx", "brax.envs"))
SIZES = {
    "pendulum": (3, 1),
    "ant": (27, 8),
    "ant_with_forces": (105, 8),
    "go1_joystick": ({"state": 48, "privileged_state": 123}, 12),
    "g1_joystick": ({"state": 103, "privileged_state": 216}, 29),
}


@pytest.mark.parametrize("name", SIZES)
def test_images_of_images_are_the_originals(name):
    """Every entry of a space of the right size has one image; privileged observations start with the state."""
    symmetry, (sizes, actions) = getattr(symmetries, name), SIZES[name]
    view = jax.tree.map(lambda size: np.arange(1.0, 1.0 + size, dtype=np.float32), sizes)
    observation, action = Observation(view), np.arange(1.0, 1.0 + actions, dtype=np.float32)
    image = run(symmetry, observation, action)
    jax.tree.map(np.testing.assert_array_equal, run(symmetry, *image), (observation, action))
    if isinstance(sizes, dict):
        state = image[0].agent_view["state"]
        np.testing.assert_array_equal(image[0].agent_view["privileged_state"][: len(state)], state)


def test_discrete_actions_are_swapped_with_their_mask():
    """CartPole pushes left or right."""
    observation = Observation(jnp.asarray([1.0, -2.0, 3.0, 4.0]), jnp.asarray([True, False]))
    image, action = symmetries.cartpole(observation, jnp.asarray(0, jnp.int32))
    np.testing.assert_array_equal(image.agent_view, [-1.0, 2.0, -3.0, -4.0])
    np.testing.assert_array_equal(image.action_mask, [False, True])
    assert action == 1


def test_the_dog_turns_the_other_way_with_the_legs_of_the_other_side():
    """Joints are 9 … 20: front right, front left, rear right, rear left; the abductions change their signs."""
    view = np.zeros(48, np.float32)
    view[9:21], view[45:] = np.arange(1, 13), (1, 2, 3)
    observation = Observation({"state": view, "privileged_state": np.zeros(123, np.float32)})
    state = run(symmetries.go1_joystick, observation, np.zeros(12, np.float32))[0].agent_view["state"]
    np.testing.assert_array_equal(state[9:21], [-4, 5, 6, -1, 2, 3, -10, 11, 12, -7, 8, 9])
    np.testing.assert_array_equal(state[45:], [1, -2, -3])


def _mirrored(symmetry, view, action):
    observation, action = symmetry(Observation(view), action)
    return observation.agent_view, action


@pytest.mark.slow
@pytest.mark.suites
@jax.numpy_rank_promotion("allow")  # as the suite needs
@pytest.mark.filterwarnings("ignore:Accessing `.*` directly from `Data` is deprecated:DeprecationWarning")
def test_the_ant_steps_in_the_mirror_as_it_is_mirrored_after_a_step():
    """Positions are those of the observation, behind x and y; accelerations are mirrored as velocities."""
    task = mjx.make("Ant-v5", {}, {}).unwrapped
    while not isinstance(task, mjx.MjxTask):
        task = task.env
    symmetry, rng = symmetries.ant_with_forces, np.random.default_rng(0)

    def acceleration(x):
        view = jnp.concatenate([jnp.zeros(13), x, jnp.zeros(78)])
        return _mirrored(symmetry, view, jnp.zeros(8))[0][13:27]

    @jax.jit
    def both(state, action):
        view, mirrored_action = _mirrored(symmetry, state.view, action)
        qpos = jnp.concatenate([jnp.stack([state.qpos[0], -state.qpos[1]]), view[:13]])
        mirrored = mjx.State(qpos, view[13:27], acceleration(state.warmstart), state.progress, view)
        with jax.default_matmul_precision("highest"):
            after, following, *outcome = task.advance(jax.random.key(0), state, action)
            other, _, *mirrored_outcome = task.advance(jax.random.key(0), mirrored, mirrored_action)
        return following, (_mirrored(symmetry, after, action)[0], outcome), (other, mirrored_outcome)

    _, state = jax.jit(task.start)(jax.random.key(0))
    forces = 0
    for _ in range(50):
        state, want, got = both(state, jnp.asarray(rng.uniform(-1.0, 1.0, 8), jnp.float32))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-4), want, got)
        forces += np.any(want[0][27:] != 0.0)
    assert forces > 5  # feet touch the ground


@pytest.mark.slow
@pytest.mark.suites
@jax.numpy_rank_promotion("allow")
@pytest.mark.filterwarnings("ignore")  # brax is no longer maintained, and says so
def test_the_ant_of_brax_does_so_too():
    env = brax_envs.get_environment("ant")
    rng = np.random.default_rng(0)

    @jax.jit
    def both(state, action):
        view, mirrored_action = _mirrored(symmetries.ant, state.obs, action)
        x, y = state.pipeline_state.q[:2]
        pipeline = env.pipeline_init(jnp.concatenate([jnp.stack([x, -y]), view[:13]]), view[13:])
        original = env.pipeline_init(state.pipeline_state.q, state.pipeline_state.qd)
        after = env.step(state.replace(pipeline_state=original), action)
        other = env.step(state.replace(pipeline_state=pipeline), mirrored_action)
        return after, (_mirrored(symmetries.ant, after.obs, action)[0], after.reward), (other.obs, other.reward)

    state = jax.jit(env.reset)(jax.random.key(0))
    for _ in range(20):
        state, want, got = both(state, jnp.asarray(rng.uniform(-1.0, 1.0, 8), jnp.float32))
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-3), want, got)
