import dataclasses
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.acting import start_episodes
from stoix_like.base_types import Observation, Trajectory, Transition
from stoix_like.systems.search.candidates import Found
from stoix_like.utils.replay import SequenceBatch, Step, Stored
from support.compiled import run
from support.off_policy_runs import timestep
from support.searched_runs import prepare
from support.selections import select


def steps_of(found, truncated):
    """Return four steps of one environment with these searches, the second one truncated or not."""
    nothing, no = jnp.zeros((4, 1)), jnp.zeros((4, 1), bool)
    ends = no.at[1].set(truncated)
    view = Observation(jnp.arange(4.0)[:, None, None])
    successor = Observation(jnp.arange(10.0, 14.0)[:, None, None])
    return Transition(view, no[..., :].astype(jnp.int32), nothing, no, ends, successor, no, Stored((), found))


@pytest.mark.slow
@pytest.mark.parametrize("truncated", [False, True])
def test_successors_are_worth_what_the_next_search_found_except_beyond_the_end(truncated, monkeypatch):
    """Searches found 1, 2, 3, 4; the critic gives ten times a view, and the true successors have the views 10 … 13.

    Step 3 is the last: 130 of the critic. Step 1 is worth 3, or where the episode is truncated after it 110.
    """
    _, az = prepare("env=probe/value", "arch.total_num_envs=1", "system.total_batch_size=1")
    networks = dataclasses.replace(az.networks)
    object.__setattr__(networks, "values", lambda params, observation: 10.0 * observation.agent_view[..., 0])
    added = []
    replay = az.replay._replace(add=lambda local, trajectory: added.append(trajectory.transitions.extras.extras.value))
    az = dataclasses.replace(az, networks=networks, replay=replay)
    agent = az.init(jax.random.key(0), timestep([0], [False]))
    found = Found(None, jnp.ones((4, 1, 1)), jnp.arange(1.0, 5.0)[:, None])
    az.observe(agent, Trajectory(steps_of(found, truncated), ()))
    np.testing.assert_allclose(added[0][:, 0], [2.0, 110.0 if truncated else 3.0, 4.0, 130.0])


@pytest.mark.parametrize(("opponent", "sign"), select([("random", 1.0), ("self", -1.0)], quick=[("self", -1.0)]))
def test_targets_change_their_sign_with_the_player_to_move(opponent, sign):
    """Of three steps with rewards 1, 2, 4, gamma 0.5 and successors worth 8; the second episode ends in step 1.

    Two steps each: 1 + g (2 + g 8), 2 + g (4 + g 8), 4 + g 8 with g = ± 0.5, and of the second 1 + g 2 and 2.
    """
    _, az = prepare("env=pgx/tic_tac_toe", f"+env.kwargs.opponent={opponent}", "system.n_step=2", "system.gamma=0.5")
    reward = jnp.asarray([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    no, nothing = jnp.zeros((3, 2), bool), jnp.zeros((3, 2))
    found = Found(None, jnp.ones((3, 2, 9)) / 9, jnp.full((3, 2), 8.0))
    steps = Step(Observation(nothing), nothing, reward, no.at[1, 1].set(True), no, None, found)
    target = run(az.value_target, SequenceBatch(steps, no, (), jnp.ones((1, 2)), None))
    g = sign * 0.5
    last = 4 + g * 8
    np.testing.assert_allclose(target, [[1 + g * (2 + g * 8), 1 + g * 2], [2 + g * last, 2.0], [last, last]])


@pytest.mark.slow
def test_searches_normalise_observations_at_the_root_and_in_the_tree():
    setup, az = prepare("env=gymnax/cartpole", "system.normalize_observations=true")
    model, action = setup.spec.model, jnp.zeros(4, jnp.int32)

    @jax.jit
    def values(key):
        state = start_episodes(setup.env, setup.build_system(), jax.random.split(key, 4))
        first = state.timestep.observation
        seen = Observation(3.0 + 5.0 * jax.random.normal(key, (8, 4, 4)))
        params = az.networks.init(key, first), az.normalizer.update(az.normalizer.init(first), seen)
        root = az.simulation.root(params, state, first, key)
        output, _ = az.simulation.step(params, key, action, root.embedding)
        _, after = model.step(jax.random.split(key, 4), model.state_of(state.env_state), action)
        views = (az.normalizer.apply(params[1], x) for x in (first, after.observation))
        expected = [az.networks.values(params[0], view) for view in views]
        return (root.value, output.value), expected

    np.testing.assert_allclose(*values(jax.random.key(0)), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_evaluations_search_with_simulations_of_their_own(monkeypatch):
    _, az = prepare("env=probe/value", "system.num_simulations=5", "system.evaluation_simulations=3")

    def search(self, shared, state, key, num_simulations, greedy=False):
        return SimpleNamespace(action=num_simulations, candidates=greedy, weights=None, value=None)

    monkeypatch.setattr(type(az), "search", search)
    state = SimpleNamespace(carry=())
    assert az.eval_act((), state, None, True)[1] == 3
    assert az.act((), state, None)[1] == 5


@pytest.mark.slow
def test_priorities_are_those_of_the_mean_errors_of_values(monkeypatch):
    """Means of 4 and 16 in two steps, with the exponent 1/2."""
    _, az = prepare("env=probe/value", "system.prioritised=true", "system.priority_exponent=0.5")
    errors = jnp.asarray([[1.0, 4.0], [7.0, 28.0]])

    def loss(self, params, statistics, batch, key):
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(params)), ({"loss": jnp.zeros(())}, errors)

    monkeypatch.setattr(type(az), "loss", loss)
    batch = SequenceBatch((), (), (), jnp.ones((1, 2)), jnp.arange(2))
    replay = az.replay._replace(sample=lambda *_: batch, set_priorities=lambda local, indices, priorities: priorities)
    az = dataclasses.replace(az, replay=replay)
    agent = az.init(jax.random.key(0), timestep([0], [False]))._replace(local=jnp.zeros(2))
    agent, _ = az.update(agent, None, jax.random.key(1))
    np.testing.assert_allclose(agent.local, [2.0, 4.0], rtol=1e-5)
