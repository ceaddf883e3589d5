import json

import numpy as np
import pytest

from stoix_like.storage.recorded_runs import RETURN, members, read_run
from support.lazily import Lazy
from support.recorded import change_records, set_key, write_run

analysis, curves = map(Lazy, ("stoix_like.lab.analysis", "stoix_like.lab.analysis.curves"))
DIVERGED = "TrainingError: training diverged: train/loss became non-finite in update 3\n"


def write_lone(directory, returns, seed, diverged=False, **keys):
    run = write_run(directory, curves=[[value] for value in returns], seed=seed, finished=not diverged, **keys)
    set_key(run, "arch.total_timesteps", 300)
    if diverged:
        (run / "failure.txt").write_text(DIVERGED)


def marked(directory, test="welch"):
    lines = analysis.learning_curves(analysis.read(directory), test=test).lines
    return [line.get_xdata().tolist() for line in lines if line.get_marker() == "*"]


def test_a_frozen_member_counts_as_the_lowest_of_the_others(tmp_path, capsys):
    """Its frozen policy returns most, and as a copy of another one it is healthy again."""
    run = write_run(tmp_path / "a", curves=[[0.0] * 3, [9.0, 4.0, 6.0], [9.0, 5.0, 7.0], [8.0, 6.0, 7.0]])
    change_records(run, lambda number, _: {"population/failed": [[], [0], [0], []][number]})
    points, values = curves.curve(members(read_run(run)), RETURN)
    assert points.tolist() == [0.0, 100.0, 200.0, 300.0]
    assert values.tolist() == [[0.0, 4.0, 5.0, 8.0], [0.0, 4.0, 5.0, 6.0], [0.0, 6.0, 7.0, 7.0]]
    assert f"{RETURN} of ppo/ff_ppo: 1 member(s) that diverged count as the lowest of the" in capsys.readouterr().err


def test_points_at_which_all_have_diverged_are_left_out(tmp_path, capsys):
    run = write_run(tmp_path / "a", curves=[[0.0] * 2, [1.0, 2.0], [3.0, 4.0]])
    change_records(run, lambda number, _: {"population/failed": [[], [1], [0, 1]][number]})
    points, values = curves.curve(members(read_run(run)), RETURN)
    assert (points.tolist(), values.tolist()) == ([0.0, 100.0], [[0.0, 1.0], [0.0, 1.0]])
    capsys.readouterr()
    points, values = curves.curve(members(read_run(run))[1:], RETURN)
    assert (points.tolist(), values.tolist()) == ([0.0], [[0.0]])
    assert capsys.readouterr().err == ""


def test_training_returns_count_up_to_the_divergence(tmp_path):
    run = write_run(tmp_path / "a", curves=[[0.0] * 2] * 3)
    lines = [
        {"env_steps": steps, "updates/episode_return_mean": values}
        for steps, values in ((50, [1.0, 1.0]), (150, [9.0, 2.0]), (180, [None, 3.0]), (200, [None, 4.0]))
    ]
    (run / "updates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    change_records(run, lambda number, _: {"population/failed": [0] if number == 2 else []})
    points, values = curves.curve(members(read_run(run)), "updates/episode_return_mean")
    assert points.tolist() == [50.0, 150.0, 180.0, 200.0]
    assert values.tolist() == [[1.0, 9.0, 3.0, 4.0], [1.0, 2.0, 3.0, 4.0]]


@pytest.mark.parametrize("x", ["env_steps", "wall_seconds"])
def test_a_run_that_diverged_does_not_end_the_curves_of_others(tmp_path, capsys, x):
    write_lone(tmp_path / "a", [0.0, 1.0, 2.0, 3.0], 0)
    write_lone(tmp_path / "b", [0.0, 2.0, 1.0, 4.0], 1)
    write_lone(tmp_path / "c", [0.0, 9.0], 2, diverged=True)
    (algorithm,) = analysis.read(tmp_path)
    points, values = curves.curve(algorithm.members, RETURN, x)
    assert points.tolist() == ([0.0, 100.0, 200.0, 300.0] if x == "env_steps" else [0.0, 2.0, 4.0, 6.0])
    assert values[2].tolist() == [0.0, 9.0, 1.0, 3.0]
    assert "1 member(s) that diverged" in capsys.readouterr().err


def test_a_run_that_diverged_does_not_end_interpolated_curves(tmp_path, capsys):
    write_lone(tmp_path / "a", [0.0, 1.0, 2.0, 3.0], 0)
    write_lone(tmp_path / "b", [0.0, 9.0], 1, diverged=True)
    write_lone(tmp_path / "c", [0.0, 9.0, 9.0], 2, diverged=True)
    change_records(tmp_path / "b", lambda _, record: {"env_steps": record["env_steps"] // 2})
    (algorithm,) = analysis.read(tmp_path)
    points, values = curves.curve(algorithm.members, RETURN)
    assert (points[0], points[-1]) == (0.0, 300.0)
    np.testing.assert_allclose(values[0], points / 100.0)
    np.testing.assert_allclose(values[1], np.where(points <= 50.0, 0.18 * points, points / 100.0))
    assert values[2, -1] == 3.0
    assert "2 member(s) that diverged" in capsys.readouterr().err
    # Where all diverged, the longest run ends the curve; other metrics end with the run that diverged.
    points, _ = curves.curve(algorithm.members[1:], RETURN)
    assert points[-1] == 200.0
    points, _ = curves.curve(algorithm.members[::2], "train/entropy")
    assert points[-1] == 200.0
    assert "is shown up to 200 of 300 env_steps" in capsys.readouterr().err


def test_a_run_that_diverged_before_its_first_training_episode_has_no_value_of_its_own(tmp_path):
    write_lone(tmp_path / "a", [0.0, 1.0, 2.0], 0)
    write_lone(tmp_path / "b", [0.0, 1.0], 1, diverged=True)
    # Before the first update, nothing is trained.
    change_records(tmp_path / "a", lambda number, _: {"train/episode_return_mean": 3.0 + number if number else None})
    change_records(tmp_path / "b", lambda *_: {"train/episode_return_mean": None})
    (algorithm,) = analysis.read(tmp_path)
    points, values = curves.curve(algorithm.members, "train/episode_return_mean")
    assert points.tolist() == [100.0, 200.0]
    assert values.tolist() == [[4.0, 5.0], [4.0, 5.0]]
    with pytest.raises(ValueError, match="all runs of ppo/ff_ppo diverged before they had a value"):
        curves.curve(algorithm.members[1:], "train/episode_return_mean")


@pytest.mark.usefixtures("few_resamples")
def test_marks_end_where_all_of_one_have_diverged(tmp_path):
    write_run(tmp_path / "a", curves=[[0.0] * 5, [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    run = write_run(tmp_path / "b", curves=[[0.0] * 5, [91.0, 92.0, 93.0, 94.0, 95.0], [90.0] * 5], actor_lr=0.01)
    change_records(run, lambda number, _: {"population/failed": [0, 1, 2, 3, 4] if number == 2 else []})
    assert marked(tmp_path, "permutation") == [[100.0]]


@pytest.mark.usefixtures("few_resamples")
def test_marks_count_a_member_that_diverged_as_the_lowest(tmp_path):
    """The lowest of both: without its frozen return and the end of its run, the test decides after all steps."""
    for seed in range(5):
        write_lone(tmp_path / f"a{seed}", [0.0, *[1.0 + 0.1 * seed] * 3], seed)
    finals = [*(50.0 + seed for seed in range(9)), -400.0]
    run = write_run(tmp_path / "b", curves=[[0.0] * 10, finals, finals, finals], actor_lr=0.01)
    write_lone(tmp_path / "c", [0.0, 54.0], 19, diverged=True, actor_lr=0.01)
    change_records(run, lambda number, _: {"population/failed": [9] if number else []})
    assert marked(tmp_path) == [[100.0, 200.0, 300.0]]


@pytest.mark.usefixtures("few_resamples")
def test_members_that_diverged_earn_no_mark(tmp_path):
    """Four of five diverged: with the lowest of their own, all five would return 480."""
    run = write_run(tmp_path / "a", curves=[[0.0] * 5, [480.0, *[None] * 4]], system="ppo/fragile")
    change_records(run, lambda number, _: {"population/failed": [1, 2, 3, 4] if number else []})
    write_run(tmp_path / "b", curves=[[0.0] * 5, [470.0, 465.0, 472.0, 468.0, 460.0]], system="ppo/robust")
    assert not marked(tmp_path)
