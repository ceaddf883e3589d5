"""AlphaZero: its losses, its targets at the ends of episodes, and its search in games for two."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from off_policy_runs import timestep
from programs import train

from stoix_like.architectures.acting import start_episodes
from stoix_like.base_types import Axes, Observation, Trajectory, Transition
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.run.setup import set_up
from stoix_like.systems.search.planner import Found
from stoix_like.utils.packing import unpack
from stoix_like.utils.replay import Remembered, SequenceBatch, Step

SMALL = [
    *("arch.total_num_envs=4", "arch.num_devices=1", "system.num_simulations=4", "system.evaluation_simulations=4"),
    *("system.rollout_length=4", "system.sequence_length=4", "system.sequence_period=4", "system.warmup_steps=4"),
    *("system.total_batch_size=4", "system.epochs=1", "system.total_buffer_size=64"),
    *(f"network.{name}_network.pre_torso.layer_sizes=[4]" for name in ("actor", "critic")),
]


def prepare(*overrides):
    setup = set_up(parse_config(compose_config(["system=search/ff_az", *SMALL, *overrides])))
    return setup, dataclasses.replace(setup.build_system().init.__self__, axes=Axes())


def steps_of(found, truncated):
    """Return four steps of one environment with these searches, the second one truncated or not."""
    nothing, no = jnp.zeros((4, 1)), jnp.zeros((4, 1), bool)
    ends = no.at[1].set(truncated)
    view = Observation(jnp.arange(4.0)[:, None, None])
    successor = Observation(jnp.arange(10.0, 14.0)[:, None, None])
    return Transition(view, no[..., :].astype(jnp.int32), nothing, no, ends, successor, no, Remembered((), found))


@pytest.mark.parametrize("truncated", [False, True])
def test_successors_are_worth_what_the_next_search_found_except_beyond_the_end(truncated, monkeypatch):
    """Searches found 1, 2, 3, 4; the critic gives ten times a view, and the true successors have the views 10 … 13.

    Step 3 is the last: 130 of the critic. Step 1 is worth 3, or where the episode is truncated after it 110.
    """
    _, az = prepare("env=probe/value", "arch.total_num_envs=1", "system.total_batch_size=1")
    networks = dataclasses.replace(az.networks)
    object.__setattr__(networks, "value", lambda params, observation: 10.0 * observation.agent_view[..., 0])
    added = []
    replay = az.replay._replace(add=lambda local, trajectory: added.append(trajectory.transitions.extras.extras.value))
    az = dataclasses.replace(az, networks=networks, replay=replay)
    agent = az.init(jax.random.key(0), timestep([0], [False]))
    found = Found(None, jnp.ones((4, 1, 1)), jnp.arange(1.0, 5.0)[:, None])
    az.observe(agent, Trajectory(steps_of(found, truncated), ()))
    np.testing.assert_allclose(added[0][:, 0], [2.0, 110.0 if truncated else 3.0, 4.0, 130.0])


@pytest.mark.parametrize(("opponent", "sign"), [("random", 1.0), ("self", -1.0)])
def test_targets_change_their_sign_with_the_player_to_move(opponent, sign):
    """Of three steps with rewards 1, 2, 4, gamma 0.5 and successors worth 8; the second episode ends in step 1.

    Two steps each: 1 + g (2 + g 8), 2 + g (4 + g 8), 4 + g 8 with g = ± 0.5, and of the second 1 + g 2 and 2.
    """
    _, az = prepare("env=pgx/tic_tac_toe", f"+env.kwargs.opponent={opponent}", "system.n_step=2", "system.gamma=0.5")
    reward = jnp.asarray([[1.0, 1.0], [2.0, 2.0], [4.0, 4.0]])
    no, nothing = jnp.zeros((3, 2), bool), jnp.zeros((3, 2))
    found = Found(None, jnp.ones((3, 2, 9)) / 9, jnp.full((3, 2), 8.0))
    steps = Step(Observation(nothing), nothing, reward, no.at[1, 1].set(True), no, None, found)
    target = az.value_target(SequenceBatch(steps, no, (), jnp.ones((1, 2)), None))
    g = sign * 0.5
    last = 4 + g * 8
    np.testing.assert_allclose(target, [[1 + g * (2 + g * 8), 1 + g * 2], [2 + g * last, 2.0], [last, last]])


def test_the_loss_is_a_cross_entropy_and_half_a_squared_error():
    """A uniform policy over two actions has the cross-entropy log 2 with any weights; values are off by 3."""
    _, az = prepare("env=probe/policy", "system.vf_coef=0.5", "system.n_step=1", "system.normalize_observations=false")
    agent = az.init(jax.random.key(0), timestep([0] * 4, [False] * 4))
    params = jax.tree.map(jnp.zeros_like, agent.shared.params)
    no, nothing = jnp.zeros((2, 4), bool), jnp.zeros((2, 4))
    found = Found(None, jnp.broadcast_to(jnp.asarray([0.25, 0.75]), (2, 4, 2)), nothing)
    view = Observation(jnp.zeros((2, 4, 1)))
    batch = SequenceBatch(Step(view, nothing, nothing + 3.0, no, no, None, found), no, (), jnp.ones((1, 4)), None)
    loss, (metrics, errors) = az.loss(params, (), batch, jax.random.key(1))
    assert float(metrics["policy_loss"]) == pytest.approx(np.log(2.0))
    assert float(metrics["value_loss"]) == pytest.approx(4.5)
    assert float(loss) == pytest.approx(np.log(2.0) + 0.5 * 4.5)
    np.testing.assert_allclose(errors, 3.0)


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


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [["system.search_method=puct"], ["system.max_depth=2", "system.prioritised=true"]]
)
def test_it_learns_the_action_of_a_probe(overrides):
    budget = ["env=probe/policy", "arch.total_timesteps=4096", "system.actor_lr=1e-2", "system.epochs=4"]
    setup, state = train(["system=search/ff_az", *SMALL, *budget, *overrides])
    views = jnp.asarray([[-1.0], [1.0]])
    pi = setup.build_system().inspect(state.shared, Observation(views)).policy
    best = [int(np.argmax(row)) for row in np.asarray(pi.probs)]
    assert best[0] != best[1]
    assert (np.asarray(pi.probs).max(-1) > 0.8).all()
