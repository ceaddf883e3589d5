"""Tic-tac-toe solved by enumeration: every position, its value, and its best moves.

A position is `(mine, theirs)`, the squares 0 … 8 of the player to move and of the other one as bits of two numbers.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

_LINES = [sum(1 << square for square in line) for line in ((0, 1, 2), (3, 4, 5), (6, 7, 8))]
_LINES += [sum(1 << square for square in line) for line in ((0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))]
_POWERS = 3 ** np.arange(9, dtype=np.int32)


def has_won(stones):
    return any(stones & line == line for line in _LINES)


def legal_moves(mine, theirs):
    return [] if has_won(theirs) else [square for square in range(9) if not (mine | theirs) >> square & 1]


@functools.cache
def value(mine, theirs):
    if has_won(theirs):
        return -1
    return max((-value(theirs, mine | 1 << move) for move in legal_moves(mine, theirs)), default=0)


def best_moves(mine, theirs):
    best = value(mine, theirs)
    return [move for move in legal_moves(mine, theirs) if -value(theirs, mine | 1 << move) == best]


@functools.cache
def positions():
    found, new = {(0, 0)}, [(0, 0)]
    while new:
        mine, theirs = new.pop()
        after = {(theirs, mine | 1 << move) for move in legal_moves(mine, theirs)} - found
        found |= after
        new += after
    return sorted(found)


@functools.cache
def table():
    """Return the best moves `[3**9, 9]` bool of all positions, by their codes; of none at the end of a game."""
    found = np.zeros((3**9, 9), bool)
    for mine, theirs in positions():
        found[code(board_of(mine, theirs)), best_moves(mine, theirs)] = True
    return found


def board_of(mine, theirs):
    """Return a board `[9]`: 0 for empty squares, 1 for those of the player to move, 2 for the other's."""
    return np.array([(mine >> square & 1) + 2 * (theirs >> square & 1) for square in range(9)], np.int32)


def code(board):
    """Return the index `[...]` of boards `[..., 9]` in the table."""
    return (board * _POWERS).sum(-1)


def board_in(game):
    """Return the board `[9]` of a game of pgx, as `board_of`."""
    stones = game._x.board
    return jnp.where(stones < 0, 0, jnp.where(stones == game._x.color, 1, 2))


def perfect_player(key, game):
    best = jnp.asarray(table())[code(board_in(game))]
    # At the end of a game, all moves are legal.
    legal = jnp.where(best.any(), best, game.legal_action_mask)
    return jax.random.categorical(key, jnp.where(legal, 0.0, -jnp.inf))
