import jax
import numpy as np
import pytest

from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.base_types import Axes
from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.run.host.devices import find_devices, make_mesh
from support.composed import compose_config
from support.toys import make_recorder


def pendulum(overrides, num_devices, num_episodes, max_steps):
    env = factory.make_eval(parse_config(compose_config(["env=gymnax/pendulum", *overrides])).env)
    system = make_recorder(Axes())._replace(
        eval_act=lambda shared, state, key: (state.carry, jax.numpy.zeros((*state.timestep.reward.shape, 1)), ())
    )
    evaluate = make_evaluator(lambda _: system, env, make_mesh(find_devices(num_devices)), num_episodes, max_steps)
    return evaluate({}, {}, jax.random.key(0))


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(("overrides", "length"), [([], 200), (["env.time_limit=7"], 7)])
def test_every_device_plays_whole_episodes(num_devices, overrides, length):
    episodes = pendulum(overrides, num_devices, 5, 1000)
    assert episodes.returns.shape[0] == {1: 5, 2: 6}[num_devices]
    assert (episodes.lengths == length).all()
    # Start states differ, and the returns of Pendulum depend on them.
    assert len(np.unique(episodes.returns)) == episodes.returns.shape[0]


def test_only_the_first_episode_of_each_environment_counts():
    """Constant pushes to the left end an episode of CartPole within a dozen steps; later steps are not counted."""
    env = factory.make_eval(parse_config(compose_config([])).env)
    evaluate = make_evaluator(lambda _: make_recorder(Axes()), env, make_mesh(find_devices(1)), 32, max_steps=1000)
    episodes = evaluate({}, {}, jax.random.key(1))
    assert (episodes.lengths >= 8).all()
    assert (episodes.lengths <= 11).all()
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)
    assert episodes.finished.all()


def test_unfinished_episode_stops_at_max_steps():
    episodes = pendulum(["+env.params.max_steps_in_episode=1000000"], 1, 3, 20)
    assert (episodes.lengths == 20).all()
    assert not episodes.finished.any()
