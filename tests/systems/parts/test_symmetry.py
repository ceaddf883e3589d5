import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import Axes, Observation, SystemSpec
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.errors import ConfigError
from stoix_like.run.programs.functions import run_programs
from stoix_like.systems.on_policy.networks import OnPolicyTransition
from stoix_like.systems.parts.symmetry import SymmetryConfig, make_mirror
from stoix_like.utils.replay import Batch, Replay
from support.compiled import run
from support.selections import first
from support.set_ups import setup_of

FORCE, PUSH = Box(-2.0, 2.0, (1,)), Discrete(2)
PENDULUM, CARTPOLE = "stoix_like.envs.symmetries.pendulum", "stoix_like.envs.symmetries.cartpole"


def mirror_of(path, view, action_space):
    spec = SystemSpec(view, action_space, SimpleNamespace(), Axes(), 4, 2, 1, True)
    return make_mirror(SymmetryConfig(symmetry=path), spec)


def pendulum():
    return mirror_of(PENDULUM, Box(-1.0, 1.0, (3,)), FORCE)


def cartpole():
    return mirror_of(CARTPOLE, Box(-1.0, 1.0, (4,)), PUSH)


def views(*rows):
    return Observation(jnp.asarray(rows, jnp.float32))


def minibatch(obs, action, image, lesson=()):
    numbers = jnp.arange(1.0, 1.0 + len(action))
    return OnPolicyTransition(obs, action, -numbers, (), 10 * numbers, 20 * numbers, lesson, image)


def identity(observation):
    return observation


def images(mirror, observation, action):
    """Return the images of raw observations of a rollout `[T, N]`, which are not normalised."""
    steps = minibatch(None, action, ())
    return jax.jit(lambda observation: mirror.pair(steps, observation, identity).image)(observation)


def test_half_of_the_samples_are_images():
    """Row i has the angle i and the successor 10 i: sine, velocity and force change their signs together."""
    rows = jnp.arange(1.0, 401.0)

    def sample(state, key, exponent=1.0):
        view, after = (jnp.stack([x, x, -x], -1) for x in (rows, 10 * rows))
        following = 2 * rows[:, None], jnp.ones(400, bool)
        return Batch(Observation(view), rows[:, None], rows, rows, Observation(after), rows, None, following)

    replay = pendulum().replay(Replay(None, None, sample, None, None))
    batch = run(replay.sample, (), jax.random.key(0))
    sign = np.asarray(batch.action[:, 0] / rows)
    # The mean of 400 fair signs, of deviation 1/20.
    assert set(sign) == {-1.0, 1.0}
    assert abs(sign.mean()) < 0.2
    want = np.stack([np.ones(400), sign, -sign], -1) * rows[:, None]
    np.testing.assert_array_equal(batch.observation.agent_view, want)
    np.testing.assert_array_equal(batch.next_observation.agent_view, 10 * want)
    np.testing.assert_array_equal(batch.next_action[0][:, 0], 2 * sign * rows)
    np.testing.assert_array_equal(batch.reward, rows)


def test_images_are_mirrored_before_they_are_normalised():
    """Of the mean 1: a sine of 3 becomes -3, and then -4."""
    shift = lambda observation: observation._replace(agent_view=observation.agent_view - 1.0)  # noqa: E731
    steps = Observation(jnp.asarray([[[2.0, 3.0, 4.0]]]))
    paired = run(lambda steps: pendulum().pair(minibatch(None, jnp.zeros((1, 1, 1)), ()), steps, shift), steps)
    np.testing.assert_array_equal(paired.image.agent_view, [[[1.0, -4.0, -5.0]]])


def test_minibatches_are_joined_by_images_with_the_numbers_of_their_originals():
    """The image of the view is passed as it is; force and lesson are mirrored."""
    lesson = jnp.asarray([[0.5], [1.0]]), jnp.asarray([3.0, 4.0])
    batch = minibatch(views([1, 2, 3], [4, 5, 6]), jnp.asarray([[1.0], [-2.0]]), views([7, 8, 9], [0, 0, 0]), lesson)
    joined = run(pendulum().join, batch)
    np.testing.assert_array_equal(joined.obs.agent_view, [[1, 2, 3], [4, 5, 6], [7, 8, 9], [0, 0, 0]])
    np.testing.assert_array_equal(joined.action[:, 0], [1, -2, -1, 2])
    np.testing.assert_array_equal(joined.log_prob, [-1, -2, -1, -2])
    np.testing.assert_array_equal(joined.advantage, [10, 20, 10, 20])
    np.testing.assert_array_equal(joined.lesson[0][:, 0], [0.5, 1, -0.5, -1])
    np.testing.assert_array_equal(joined.lesson[1], [3, 4, 3, 4])


def test_masks_are_permuted_with_actions():
    observation = Observation(jnp.ones((1, 4)), jnp.asarray([[True, False]]))
    image = images(cartpole(), jax.tree.map(lambda x: x[None], observation), jnp.zeros((1, 1), jnp.int32))
    np.testing.assert_array_equal(image.action_mask, [[[False, True]]])


def test_without_a_symmetry_nothing_changes():
    for config in (None, SymmetryConfig()):
        mirror = make_mirror(config, None)
        replay, batch = Replay(*[object()] * 5), object()
        assert mirror.replay(replay) is replay
        assert mirror.join(batch) is batch
        assert mirror.pair(batch, None, None) is batch


FAULTS = {
    "changes the structure": lambda o, a: (o._replace(agent_view=o.agent_view[:2]), a),
    "does not undo itself": lambda o, a: (o._replace(agent_view=o.agent_view[jnp.asarray([1, 2, 0])]), a),
    "by the observation": lambda o, a: (o, jnp.where(o.agent_view[0] > 0.0, a, -a)),
    "out of their space": lambda o, a: (o, 4.0 - a),
    "actions out": lambda o, a: (o, 3 - a),
    "failed .*": lambda o, a: (o, a.shape[3]),
    "cannot be imported": None,
}


@pytest.mark.parametrize("fault", FAULTS)
def test_what_is_no_symmetry_is_refused(monkeypatch, fault):
    monkeypatch.setitem(sys.modules, "faulty", SimpleNamespace(**{"swap": FAULTS[fault]} if FAULTS[fault] else {}))
    choice = fault == "actions out"
    mirror = mirror_of("faulty.swap", Box(-1.0, 1.0, (3,)), Discrete(3) if choice else FORCE)
    actions = jnp.ones((2, 2), jnp.int32) if choice else jnp.ones((2, 2, 1))
    with pytest.raises(ConfigError, match=rf"system.symmetry=faulty.swap .*{fault}.*: it must be a function"):
        images(mirror, Observation(jnp.ones((2, 2, 3))), actions)


def test_masks_that_are_mirrored_otherwise_are_refused(monkeypatch):
    swap = lambda o, a: (o._replace(agent_view=-o.agent_view), 1 - a)  # noqa: E731
    monkeypatch.setitem(sys.modules, "faulty", SimpleNamespace(swap=swap))
    steps = Observation(jnp.ones((2, 2, 4)), jnp.ones((2, 2, 2), bool))
    mirror = mirror_of("faulty.swap", Box(-1.0, 1.0, (4,)), PUSH)
    with pytest.raises(ConfigError, match="mirrors the action mask in another way than actions"):
        images(mirror, steps, jnp.ones((2, 2), jnp.int32))


TRAINED = [
    "system=ppo/ff_ppo system.normalize_observations=true",
    "system=ppo/ff_ppo_penalty",
    "system=sac/ff_sac system.normalize_observations=true",
    "system=sac/ff_xqc",
    "system=ddpg/ff_td3_c51 system.n_step=3",
]


@pytest.mark.parametrize("options", first(1, TRAINED))
def test_training_takes_a_symmetry_and_refuses_another_one_before_it_compiles(options):
    overrides = [*options.split(), "env=gymnax/pendulum"]
    list(run_programs(setup_of(*overrides, f"system.symmetry={PENDULUM}")))
    with pytest.raises(ConfigError, match="symmetries.ant changes the structure, shapes or dtypes"):
        list(run_programs(setup_of(*overrides, "system.symmetry=stoix_like.envs.symmetries.ant")))
