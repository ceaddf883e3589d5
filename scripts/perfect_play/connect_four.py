"""Connect four solved exactly: alpha-beta search on bitboards, with threats, move ordering and a transposition table.

Source: Pons, "Solving Connect 4: how to build a perfect AI", blog.gamesolver.org. A position is `(mine, taken)`: the
squares of the player to move, and those of both, as bits of two numbers. Bit `7 * column + height` is a square; the
seventh bit of each column stays empty.

Scores count from the end of the game: a win by the player's last possible stone is 1, by the one before 2, and so on; a
loss is minus the other's score, a draw 0.
"""

import numpy as np

WIDTH, HEIGHT = 7, 6
_UP = HEIGHT + 1
_BOTTOM = sum(1 << _UP * column for column in range(WIDTH))
_BOARD = _BOTTOM * ((1 << HEIGHT) - 1)
_COLUMNS = [((1 << HEIGHT) - 1) << _UP * column for column in range(WIDTH)]
# The middle first.
_ORDER = sorted(range(WIDTH), key=lambda column: abs(column - WIDTH // 2))
_ORDERED_COLUMNS = [_COLUMNS[column] for column in _ORDER]
_MAX_ENTRIES = 3_000_000
_WIDEST = 22


class Solver:
    """Solves positions, and remembers bounds of those that it has seen."""

    def __init__(self):
        self._bounds = {}

    def value(self, mine, taken):
        return 1 if self.reaches(mine, taken, 1) else 0 if self.reaches(mine, taken, 0) else -1

    def reaches(self, mine, taken, score):
        """Return whether the score of the position is at least this."""
        return self._search(mine, taken, score - 1, score) >= score

    def best_moves(self, mine, taken):
        """Return the moves that keep the result of perfect play."""
        after = {column: self._after(mine, taken, column) for column in legal_moves(taken)}
        for value in (1, 0):
            # The value of a move is at least v if that of the other player is not at least 1 - v.
            found = [
                column
                for column, (theirs, both) in after.items()
                if has_won(theirs ^ both)
                or (value == 0 if both == _BOARD else not self.reaches(theirs, both, 1 - value))
            ]
            if found:
                return found
        return list(after)

    def _after(self, mine, taken, column):
        return mine ^ taken, taken | possible(taken) & _COLUMNS[column]

    def _search(self, mine, taken, alpha, beta):
        free = possible(taken)
        if _threats(mine, taken) & free:
            return (43 - taken.bit_count()) // 2
        return self._negamax(mine, taken, alpha, beta)

    def _negamax(self, mine, taken, alpha, beta):
        """Search a position in which the player to move cannot win at once."""
        theirs, moves = mine ^ taken, taken.bit_count()
        squares = _safe_squares(theirs, taken)
        if not squares:
            return -((42 - moves) // 2)
        if moves >= 40:
            return 0
        # Nobody wins by the next two stones.
        low, high = self._bounds.get(mine + taken, (-((40 - moves) // 2), (41 - moves) // 2))
        if low >= beta or high <= alpha:
            return low if low >= beta else high
        alpha, beta = max(alpha, low), min(beta, high)
        if alpha >= beta:
            return alpha
        best = self._best_of(_ordered(squares, mine, taken), theirs, taken, alpha, beta)
        if len(self._bounds) > _MAX_ENTRIES:
            self._bounds.clear()
        # At beta or above, the score is a lower bound, and at alpha or below an upper one.
        self._bounds[mine + taken] = (best if best > alpha else low, best if best < beta else high)
        return best

    def _best_of(self, stones, theirs, taken, alpha, beta):
        """Return the best score of the moves; the first one that reaches beta is good enough."""
        best = -_WIDEST
        for stone in stones:
            best = max(best, -self._negamax(theirs, taken | stone, -beta, -alpha))
            if best >= beta:
                break
            alpha = max(alpha, best)
        return best


def possible(taken):
    return (taken + _BOTTOM) & _BOARD


def legal_moves(taken):
    return [column for column in range(WIDTH) if taken & _COLUMNS[column] != _COLUMNS[column]]


def has_won(stones):
    for shift in (1, _UP - 1, _UP, _UP + 1):
        pairs = stones & stones >> shift
        if pairs & pairs >> 2 * shift:
            return True
    return False


def play(columns):
    mine = taken = 0
    for column in columns:
        stone = possible(taken) & _COLUMNS[column]
        mine, taken = mine ^ taken, taken | stone
    return mine, taken


def board_of(mine, taken):
    """Return the board `[6, 7, 2]` bool, the top row first: stones of the player to move, and of the other one."""
    bits = np.array([[column * _UP + HEIGHT - 1 - row for column in range(WIDTH)] for row in range(HEIGHT)])
    return np.stack(
        [[[bool(stones >> int(bit) & 1) for bit in row] for row in bits] for stones in (mine, mine ^ taken)], -1
    )


def position_of(board):
    mine = taken = 0
    for row, column, player in zip(*np.nonzero(board), strict=True):
        bit = 1 << int(column) * _UP + HEIGHT - 1 - int(row)
        taken |= bit
        mine |= 0 if player else bit
    return mine, taken


def draw_positions(rng, number, min_plies=12, max_plies=30):
    found = set()
    while len(found) < number:  # transpositions count once
        mine = taken = 0
        for _ in range(rng.integers(min_plies, max_plies + 1)):
            stone = possible(taken) & _COLUMNS[rng.choice(legal_moves(taken))]
            mine, taken = mine ^ taken, taken | stone
            if has_won(mine ^ taken):
                break
        else:
            if taken != _BOARD:
                found.add((mine, taken))
    return sorted(found)


def _safe_squares(theirs, taken):
    """Return the squares after which the other one cannot win at once."""
    free, threats = possible(taken), _threats(theirs, taken)
    if forced := free & threats:
        free = 0 if forced & forced - 1 else forced
    # No stone below a square with which the other one would win.
    return free & ~(threats >> 1)


def _ordered(squares, mine, taken):
    """Return the squares, those that threaten most first, and the middle before the sides."""
    stones = [stone for column in _ORDERED_COLUMNS if (stone := squares & column)]
    if len(stones) > 1:
        stones.sort(key=lambda stone: -_threats(mine | stone, taken | stone).bit_count())
    return stones


def _threats(stones, taken):
    """Return the empty squares with which a player would have four in a row."""
    found = stones << 1 & stones << 2 & stones << 3
    for shift in (_UP, _UP - 1, _UP + 1):
        pair = stones << shift & stones << 2 * shift
        found |= pair & stones << 3 * shift
        found |= pair & stones >> shift
        pair = stones >> shift & stones >> 2 * shift
        found |= pair & stones << shift
        found |= pair & stones >> 3 * shift
    return found & _BOARD & ~taken
