import jax
import jax.numpy as jnp
import pytest

from stoix_like.base_types import Axes, RolloutState
from stoix_like.networks.distributions import EpsilonGreedy
from stoix_like.systems.parts.epsilon_greedy import choose_action
from support.algorithms import make_algorithm
from support.compiled import run
from support.set_ups import setup_of

KEY = jax.random.key(0)


@pytest.mark.parametrize(
    "system",
    ["rec_r2d2", pytest.param("rec_pqn", marks=pytest.mark.slow), pytest.param("rec_pqn_vdn", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("epsilon", [0.0, 0.1])
def test_greedy_recurrent_policies_draw_no_random_numbers(system, epsilon):
    """But where evaluations explore; traces alone, which nothing compiles."""
    setup = setup_of(f"system=q_learning/{system}", f"system.evaluation_epsilon={epsilon}")
    algorithm = make_algorithm(setup, axes=Axes())

    def state_and_shared(keys):
        _, timestep = setup.env.reset(keys)
        return RolloutState((), timestep, algorithm.init_carry(len(keys))), algorithm.init(keys[0], timestep).shared

    state, shared = jax.eval_shape(state_and_shared, jax.random.split(KEY, setup.spec.num_envs))
    traced = jax.jit(algorithm.act, static_argnums=3).trace(shared, state, KEY, True)
    assert ("random_bits" in str(traced.jaxpr)) == (epsilon > 0.0)


def test_without_random_actions_samples_and_modes_are_the_first_of_the_best_actions():
    """A traced probability, as in a population, may be 0, too."""
    preferences = jnp.asarray([[1.0, 2.0, 2.0], [3.0, 0.0, 3.0]])
    sampled = jax.jit(lambda epsilon: choose_action(EpsilonGreedy(preferences, epsilon), epsilon, KEY))(0.0)
    assert run(choose_action, EpsilonGreedy(preferences, 0.0), 0.0, KEY).tolist() == sampled.tolist() == [1, 0]
