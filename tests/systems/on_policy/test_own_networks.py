from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.base_types import ActorCriticParams, Observation
from stoix_like.envs.spaces import Box, Dict
from stoix_like.errors import ConfigError
from stoix_like.systems.on_policy.networks import ActorCriticNetworks, Values
from stoix_like.systems.on_policy.own_networks import OwnNetworks, to_agents, to_rows, with_own_networks
from stoix_like.systems.parts.critic_outputs import SCALAR, CriticOutput

# Networks of one parameter, which multiplies the view; it starts as a part of the key.
LINEAR = SimpleNamespace(
    apply=lambda weight, obs: weight * obs.agent_view[..., 0], init=lambda key, obs: jax.random.key_data(key)[0]
)
PLAIN = ActorCriticNetworks(LINEAR, LINEAR, None, SCALAR)
OWN = OwnNetworks(LINEAR, LINEAR, None, SCALAR, num_agents=3, dims=1)


def spec(space=Box(-1.0, 1.0, (2,)), share=False):  # noqa: B008
    return SimpleNamespace(share_networks=share, observation_space=space, num_agents=3)


def test_rows_stand_by_game_and_parameters_by_agent():
    """Two games of three agents, [game, agent]: 00 01 02 10 11 12."""
    rows = jnp.asarray([0, 1, 2, 10, 11, 12])
    rollout = {"x": jnp.stack([rows, rows + 100])}

    @jax.jit
    def split_and_join():
        by_agent = to_agents(rows, 3), to_agents(rollout, 3, axis=1)
        return *by_agent, to_rows(by_agent[0]), to_rows(by_agent[1], axis=1)

    of_rows, of_rollout, *joined = split_and_join()
    assert of_rows.tolist() == [[0, 10], [1, 11], [2, 12]]
    # A rollout of two steps keeps its first axis where it is.
    assert of_rollout["x"][1].tolist() == [[1, 11], [101, 111]]
    jax.tree.map(np.testing.assert_array_equal, joined, [rows, rollout])


@pytest.mark.parametrize("batch", [(6,), (2, 6)])
def test_each_row_passes_through_the_networks_of_its_agent(batch):
    """Actors multiply by 1, 2 and 3, critics by 10, 20 and 30; all views are 5."""
    params = ActorCriticParams(jnp.asarray([1.0, 2.0, 3.0]), jnp.asarray([10.0, 20.0, 30.0]))
    policy, value = jax.jit(OWN.both)(params, Observation(jnp.full((*batch, 1), 5.0)))
    np.testing.assert_array_equal(policy, np.broadcast_to([5.0, 10.0, 15.0] * 2, batch))
    np.testing.assert_array_equal(value, np.broadcast_to([50.0, 100.0, 150.0] * 2, batch))


def test_agents_start_with_parameters_of_their_own():
    params = jax.jit(OWN.init)(jax.random.key(0), Observation(jnp.zeros((6, 1))))
    assert [leaf.shape for leaf in params] == [(3,), (3,)]
    assert len(np.unique(np.stack(params))) == 6


def test_minibatches_are_of_whole_games():
    """A rollout of two steps of two games; the first and the last game of a minibatch keep their agents in order."""
    steps = jnp.arange(12).reshape(2, 6)
    games = OWN.examples(None, steps, Values(None, None, None))
    assert games.tolist() == steps.reshape(4, 3).tolist()
    assert OWN.arrange(games[::3]).tolist() == [0, 1, 2, 9, 10, 11]


@pytest.mark.parametrize(
    ("space", "dims"), [(Box(0.0, 1.0, (4, 4, 3)), 3), (Dict({"b": Box(0.0, 1.0, ()), "a": Box(0.0, 1.0, (2,))}), 1)]
)
def test_axes_of_a_batch_are_those_before_an_observation(space, dims):
    """Of a dictionary, those before its first entry by name, as jax orders its leaves."""
    networks = with_own_networks(PLAIN, spec(space), "adam")
    assert (networks.dims, networks.num_agents, networks.actor) == (dims, 3, LINEAR)


DISTRIBUTED = ActorCriticNetworks(LINEAR, LINEAR, None, CriticOutput(jnp.mean, jnp.subtract))


@pytest.mark.parametrize(
    ("networks", "optimiser", "words"),
    [
        *(
            (PLAIN, name, f"optimiser={name} would take the biases of .* use adam or radam")
            for name in ("adamw", "muon")
        ),
        (DISTRIBUTED, "adam", "needs a critic that computes a value"),
    ],
)
def test_optimisers_and_critics_that_do_not_fit_are_refused(networks, optimiser, words):
    with pytest.raises(ConfigError, match=f"^network.share=false.*{words}"):
        with_own_networks(networks, spec(), optimiser)
