import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from perfect_play import connect_four, measures, tic_tac_toe
from stoix_like.envs import EnvConfig, ScenarioConfig, make, make_eval
from stoix_like.lab.ladder import ladder


def test_tic_tac_toe_has_5478_positions_and_is_a_draw():
    assert len(tic_tac_toe.positions()) == 5478
    assert sum(not tic_tac_toe.legal_moves(*each) for each in tic_tac_toe.positions()) == 958
    assert tic_tac_toe.value(0, 0) == 0
    # A corner is answered by the centre alone, and two in a row are completed.
    assert tic_tac_toe.best_moves(0, 1) == [4]
    assert tic_tac_toe.best_moves(0b011, 0b011_000) == [2]
    assert tic_tac_toe.table().sum() == sum(len(tic_tac_toe.best_moves(*each)) for each in tic_tac_toe.positions())


@functools.cache
def slow_score(mine, taken):
    """Return the score of a position by minimax without anything that makes it fast."""
    if connect_four.has_won(mine ^ taken):
        return -((44 - taken.bit_count()) // 2)
    scores = [-slow_score(mine ^ taken, after) for after in successors(taken)]
    return max(scores, default=0)


def successors(taken):
    lowest = [(taken >> 7 * column & 63) + 1 << 7 * column for column in connect_four.legal_moves(taken)]
    return [taken | stone for stone in lowest]


@pytest.mark.parametrize("plies", [34, 36, 38, 40])
def test_the_solver_equals_minimax(plies):
    solver = connect_four.Solver()
    for mine, taken in connect_four.draw_positions(np.random.default_rng(plies), 8, plies, plies):
        score = slow_score(mine, taken)
        assert solver.value(mine, taken) == np.sign(score)
        scores = [-slow_score(mine ^ taken, after) for after in successors(taken)]
        legal = connect_four.legal_moves(taken)
        best = [column for column, each in zip(legal, scores, strict=True) if np.sign(each) == np.sign(score)]
        assert solver.best_moves(mine, taken) == best


def test_boards_and_positions_convert_into_each_other():
    for position in connect_four.draw_positions(np.random.default_rng(0), 10):
        assert connect_four.position_of(connect_four.board_of(*position)) == position
    # The first stone lies in the bottom row, and is the other player's by now.
    assert connect_four.board_of(*connect_four.play([2]))[5, 2].tolist() == [False, True]


@pytest.mark.slow
def test_boards_are_those_of_pgx():
    config = EnvConfig("pgx", ScenarioConfig("connect_four"), kwargs={"opponent": "self"})
    env = make(config)
    keys = jax.random.split(jax.random.key(0), 1)
    _, timestep = env.reset(keys)
    step, state = jax.jit(env.step), env.reset(keys)[0]
    columns = [3, 3, 2, 0, 6, 6, 6, 1]
    for count, column in enumerate(columns, 1):
        state, timestep = step(keys, state, jnp.array([column]))
        board = connect_four.board_of(*connect_four.play(columns[:count]))
        np.testing.assert_array_equal(timestep.next_observation.agent_view[0], board)


@pytest.mark.slow
def test_perfect_players_never_lose_tic_tac_toe():
    """Against random moves they win most games; illegal moves, or a seat taken for the other one, would lose some."""
    config = EnvConfig(
        "pgx",
        ScenarioConfig("tic_tac_toe"),
        kwargs={"opponent": "self"},
        eval_opponent="perfect_play.tic_tac_toe.perfect_player",
    )
    env = make_eval(config)

    @jax.jit
    def play(key):
        def step(carry, key):
            state, timestep, result, done = carry
            keys = jax.random.split(key, 512)
            action = jax.vmap(env.action_space.sample)(keys, timestep.observation.action_mask)
            state, timestep = env.step(keys, state, action)
            result = jnp.where(done, result, timestep.episode.episode_return)
            return (state, timestep, result, done | timestep.terminated), None

        start = (*env.reset(jax.random.split(key, 512)), jnp.zeros(512), jnp.zeros(512, bool))
        return jax.lax.scan(step, start, jax.random.split(key, 5))[0][2:]

    result, done = play(jax.random.key(0))
    assert done.all()
    assert (result <= 0).all()
    assert (result < 0).mean() > 0.75


@pytest.mark.learn
@pytest.mark.optimized
def test_tic_tac_toe_is_learned_by_self_play(tmp_path):
    """Half of the preset: with search it never loses against perfect play, and the network alone loses at most 5 %."""
    overrides = ["+experiment=az_tic_tac_toe", "arch.total_timesteps=2.5e5", "arch.num_evaluation=4", "logger=silent"]
    run_dir = stoix_like.train("search/ff_az", overrides, run_dir=tmp_path / "run").run_dir
    wins, draws, losses = measures.against_perfect_player(run_dir, simulations=32)
    assert (wins, losses) == (0, 0)
    assert draws == 1000
    assert measures.against_perfect_player(run_dir, simulations=0)[2] <= 50
    assert measures.tic_tac_toe_share(run_dir) > 0.95
    elo = [player["elo"] for player in ladder(run_dir)["players"]]
    assert elo[-1] > -20
