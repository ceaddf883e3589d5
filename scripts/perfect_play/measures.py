"""How well trained policies play games whose perfect play is known."""

import jax
import jax.numpy as jnp
import numpy as np

from perfect_play import connect_four, tic_tac_toe
from stoix_like.base_types import Observation, RolloutState
from stoix_like.envs import factory
from stoix_like.inference.evaluation import evaluate
from stoix_like.policies.load import load_member, open_run

# Random moves before the games in which positions are collected.
_OPENINGS = 6
_MAX_PLIES = 42


def against_perfect_player(run_dir, games=1000, simulations=None, which="last", member=None):
    """Play tic-tac-toe from both seats against all perfect play; return the numbers of wins, draws and losses."""
    opponent = "perfect_play.tic_tac_toe.perfect_player"
    record = evaluate(
        run_dir, games, which=which, member=member, opponent=opponent, simulations=simulations, trust=True
    )
    return record["wins"], record["draws"], record["losses"]


def tic_tac_toe_share(run_dir, which="last", member=None):
    """Return the share of best moves of the policy network, on all positions of tic-tac-toe that go on."""
    run = open_run(run_dir, trust=True)
    member = load_member(run, which, member)
    boards = np.stack(
        [tic_tac_toe.board_of(*each) for each in tic_tac_toe.positions() if tic_tac_toe.legal_moves(*each)]
    )
    view = np.stack([boards == 1, boards == 2], -1).astype(np.float32)
    view = jnp.asarray(view.reshape(-1, *run.setup.spec.observation_space.shape))
    inspect = jax.jit(run.setup.build_system(member.hyperparams).inspect)
    moves = np.asarray(inspect(member.shared, Observation(view, jnp.asarray(boards == 0))).policy.mode())
    return tic_tac_toe.table()[tic_tac_toe.code(boards), moves].mean()


class ConnectFourPlayer:
    """The greedy policy of a run on connect four.

    Args:
        run_dir: its directory.
        which: its parameters.
        simulations: of its search, 0 for the policy network; None: as in its evaluations.
        member: the index of a member of a population.
    """

    def __init__(self, run_dir, which="last", simulations=None, member=None):
        run = open_run(run_dir, trust=True)
        config, self._member = run.setup.config, load_member(run, which, member)
        self._env = factory.make_games(config.env, config.custom_env)
        changes = {} if simulations is None else {"evaluation_simulations": simulations}
        system = run.setup.build_system({**self._member.hyperparams, **changes}, greedy=True)
        self._carry, self._act = system.init_carry, jax.jit(system.eval_act)
        self._reset, self._step = jax.jit(self._env.reset), jax.jit(self._env.step)

    def moves(self, positions, key=0):
        state = self._state_of(positions)
        return np.asarray(self._act(self._member.shared, state, jax.random.key(key))[1])

    def positions(self, number, min_plies=12, max_plies=30, seed=0):
        """Collect positions of games against itself, one at most of each game, after random openings."""
        rng, found, games = np.random.default_rng(seed), set(), 2 * number
        keys = jax.random.split(jax.random.key(seed), games)
        env_state, timestep = self._reset(keys)
        wanted, going = rng.integers(min_plies, max_plies + 1, games), np.ones(games, bool)
        for ply in range(_MAX_PLIES):
            views = np.asarray(timestep.next_observation.agent_view).reshape(games, 6, 7, 2)
            found |= {connect_four.position_of(view) for view in views[going & (wanted == ply)]}
            state = RolloutState(env_state, timestep, self._carry(games))
            action = np.array(self._act(self._member.shared, state, jax.random.key(ply))[1])
            if ply < _OPENINGS:
                legal = np.asarray(timestep.next_observation.action_mask)
                action = np.array([rng.choice(np.flatnonzero(row)) for row in legal], np.int32)
            env_state, timestep = self._step(keys, env_state, jnp.asarray(action))
            going &= ~np.asarray(timestep.terminated)
        return sorted(found)[:number]

    def _state_of(self, positions):
        boards = np.stack([connect_four.board_of(*each) for each in positions])
        env_state, timestep = self._reset(jax.random.split(jax.random.key(0), len(positions)))
        game = env_state.env_state
        plies = boards.sum((1, 2, 3))
        color = (plies % 2).astype(np.int32)
        stones = np.where(boards[..., 0], color[:, None, None], np.where(boards[..., 1], 1 - color[:, None, None], -1))
        legal = jnp.asarray(~boards[:, 0].any(-1))
        x = game._x._replace(color=jnp.asarray(color), board=jnp.asarray(stones.reshape(-1, 42), jnp.int32))
        game = game.replace(_x=x, legal_action_mask=legal, _step_count=jnp.asarray(plies, jnp.int32))
        view = jnp.asarray(boards.reshape(-1, *self._env.observation_space.shape), jnp.float32)
        observation = Observation(view, legal)
        timestep = timestep._replace(observation=observation, next_observation=observation)
        return RolloutState(env_state._replace(env_state=game), timestep, self._carry(len(positions)))


def share_of_best_moves(moves, best, legal):
    """Return the share of moves that keep the result of perfect play: of all, and where some legal move does not.

    Args:
        moves: those of the policy.
        best: for each, those that keep the result.
        legal: for each, all legal ones.

    Returns:
        By name, the share and the number of moves.
    """
    kept = np.array([move in each for move, each in zip(moves, best, strict=True)])
    decisive = np.array([len(these) < len(all_) for these, all_ in zip(best, legal, strict=True)])
    return {"all": (kept.mean(), len(kept)), "decisive": (kept[decisive].mean(), decisive.sum())}
