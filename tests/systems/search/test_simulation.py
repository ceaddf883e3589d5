from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import mctx
import numpy as np
import pytest

from stoix_like.base_types import Model, Observation, RolloutState
from stoix_like.envs.environment import restart, transition
from stoix_like.networks.distributions.masks import mask_logits
from stoix_like.systems.search import tree
from stoix_like.systems.search.simulation import Expansion, make_simulation
from stoix_like.utils.accelerate.packing import unpack
from support.selections import first

GAMMA = 0.5
# Of the start: action 0 terminates with reward 1, action 1 truncates with reward 0, action 2 leads to state 3, where
# action 0 costs 1, action 2 is illegal and worth 100, and the others are free; all of them lead back to state 3.
VALUES = jnp.asarray([0.0, 7.0, 4.0, 2.0])
TAKEN = {
    **{"search_method": "gumbel", "max_depth": None, "num_considered_actions": 3, "gumbel_scale": 100.0},
    **{"value_scale": 0.1, "maxvisit_init": 50.0, "dirichlet_fraction": 0.9, "dirichlet_alpha": 0.3},
    **{"pb_c_init": 10.0, "pb_c_base": 19652.0, "search_temperature": 1.0},
}


def observe(state):
    position = state["position"]
    mask = jnp.where(position == 3, jnp.asarray([True, True, False]), jnp.ones((3,), bool))
    return Observation(position[None].astype(jnp.float32), mask)


def step_one(key, state, action):
    start = state["position"] == 0
    after = state | {"position": jnp.where(start, action + 1, state["position"])}
    reward = jnp.where(start, jnp.asarray([1.0, 0.0, 0.0])[action], jnp.asarray([-1.0, 0.0, 100.0])[action])
    return after, transition(observe(after), reward, start & (action == 0), start & (action == 1))


def expand(params, observation, key):
    logits = jnp.zeros((len(observation.agent_view), 3))
    value = VALUES[observation.agent_view[:, 0].astype(jnp.int32)]
    return Expansion(mask_logits(logits, observation.action_mask), value)


def plan(num_simulations=24, discount=GAMMA, reward_scale=1.0, position=0, **values):
    """Search from two environments, without the noise of training."""
    model = Model(state_of=lambda state: state, step=jax.vmap(step_one))
    simulation = make_simulation(model, expand, discount, reward_scale)
    env_state = {"position": jnp.full((2,), position, jnp.int32), "key": jax.random.split(jax.random.key(0), 2)}
    state = RolloutState(env_state, jax.vmap(lambda state: restart(observe(state)))(env_state), ())
    config: Any = SimpleNamespace(**{**TAKEN, **values})

    @jax.jit
    def run(key):
        root = simulation.root((), state, state.timestep.observation, key)
        output = tree.search(config, (), key, root, simulation.step, num_simulations, greedy=True)
        return tree.describe(root, output, output.action), output.search_tree

    return run(jax.random.key(1))


def test_noise_of_the_root_is_spread_over_legal_actions():
    """With a large concentration, it is uniform over the 2 legal actions: 0.75 (0.8, 0.2) + 0.25 (0.5, 0.5)."""
    lowest = float(jnp.finfo(jnp.float32).min)
    logits = jnp.asarray([[jnp.log(0.8), jnp.log(0.2), lowest, lowest, lowest]])
    root = mctx.RootFnOutput(prior_logits=logits, value=jnp.zeros(1), embedding=())
    config: Any = SimpleNamespace(dirichlet_fraction=0.25, dirichlet_alpha=1e6)
    noisy = tree.with_noise(config, root, tree.is_illegal(logits), jax.random.key(0)).prior_logits
    np.testing.assert_allclose(jax.nn.softmax(noisy), [[0.725, 0.275, 0.0, 0.0, 0.0]], atol=1e-3)
    assert (noisy[:, 2:] == lowest).all()


@pytest.mark.parametrize("method", ["gumbel", "puct"])
def test_values_end_where_the_episode_terminates_and_bootstrap_where_it_is_truncated(method):
    """Of the start: q = (1, gamma * v(truncated), …), however often the simulations visit what lies behind.

    Action 0 terminates: its value is its reward, not 1 + gamma * 7. Action 1 truncates: 0.5 * 4 = 2. In state 3 the
    illegal action, whose reward is 100, has no visit; with it the value of action 2 would exceed 2.
    """
    found, nodes = plan(search_method=method)
    assert (np.asarray(found.visits) > 1).all()
    np.testing.assert_allclose(found.action_values[:, :2], [[1.0, 2.0]] * 2, rtol=1e-6)
    assert (np.asarray(found.action_values[:, 2]) < GAMMA * 2.0).all()
    in_third = np.asarray(unpack(nodes.embeddings).state["position"]) == 3
    assert in_third.sum() > 4
    assert (np.asarray(nodes.children_visits)[in_third][:, 2] == 0).all()
    np.testing.assert_array_equal(found.action, [1, 1])


@pytest.mark.parametrize("method", first(1, ["gumbel", "puct"]))
def test_no_simulation_begins_with_an_illegal_action(method):
    """In state 3, action 2 is illegal, and worth 100."""
    found, _ = plan(position=3, search_method=method)
    np.testing.assert_array_equal(found.visits[:, 2], 0)
    np.testing.assert_array_equal(found.weights[:, 2], 0.0)
    np.testing.assert_array_equal(found.action, [1, 1])


def test_a_value_is_that_of_the_player_to_move():
    """With two players q = r - gamma * v: for the truncated state -0.5 * 4, for state 3 -0.5 * 2."""
    found, _ = plan(num_simulations=3, discount=-GAMMA)
    np.testing.assert_allclose(found.action_values, [[1.0, -2.0, -1.0]] * 2, rtol=1e-6)
    np.testing.assert_array_equal(found.action, [0, 0])


def test_rewards_are_scaled():
    found, _ = plan(num_simulations=3, reward_scale=0.5)
    np.testing.assert_allclose(found.action_values, [[0.5, 2.0, 1.0]] * 2, rtol=1e-6)


@pytest.mark.slow
def test_keys_of_the_environment_stay_with_its_state():
    _, nodes = plan(num_simulations=2)
    data = np.asarray(unpack(nodes.embeddings).state["key"].data)
    expected = jax.random.key_data(jax.random.split(jax.random.key(0), 2))
    np.testing.assert_array_equal(data, np.repeat(np.asarray(expected)[:, None], 3, axis=1))
