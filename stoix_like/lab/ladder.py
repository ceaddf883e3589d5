"""Matches between the checkpoints of a run, or the members of its population: `stoix-like ladder`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.architectures.evaluator import Episodes
from stoix_like.architectures.matches import make_matches
from stoix_like.envs import factory
from stoix_like.errors import ConfigError
from stoix_like.inference.evaluation import MAX_EPISODES, count_results, write_results
from stoix_like.policies.load import TrainedRun, choose_member, load_member, load_shared, open_run
from stoix_like.policies.visits import check_seed
from stoix_like.run.host.devices import set_compile_cache
from stoix_like.storage import checkpoint
from stoix_like.storage.run_files import EVALUATIONS, LADDER
from stoix_like.utils.jax_utils import take_member
from stoix_like.utils.ratings import elo_intervals, fit_elo, tabulate

_NUM_RESAMPLES = 500
_INTERVAL = f"95 % percentile bootstrap over pairs of games with the same opening, {_NUM_RESAMPLES} resamples"
# Pairs of games that are played at once, to bound memory.
_BATCH_SIZE = 512
# Folded into the key of the seed: evaluation and training start from others.
_LADDER_STREAM = 0x1ADD
_MAX_COLUMNS = 16


class _Player(NamedTuple):
    """A policy that plays: who it is, its shared state, and its hyperparameters."""

    identity: dict[str, int]
    shared: Any
    hyperparams: dict[str, float]


def ladder(
    run_dir: str | Path,
    games: int = 100,
    *,
    openings: int = 2,
    neighbours: int | None = None,
    members: bool = False,
    which: str | None = None,
    member: int | str | None = "best",
    seed: int = 0,
    trust: bool = False,
    env: Any = None,
) -> dict[str, Any]:
    """Let the kept checkpoints of a run play each other, rate them, and write the results to its directory.

    A match plays each of its openings twice, once from either seat. Ratings are the maximum-likelihood estimate of the
    model of Bradley and Terry, in points of Elo above the first player: 100 more are a score of 64 %, 400 more one of
    91 %.

    `neighbours`: play each checkpoint against so many before it and the first one; None: against all.
    `which`: of members, `last` (None), `best` or the environment steps of a kept checkpoint.
    Returns the results: `players`, each with its `elo`, `elo_ci_low`, `elo_ci_high` and mean `score`.
    """
    if games < 2 or games % 2:
        raise ConfigError(f"games={games} must be even, as each opening is played from both seats: use 100")
    check_seed(seed)
    if which is not None and not members:
        raise ConfigError(f"which={which} selects a checkpoint of members, but all checkpoints play: leave it out")
    run = open_run(run_dir, trust, env)
    config = run.setup.config
    games_env = factory.make_games(config.env, config.custom_env, config.matmul_precision)
    players = _members(run, which or "last") if members else _checkpoints(run, member)
    # The later player of each match is the first one.
    earlier = [(i, j) for i in range(len(players)) for j in range(i)]
    pairings = [(i, j) for i, j in earlier if neighbours is None or j == 0 or i - j <= neighbours]
    if games * len(pairings) > MAX_EPISODES:
        raise ConfigError(
            f"games={games} in each of {len(pairings)} matches are too many: use at most"
            f" {MAX_EPISODES // len(pairings) // 2 * 2}, or neighbours=1"
        )
    print(f"{len(pairings)} matches of {games} games", file=sys.stderr)
    set_compile_cache(config.arch.compile_cache)
    num_pairs, max_steps = min(games // 2, _BATCH_SIZE), config.arch.max_eval_steps
    play = make_matches(run.setup.build_system, games_env, run.mesh, num_pairs, max_steps, openings)
    key = jax.random.fold_in(jax.random.key(seed), _LADDER_STREAM)
    played = [
        _play(play, players[i], players[j], games // 2, num_pairs, jax.random.fold_in(key, match))
        for match, (i, j) in enumerate(pairings)
    ]
    record = {
        "system": config.system_name,
        "environment": config.environment_name,
        "greedy": config.arch.evaluation_greedy,
        "of": "members" if members else "checkpoints",
        "games": games,
        "openings": openings,
        "seed": seed,
        "interval": _INTERVAL,
        "games_cut": int(sum((~each.finished).sum() for each in played)),
        **_rate(players, pairings, played),
        "versions": config.versions,
    }
    stem = f"{LADDER}-{record['of']}-seed{seed}-{games}games"
    return {**record, "path": write_results(run.run_dir / EVALUATIONS, stem, record)}


def describe(record: Mapping[str, Any]) -> str:
    """Format the results of a ladder for the terminal."""
    players, of_members = record["players"], record["of"] == "members"
    acting = "greedy" if record["greedy"] else "sampled"
    matches = "1 match" if len(record["matches"]) == 1 else f"{len(record['matches'])} matches"
    lines = [
        f"{record['system']} on {record['environment']}: {len(players)} {record['of']}, {matches}"
        f" of {record['games']} games ({acting}, {record['openings']} random moves first),"
        f" seed {record['seed']}"
    ]
    # All members meet each other; of checkpoints, the rating says enough.
    shown = range(len(players)) if of_members and len(players) <= _MAX_COLUMNS else ()
    head = "".join(f"{f'vs {j}':>7}" for j in shown)
    lines.append(f"  {'member' if of_members else 'env steps':>12}    Elo   {'95 %':<15} score{head}")
    table = _scores(record)
    for i, player in enumerate(players):
        elo, low, high = (round(player[name]) for name in ("elo", "elo_ci_low", "elo_ci_high"))
        cells = "".join("      –" if np.isnan(table[i, j]) else f"{table[i, j]:7.2f}" for j in shown)
        name = player["member" if of_members else "env_steps"]
        lines.append(f"  {name:12,}  {elo:5}   {f'[{low}, {high}]':<15}{player['score']:6.1%}{cells}")
    if record["games_cut"]:
        lines.append(f"  {record['games_cut']} game(s) did not end within arch.max_eval_steps")
    if record["path"] is not None:
        lines.append(f"  written to {record['path']}")
    return "\n".join(lines)


def _checkpoints(run: TrainedRun, member: int | str | None) -> list[_Player]:
    steps = checkpoint.steps(run.run_dir)
    if len(steps) < 2:
        raise ConfigError(
            f"run_dir={run.run_dir} keeps {len(steps)} checkpoint(s), and a ladder needs two: train with"
            " checkpoint.keep=20"
        )
    index = choose_member(load_shared(run, str(steps[-1])), member)
    found = [load_member(run, str(step), index) for step in steps]
    return [_Player({"env_steps": each.env_steps}, each.shared, each.hyperparams) for each in found]


def _members(run: TrainedRun, which: str) -> list[_Player]:
    loaded = load_shared(run, which)
    if loaded.env_steps.size < 2:
        raise ConfigError(f"run_dir={run.run_dir} has one member: leave out members, or set arch.population.size=2")
    who = [{"member": i, "env_steps": int(steps)} for i, steps in enumerate(loaded.env_steps)]
    return [_Player(one, take_member(loaded.shared, i), loaded.hyperparams_of(i)) for i, one in enumerate(who)]


def _play(play: Any, first: _Player, second: _Player, pairs: int, batch: int, key: jax.Array) -> Episodes:
    """Play a match, and return its games as host arrays `[2, G]`."""
    both = [(each.shared, each.hyperparams) for each in (first, second)]
    arguments = jax.tree.map(lambda a, b: jnp.stack([a, b]), *both)
    batches = [jax.device_get(play(*arguments, jax.random.fold_in(key, i))) for i in range(-(-pairs // batch))]
    return jax.tree.map(lambda *leaves: np.concatenate(leaves, axis=-1)[:, :pairs], *batches)


def _rate(players: list[_Player], pairings: list[tuple[int, int]], played: list[Episodes]) -> dict[str, Any]:
    """Compute the results of the matches, and the ratings of the players."""
    results = [np.sign(each.returns) for each in played]
    outcomes = [(i, j, (result.mean(0) + 1.0) / 2.0) for (i, j), result in zip(pairings, results, strict=True)]
    scores, games = tabulate(outcomes, len(players))
    low, high = elo_intervals(outcomes, len(players), _NUM_RESAMPLES)
    shares = scores.sum(axis=1) / games.sum(axis=1)
    rated = {"elo": fit_elo(scores, games), "elo_ci_low": low, "elo_ci_high": high, "score": shares}
    named = [each.identity | {name: float(row[i]) for name, row in rated.items()} for i, each in enumerate(players)]
    matches = [{"players": [*pair], **count_results(one)} for pair, one in zip(pairings, results, strict=True)]
    return {"players": named, "matches": matches}


def _scores(record: Mapping[str, Any]) -> np.ndarray:
    """Return the mean score `[K, K]` of each player against each other one, NaN where they did not meet."""
    table = np.full((len(record["players"]),) * 2, np.nan)
    for match in record["matches"]:
        (i, j), games = match["players"], record["games"]
        table[i, j] = (match["wins"] + match["draws"] / 2) / games
        table[j, i] = 1.0 - table[i, j]
    return table
