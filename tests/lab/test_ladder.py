"""Ladders of a system that plays nim: perfectly after three updates, and before by single stones."""

import json
import shutil

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like import cli
from stoix_like.errors import ConfigError
from stoix_like.inference.evaluation import describe as describe_evaluation
from stoix_like.inference.evaluation import evaluate
from stoix_like.lab.ladder import _play, _Player, describe, ladder
from support import nim
from support.trained_runs import train_pendulum


def train(tmp_path_factory, *overrides, **values):
    run_dir = tmp_path_factory.mktemp("nim") / "run"
    return stoix_like.train("ppo/ff_ppo", [*nim.overrides(**values), *overrides], run_dir=run_dir).run_dir


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return train(tmp_path_factory)


@pytest.mark.slow
def test_checkpoints_are_rated_by_their_games(run, capsys):
    """Of four stones, or three or two after a random move, perfect play wins from both seats against single stones."""
    record = ladder(run, 40, openings=1, trust=True)
    assert [player["env_steps"] for player in record["players"]] == [16, 32, 48, 64]
    found = {
        tuple(match["players"]): [match[name] for name in ("wins", "draws", "losses")] for match in record["matches"]
    }
    # Equal players win the same openings, each from one of the seats.
    equal, won = [20, 0, 20], [40, 0, 0]
    assert found == {(1, 0): equal, (2, 0): won, (2, 1): won, (3, 0): won, (3, 1): won, (3, 2): equal}
    elo = [player["elo"] for player in record["players"]]
    np.testing.assert_allclose(elo[:2], 0.0, atol=1e-6)
    assert elo[2] == pytest.approx(elo[3])
    assert 400 < elo[2] < 1200
    assert [player["score"] for player in record["players"]] == pytest.approx([1 / 6, 1 / 6, 5 / 6, 5 / 6])
    for player in record["players"]:
        assert player["elo_ci_low"] <= player["elo"] + 1e-6
        assert player["elo_ci_high"] >= player["elo"] - 1e-6
    assert json.loads(record["path"].read_text()) == {name: value for name, value in record.items() if name != "path"}
    assert record["path"].name == "ladder-checkpoints-seed0-40games.json"
    assert describe(record).startswith(
        "nim on own/support.nim.Nim: 4 checkpoints, 6 matches of 40 games (greedy, 1 random"
    )
    assert "6 matches of 40 games" in capsys.readouterr().err


@pytest.mark.slow
def test_members_of_a_population_play_each_other(tmp_path_factory):
    varied = "+arch.population.hyperparams={perfect_after: [0.0, 100.0, 0.0]}"
    run_dir = train(tmp_path_factory, "arch.population.size=3", varied, perfect_after=2.0)
    record = ladder(run_dir, 100, openings=1, members=True, trust=True)
    assert [player["member"] for player in record["players"]] == [0, 1, 2]
    elo = [player["elo"] for player in record["players"]]
    assert elo[1] < -400
    assert elo[2] == pytest.approx(0.0, abs=1e-6)
    lines = describe(record).splitlines()
    assert lines[1].split()[-6:] == ["vs", "0", "vs", "1", "vs", "2"]
    scores = [["–", "1.00", "0.50"], ["0.00", "–", "0.00"], ["0.50", "1.00", "–"]]
    assert [line.split()[-3:] for line in lines[2:5]] == scores


def test_evaluations_count_the_games_against_an_opponent(run):
    """The last parameters play perfectly; of four stones, perfect players win the games that they start."""
    record = evaluate(run, 64, which="last", trust=True)
    assert (record["opponent"], record["wins"], record["draws"], record["losses"]) == ("random", 64, 0, 0)
    record = evaluate(run, 64, which="last", opponent="support.nim.perfect_player", trust=True)
    assert record["opponent"] == "support.nim.perfect_player"
    assert record["wins"] + record["losses"] == 64
    assert 16 < record["wins"] < 48
    first, *_, result, _ = describe_evaluation(record).splitlines()
    assert "(greedy) against support.nim.perfect_player, seed 0" in first
    assert result == f"    {record['wins']} won, 0 drawn, {record['losses']} lost"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"games": 3}, "games=3 must be even"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"members": True}, "has one member"),
        ({"which": "best"}, "which=best selects a checkpoint of members, but all checkpoints play"),
        ({"games": 500_000}, "games=500000 in each of 6 matches are too many: use at most 166666, or neighbours=1"),
    ],
)
def test_invalid_arguments_are_refused(run, options, message):
    with pytest.raises(ConfigError, match=message):
        ladder(run, trust=True, **options)


def test_a_damaged_checkpoint_is_named_with_what_is_wrong_in_one_line(run, tmp_path, refused):
    shutil.copytree(run, tmp_path / "run")
    checkpoint = tmp_path / "run" / "checkpoints" / "32"
    (checkpoint / "host_state" / "metadata").write_text("{}")
    (line,) = refused("ladder", tmp_path / "run", "--trust").splitlines()
    assert f"the checkpoint after 32 steps is damaged or of another version: {checkpoint}: host_state differs" in line
    assert line.endswith("; use another one, or move it away")


@pytest.mark.slow
def test_runs_of_one_player_are_refused(tmp_path_factory):
    pendulum = train_pendulum(tmp_path_factory)
    with pytest.raises(ConfigError, match=r"env=gymnax/Pendulum-v1 has one player.*opponent=self"):
        ladder(pendulum)
    with pytest.raises(ConfigError, match=r"opponent=random has no effect on gymnax/Pendulum-v1"):
        evaluate(pendulum, opponent="random")


@pytest.mark.slow
def test_the_command_prints_the_ladder_of_neighbours_and_the_first_checkpoint(run, capsys):
    cli.main(["ladder", str(run), "--games", "4", "--openings", "1", "--neighbours", "1", "--trust"])
    printed = capsys.readouterr().out
    assert "4 checkpoints, 5 matches of 4 games" in printed
    assert printed.splitlines()[2].split()[:4] == ["16", "0", "[0,", "0]"]
    record = ladder(run, 2, neighbours=1, trust=True)
    assert [match["players"] for match in record["matches"]] == [[1, 0], [2, 0], [2, 1], [3, 0], [3, 2]]


def test_every_batch_of_a_match_has_games_of_its_own():
    keys = []

    def play(shared, hyperparams, key):
        keys.append(tuple(jax.random.key_data(key).tolist()))
        return np.zeros((2, 2))

    player = _Player({}, np.zeros(1), {})
    assert _play(play, player, player, 5, 2, jax.random.key(0)).shape == (2, 5)
    assert len(set(keys)) == 3
