import jax
import numpy as np
import pytest
from toys import make_recorder

from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.base_types import Axes
from stoix_like.config import compose_config, parse_config
from stoix_like.envs import factory
from stoix_like.run.devices import find_devices, make_mesh


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(("scenario", "limit", "length"), [("Pendulum-v1", None, 200), ("Pendulum-v1", 7, 7)])
def test_whole_episodes_on_every_device(num_devices, scenario, limit, length):
    overrides = ["env=gymnax", f"env.scenario.name={scenario}"] + ([f"env.time_limit={limit}"] if limit else [])
    env = factory.make_eval(parse_config(compose_config(overrides)).env)
    system = make_recorder(Axes())
    system = system._replace(
        eval_act=lambda shared, actor, key: (actor.carry, jax.numpy.zeros((*actor.timestep.reward.shape, 1)), ())
    )
    evaluate = make_evaluator(lambda _: system, env, make_mesh(find_devices(num_devices)), 5, max_steps=1000)
    episodes = evaluate({}, {}, jax.random.key(0))
    assert episodes.returns.shape[0] == {1: 5, 2: 6}[num_devices]
    assert (episodes.lengths == length).all()
    # Every episode has its own start state, and Pendulum's rewards tell the states apart.
    assert len(np.unique(episodes.returns)) == episodes.returns.shape[0]


def test_the_first_end_counts():
    """CartPole pushed always to the left falls within a dozen steps; what happens afterwards is not counted."""
    env = factory.make_eval(parse_config(compose_config([])).env)
    evaluate = make_evaluator(lambda _: make_recorder(Axes()), env, make_mesh(find_devices(1)), 32, max_steps=1000)
    episodes = evaluate({}, {}, jax.random.key(1))
    assert (episodes.lengths >= 8).all()
    assert (episodes.lengths <= 11).all()
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)
    assert episodes.finished.all()


def test_an_episode_without_an_end_counts_as_far_as_it_went():
    overrides = ["env=gymnax/pendulum", "+env.params.max_steps_in_episode=1000000"]
    env = factory.make_eval(parse_config(compose_config(overrides)).env)
    system = make_recorder(Axes())._replace(
        eval_act=lambda shared, actor, key: (actor.carry, jax.numpy.zeros((*actor.timestep.reward.shape, 1)), ())
    )
    evaluate = make_evaluator(lambda _: system, env, make_mesh(find_devices(1)), 3, max_steps=20)
    episodes = evaluate({}, {}, jax.random.key(0))
    assert (episodes.lengths == 20).all()
    assert not episodes.finished.any()
