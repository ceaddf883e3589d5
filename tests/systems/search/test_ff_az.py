import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.architectures.acting import start_episodes
from stoix_like.base_types import Observation
from stoix_like.systems.search.candidates import Found
from stoix_like.utils.accelerate.packing import unpack
from stoix_like.utils.replay import SequenceBatch, Step
from support.compiled import run
from support.off_policy_runs import timestep
from support.searched_runs import prepare

HEAD = "network.critic_network.critic_head"


@pytest.mark.parametrize(
    ("network", "value_loss", "clipped"),
    [
        (["mlp"], 4.5, None),
        pytest.param(["mlp_hl_gauss", f"{HEAD}.vmin=-2", f"{HEAD}.vmax=2"], np.log(51.0), 1.0, marks=pytest.mark.slow),
        pytest.param(["mlp_symexp"], np.log(255.0), 0.0, marks=pytest.mark.slow),
    ],
    ids=["scalar", "hl_gauss", "symexp"],
)
def test_the_loss_is_a_cross_entropy_and_that_of_the_critic(network, value_loss, clipped):
    """A uniform policy has the cross-entropy log 2; values are off by 3, or all of 51 or 255 atoms are equally likely.

    Importance weights are one half. Targets of 3 are beyond atoms that end at 2.
    """
    overrides = ("env=probe/policy", "system.vf_coef=0.5", "system.n_step=1", "system.normalize_observations=false")
    _, az = prepare(f"network={network[0]}", *network[1:], *overrides)
    no, nothing = jax.device_put((np.zeros((2, 4), bool), np.zeros((2, 4))))

    def loss_without_weights(key):
        agent = az.init(key, timestep([0] * 4, [False] * 4))
        params = jax.tree.map(jnp.zeros_like, agent.shared.params)
        found = Found(None, jnp.broadcast_to(jnp.asarray([0.25, 0.75]), (2, 4, 2)), nothing)
        step = Step(Observation(jnp.zeros((2, 4, 1))), nothing, nothing + 3.0, no, no, None, found)
        return az.loss(params, (), SequenceBatch(step, no, (), jnp.full((1, 4), 0.5), None), key)

    loss, (metrics, errors) = run(loss_without_weights, jax.random.key(0))
    assert float(metrics["policy_loss"]) == pytest.approx(0.5 * np.log(2.0))
    assert float(metrics["value_loss"]) == pytest.approx(0.5 * value_loss)
    assert float(loss) == pytest.approx(0.5 * np.log(2.0) + 0.25 * value_loss)
    assert metrics.get("clipped_targets") == clipped
    np.testing.assert_allclose(errors, 3.0)


@pytest.mark.slow
def test_no_node_of_a_game_leads_to_an_illegal_move():
    """Also below the root, where fewer moves are legal than at the root; a finished game has none, and is frozen."""
    setup, az = prepare("env=pgx/tic_tac_toe", "+env.kwargs.opponent=self")
    env, system = setup.env, setup.build_system()

    @jax.jit
    def tree_of_the_first_move(key):
        state = start_episodes(env, system, jax.random.split(key, 4))
        shared = az.init(key, state.timestep).shared
        return az.tree(shared, state, state.timestep.observation, key, 64)[1].search_tree

    tree = tree_of_the_first_move(jax.random.key(0))
    games = env.env.env.native_state(unpack(tree.embeddings).state)
    counts, legal = np.asarray(tree.children_visits), np.asarray(games.legal_action_mask)
    moves = 9 - legal.sum(-1)
    going = np.asarray(~games.terminated) & np.asarray(tree.node_visits > 0)
    assert moves[going].max() > 1
    assert (counts[going][~legal[going]] == 0).all()
