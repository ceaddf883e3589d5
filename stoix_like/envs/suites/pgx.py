"""Adapter for pgx.

In a game for two, the agent is player 0 of pgx, which draws at each reset who starts, and `env.kwargs.opponent` is the
other: between two steps of the agent, the opponent moves until it is the agent's turn again. With the opponent `self`,
each step is a move of the player to move, see `VectorEnvironment.num_players`.
"""

from __future__ import annotations

import functools
import importlib
import typing
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pgx

from stoix_like.base_types import Observation
from stoix_like.envs.arguments import check_names, check_scenario, construct
from stoix_like.envs.environment import State, VectorEnvironment, Vectorize, strongly_typed
from stoix_like.envs.opponents import KEY, RANDOM, Opponent, find_opponent
from stoix_like.envs.scenes import svg, views
from stoix_like.envs.scenes.base import Scene
from stoix_like.envs.spaces import Box, Discrete
from stoix_like.envs.suites.adapter import SuiteEnvironment
from stoix_like.errors import ConfigError
from stoix_like.user_code import refusing

# Games of pgx that are not supported here, with the reason.
_UNSUPPORTED = {
    "bridge_bidding": "it would download its tables of results",
    "sparrow_mahjong": "it has three players, and at most two are supported",
}

# The largest number of moves by both players, after which these games end without a result. Go ends with one.
_MOVE_LIMITS = {"animal_shogi": 256, "chess": 512, "gardner_chess": 256, "shogi": 512}

# Games that end after a time that is not observed, and by nothing else.
_TIMED = frozenset({"minatar-freeway"})

# Arguments with which pgx builds the scenarios.
_PRESETS = {"go_9x9": {"size": 9, "komi": 7.5}, "go_19x19": {"size": 19, "komi": 7.5}}

# The opponent with which actions are moves of both players, which only training knows.
_SELF = "self"
_KEY = "env.kwargs.opponent"

# Games in which the players move in turn; in others, the opponent may have several moves in a row, or none.
_IN_TURN = frozenset(
    {
        *("animal_shogi", "chess", "connect_four", "gardner_chess", "go_9x9", "go_19x19", "hex", "kuhn_poker"),
        *("othello", "shogi", "tic_tac_toe"),
    }
)

# The player that is the agent.
_AGENT = 0

# Folded into the key of a step, so that the opponent's moves and all dice are independent. Keys that are folded and not
# split cost nothing in games without dice.
_OPPONENT_STREAM, _DICE_STREAM = 0x0FF0, 0xD1CE


class PgxEnvironment(SuiteEnvironment):
    """A game of pgx for one player, or for two with an opponent.

    `opponent`: chooses the actions of the other player; None: each action is a move of the player to move.
    """

    def __init__(self, env: Any, opponent: Opponent | None) -> None:
        self._env, self._opponent = env, opponent
        self.num_players = 2 if opponent is None else 1
        self._move_limit = _MOVE_LIMITS.get(env.id)
        with jax.numpy_rank_promotion("allow"):
            game = jax.eval_shape(env.init, jax.random.key(0))
        self.action_space = Discrete(game.legal_action_mask.shape[0])
        low, high = (0.0, 1.0) if game.observation.dtype == bool else (-np.inf, np.inf)
        self.observation_space = Box(low, high, game.observation.shape)

    def start(self, key: jax.Array) -> tuple[Any, State]:
        game = _unobserved(self._env.init(key))
        if self._opponent is not None:
            game, _ = self._play_opponent(self._opponent, key, game)
        return game, game

    def advance(self, key: jax.Array, state: State, action: jax.Array) -> tuple[Any, State, Any, Any, Any]:
        game = self._move(key, state, action)
        if self._opponent is None:
            reward = game.rewards[state.current_player]
        else:
            game, reward = self._play_opponent(self._opponent, key, game)
        undecided = self._at_limit(game)
        return game, game, reward, game.terminated & ~undecided, game.truncated | undecided

    def against(self, opponent: Any) -> PgxEnvironment:
        return PgxEnvironment(self._env, _find_opponent(opponent, self._env))

    def scene(self) -> Scene | None:
        name = self._env.id
        if name == "shogi":  # written in Japanese, for which matplotlib has no font
            return None
        if name not in pgx.available_envs() or name.startswith("minatar-"):
            return views.find_scene(self.observation_space)
        # Some drawings update arrays as jax does.
        return svg.from_svg(lambda state: str(jax.tree.map(jnp.asarray, state).to_svg()), fps=2)

    def _move(self, key: jax.Array, game: Any, action: jax.Array) -> Any:
        return _unobserved(self._env.step(game, action, jax.random.fold_in(key, _DICE_STREAM)))

    def _play_opponent(self, opponent: Opponent, key: jax.Array, game: Any) -> tuple[Any, jax.Array]:
        """Play until it is the agent's turn or the game ends; return the game and the sum of the agent's rewards."""
        reward = jnp.asarray(game.rewards[_AGENT], jnp.float32)
        if self._env.num_players == 1:
            return game, reward

        def is_opponents_turn(carry: Any) -> jax.Array:
            _, game, _ = carry
            return (game.current_player != _AGENT) & ~game.terminated & ~game.truncated

        def reply(carry: Any) -> Any:
            key, game, reward = carry
            key = jax.random.fold_in(key, _OPPONENT_STREAM)
            game = self._move(key, game, opponent(key, game.replace(observation=self._env.observe(game))))
            return key, game, reward + game.rewards[_AGENT]

        carry = (key, game, reward)
        if self._env.id in _IN_TURN:
            turn, after = is_opponents_turn(carry), reply(carry)
            carry = jax.tree.map(lambda new, old: jnp.where(turn, new, old), after, carry)
        else:
            carry = jax.lax.while_loop(is_opponents_turn, reply, carry)
        return carry[1:]

    def _at_limit(self, game: Any) -> jax.Array:
        if self._env.id in _TIMED:
            return game.terminated
        if self._move_limit is None:
            return jnp.zeros((), bool)
        return (game._step_count >= self._move_limit) & (game.rewards == 0.0).all()

    def observe(self, game: Any) -> Observation:
        # Against an opponent, it may be the other's turn at the end of a game.
        player = game.current_player if self._opponent is None else _AGENT
        view = self._env._observe(game, player)
        mask = game.legal_action_mask
        if self._move_limit is not None:  # pgx allows every action after the end
            mask = jnp.where(self._at_limit(game), _legal_actions(game), mask)
        # The legal actions of the other player are none of this one's.
        return Observation(jnp.asarray(view, jnp.float32), mask | (game.current_player != player))


def _legal_actions(game: Any) -> jax.Array:
    """Return the legal actions of a game with a limit of moves, also where it has ended."""
    if hasattr(game, "_x"):  # chess and shogi
        return game._x.legal_action_mask
    return importlib.import_module(type(game).__module__)._legal_action_mask(game)


def _unobserved(game: Any) -> Any:
    """Return the game without the observation of pgx, which most steps do not need, and without weak types."""
    return strongly_typed(game.replace(observation=None))


def random_opponent(key: jax.Array, game: Any) -> jax.Array:
    """Draw a legal action uniformly."""
    mask = game.legal_action_mask
    return Discrete(mask.shape[0]).sample(key, mask)


def scenarios() -> list[str]:
    """List the ids of the supported games."""
    return [name for name in pgx.available_envs() if name not in _UNSUPPORTED]


def make(name: str, kwargs: Mapping[str, Any], params: Mapping[str, Any]) -> VectorEnvironment:
    """Build games of pgx."""
    check_scenario("pgx", name, scenarios(), _UNSUPPORTED)
    env = pgx.make(name)
    if arguments := {key: value for key, value in kwargs.items() if key != "opponent"}:
        env = construct(functools.partial(env.__class__, **_PRESETS.get(name, {})), arguments, name)
        # pgx does not check sizes, and some games have only one that works.
        with refusing(f"env.kwargs={arguments} is invalid for {name}", "use values like the defaults"):
            jax.eval_shape(env.init, jax.random.key(0))
    return adapt(env, kwargs, params, name)


def adapt(env: Any, kwargs: Mapping[str, Any], params: Mapping[str, Any], name: str) -> VectorEnvironment:
    """Convert a game with the interface of pgx."""
    check_names("env.params", params, [], name)
    # Of games of the suite, also those that are named by their class; it has boards of Go of any size.
    known = env.id in scenarios() and env.id not in _IN_TURN
    if kwargs.get("opponent") == _SELF and env.num_players == 2 and known:
        games = ", ".join(sorted(_IN_TURN))
        raise ConfigError(
            f"env.kwargs.opponent={_SELF} does not fit {name}, where players do not alternate: use {games}, or a game"
            " with an id of its own"
        )
    if env.num_players > 2:
        raise ConfigError(f"{name} has {env.num_players} players, and at most two are supported")
    if env.num_players == 1:
        if "opponent" in kwargs:
            raise ConfigError(f"env.kwargs.opponent={kwargs['opponent']!r} has no effect: {name} is single-player")
        return Vectorize(PgxEnvironment(env, random_opponent))
    opponent = kwargs.get("opponent", RANDOM)
    return Vectorize(PgxEnvironment(env, None if opponent == _SELF else _find_opponent(opponent, env, _KEY)))


def _find_opponent(opponent: Any, env: Any, key: str = KEY) -> Opponent:
    """Return the opponent of a game that a configuration key names."""
    if opponent in typing.get_args(pgx.BaselineModelId):
        raise ConfigError(f"{key}={opponent} is not supported: pgx would download the model")
    return find_opponent(opponent, env.init, random_opponent, key, f"random, {_SELF}," if key == _KEY else RANDOM)
