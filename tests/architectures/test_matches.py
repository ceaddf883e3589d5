import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.axes import make_mesh
from stoix_like.architectures.evaluator import make_evaluator
from stoix_like.architectures.matches import make_matches
from stoix_like.base_types import Axes
from stoix_like.devices import find_devices
from stoix_like.envs import Vectorize, factory
from stoix_like.envs.wrappers import RecordEpisode
from support.nim import Nim
from support.set_ups import config_of
from support.toys import make_recorder

# A perfect player leaves a multiple of three; the other takes `greed` more than one.
PERFECT, ONE, TWO = 2, 0, 1


def build(hyperparams):
    def eval_act(shared, state, key):
        stones = state.env_state.env_state.stones
        perfect = (stones % 3 == 2).astype(jnp.int32)
        action = jnp.where(shared == PERFECT, perfect, jnp.minimum(shared, stones - 1).clip(0))
        # Each player sees its own carry: the number of moves that it has made.
        wrong = (state.carry != state.timestep.episode.episode_length // 2) & ~state.timestep.episode.finished
        return state.carry + 1, jnp.where(wrong, 0, action), ()

    return make_recorder(Axes())._replace(eval_act=eval_act, init_carry=lambda n: jnp.zeros(n, jnp.int32))


def play(size, *policies, pairs=3, **options):
    matches = make_matches(build, RecordEpisode(Vectorize(Nim(size))), make_mesh(find_devices(1)), pairs, 50, **options)
    return jax.tree.map(np.asarray, matches(jnp.array(policies), {}, jax.random.key(0)))


@pytest.mark.parametrize(
    ("size", "policies", "started", "answered"),
    [
        # Four stones are won for the player who starts, three are lost; the others win by the mistakes of the one.
        (4, (PERFECT, PERFECT), 1, -1),
        (3, (PERFECT, PERFECT), -1, 1),
        (4, (PERFECT, TWO), 1, 1),
        (4, (TWO, PERFECT), -1, -1),
        (5, (ONE, TWO), -1, -1),
    ],
)
def test_results_are_those_of_the_first_policy_from_either_seat(size, policies, started, answered):
    found = play(size, *policies)
    np.testing.assert_array_equal(found.returns, [[started] * 3, [answered] * 3])
    assert found.finished.all()


def test_openings_are_random_and_the_same_from_either_seat():
    """After two random moves of seven stones, 3, 4 or 5 are left: 3 are lost for the player to move, the first one."""
    found = play(7, PERFECT, PERFECT, pairs=64, openings=2)
    np.testing.assert_array_equal(found.returns[0], -found.returns[1])
    # One of four openings takes four stones.
    assert 0.6 < (found.returns[0] == 1.0).mean() < 0.9


def test_games_stop_at_the_largest_number_of_moves():
    matches = make_matches(build, RecordEpisode(Vectorize(Nim(9))), make_mesh(find_devices(1)), 2, 3)
    found = matches(jnp.array([ONE, ONE]), {}, jax.random.key(0))
    assert not found.finished.any()
    assert (found.returns == 0.0).all()
    assert (found.lengths == 3).all()


STILL = make_recorder(Axes())._replace(
    eval_act=lambda shared, state, key: (state.carry, jax.numpy.zeros((*state.timestep.reward.shape, 1)), ())
)


@pytest.mark.parametrize("num_devices", [1, 2])
@pytest.mark.parametrize(("scenario", "limit", "length"), [("Pendulum-v1", None, 200), ("Pendulum-v1", 7, 7)])
def test_every_device_plays_whole_episodes(num_devices, scenario, limit, length):
    overrides = ["env=gymnax", f"env.scenario.name={scenario}"] + ([f"env.time_limit={limit}"] if limit else [])
    env = factory.make_eval(config_of(*overrides).env)
    evaluate = make_evaluator(lambda _: STILL, env, make_mesh(find_devices(num_devices)), 5, max_steps=1000)
    episodes = evaluate({}, {}, jax.random.key(0))
    assert episodes.returns.shape[0] == {1: 5, 2: 6}[num_devices]
    assert (episodes.lengths == length).all()
    # Start states differ, and the returns of Pendulum depend on them.
    assert len(np.unique(episodes.returns)) == episodes.returns.shape[0]


def test_only_the_first_episode_of_each_environment_counts():
    """Constant pushes to the left end an episode of CartPole within a dozen steps; later steps are not counted."""
    env = factory.make_eval(config_of().env)
    evaluate = make_evaluator(lambda _: make_recorder(Axes()), env, make_mesh(find_devices(1)), 32, max_steps=1000)
    episodes = evaluate({}, {}, jax.random.key(1))
    assert (episodes.lengths >= 8).all()
    assert (episodes.lengths <= 11).all()
    np.testing.assert_array_equal(episodes.returns, episodes.lengths)
    assert episodes.finished.all()


def test_unfinished_episode_stops_at_max_steps():
    overrides = ["env=gymnax/pendulum", "+env.params.max_steps_in_episode=1000000"]
    env = factory.make_eval(config_of(*overrides).env)
    evaluate = make_evaluator(lambda _: STILL, env, make_mesh(find_devices(1)), 3, max_steps=20)
    episodes = evaluate({}, {}, jax.random.key(0))
    assert (episodes.lengths == 20).all()
    assert not episodes.finished.any()
