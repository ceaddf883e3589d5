"""Train several systems on the five games of MinAtar, and write the returns as one table.

Each system has one setting for all games. Runs that are finished are not repeated, and those that were interrupted
resume; `--table` only reads them.

    python scripts/minatar.py runs/minatar
    python scripts/minatar.py runs/minatar_10m --steps 1e7 --seeds 5 --systems ff_ppo ff_rainbow
    python scripts/minatar.py runs/minatar --table
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import results

GAMES = {
    "asterix": "Asterix",
    "breakout": "Breakout",
    "freeway": "Freeway",
    "seaquest": "Seaquest",
    "space_invaders": "Space Invaders",
}
_RATES = ("system.actor_lr=1e-3", "system.critic_lr=1e-3")
# By system, the overrides of the command line. Images are flattened for perceptrons, which a CPU can afford.
SYSTEMS = {
    "ff_ppo": ("+experiment=_ppo_minatar", "system.normalize_observations=true", *_RATES),
    "ff_pqn": ("+experiment=pqn_breakout",),
    "ff_dqn": ("system=q_learning/ff_dqn", "network=mlp_dqn", "system.total_buffer_size=1e5"),
    "ff_rainbow": ("system=q_learning/ff_rainbow", "system.total_buffer_size=1e5"),
    "ff_a2c": ("system=vpg/ff_a2c", "network=mlp"),
    "ff_impala": ("+experiment=impala_breakout",),
}
DEFAULT = ("ff_ppo", "ff_pqn", "ff_dqn")


def main(argv: Sequence[str] | None = None) -> None:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="of the runs, one for each system and game")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=DEFAULT)
    parser.add_argument("--games", nargs="+", choices=GAMES, default=list(GAMES))
    parser.add_argument("--steps", type=float, default=1e6, help="environment steps of each seed")
    parser.add_argument("--seeds", type=int, default=3, help="trained together, as the members of a population")
    parser.add_argument("--table", action="store_true", help="only write the table of the finished runs")
    args = parser.parse_args(argv)
    if not args.table:
        for game in args.games:
            for system in args.systems:
                train(args.directory, system, game, args.steps, args.seeds)
    print(table(args.directory, args.systems, args.games))


def train(directory: Path, system: str, game: str, steps: float, seeds: int) -> None:
    """Train the seeds of one cell of the table, unless its run is finished."""
    results.train(directory / system / game, command_of(system, game, steps, seeds), check=True)


def command_of(system: str, game: str, steps: float, seeds: int) -> list[str]:
    """Return the arguments of `stoix-like` that train the seeds of one cell of the table."""
    budget = [f"arch.total_timesteps={steps:.0f}", f"arch.population.size={seeds}", "arch.seed=0", "arch.num_devices=1"]
    return ["train", *SYSTEMS[system], f"env=gymnax/{game}", *budget]


def table(directory: Path, systems: Sequence[str], games: Sequence[str]) -> str:
    """Return the markdown table: interquartile means over seeds (means of fewer than four) of the final policy."""
    rows = [
        {"system": f"`{system}`"} | {GAMES[game]: results.format_run(directory / system / game) for game in games}
        for system in systems
    ]
    return "\n".join(results.format_table(rows))


if __name__ == "__main__":
    main()
