"""Measure how well runs play games whose perfect play is known: tic-tac-toe and connect four.

Tic-tac-toe: games from both seats against a player that draws among all best moves. Connect four: the share of moves
that keep the result of perfect play, on positions 12 to 30 plies deep, of random games and of games against itself; and
on those of them where some legal move does not keep it.

    python scripts/solved_games.py runs/my_run
    python scripts/solved_games.py runs/my_run --which 500000 --simulations 0 32
    python scripts/solved_games.py runs/my_population --member 3
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from perfect_play import connect_four, measures
from stoix_like.policies.load import open_run


def main() -> None:
    """Print the results of a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--which", default="last", help="last, best, or the environment steps of a checkpoint")
    parser.add_argument("--member", type=int, help="of a population")
    parser.add_argument("--simulations", type=int, nargs="+", default=[0, 32], help="per move; 0: the policy network")
    parser.add_argument("--games", type=int, default=1000, help="of tic-tac-toe")
    parser.add_argument("--positions", type=int, default=300, help="of connect four, of each kind")
    args = parser.parse_args()
    which = args.which, args.member
    name = open_run(args.run_dir, trust=True).setup.config.env.scenario.name
    if name not in ("tic_tac_toe", "connect_four"):
        parser.error(f"{args.run_dir} plays {name}: use a run on tic_tac_toe or connect_four")
    if name == "tic_tac_toe":
        for simulations in args.simulations:
            results = measures.against_perfect_player(args.run_dir, args.games, simulations, *which)
            print("{} simulations: {} won, {} drawn, {} lost".format(simulations, *results))
        share = measures.tic_tac_toe_share(args.run_dir, *which)
        print(f"policy network: best moves in {share:.2%} of all positions")
        return
    players = {n: measures.ConnectFourPlayer(args.run_dir, args.which, n, args.member) for n in args.simulations}
    drawn = connect_four.draw_positions(np.random.default_rng(0), args.positions)
    own = players[max(players)].positions(args.positions)
    solver = connect_four.Solver()
    for kind, positions in {"random games": drawn, "its games": own}.items():
        best = [solver.best_moves(*position) for position in positions]
        legal = [connect_four.legal_moves(taken) for _, taken in positions]
        for simulations, player in players.items():
            found = measures.share_of_best_moves(player.moves(positions), best, legal)
            text = ", ".join(f"{share:.1%} of {number} ({which})" for which, (share, number) in found.items())
            print(f"{kind}, {simulations} simulations: {text}", flush=True)


if __name__ == "__main__":
    main()
