import itertools
import subprocess
import sys

import numpy as np
import pytest

from stoix_like import analysis, cli
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.groups import read_evaluated
from stoix_like.lab.analysis.memory_plot import returns_over_lengths, varied_length
from stoix_like.storage.recorded_runs import samples
from support.recorded import write_run

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture
def sweep(tmp_path):
    """A cell that remembers 16 steps, one that does not, and a feed-forward system; two seeds each."""
    for cell, returns in (("gtrxl", (1.0, 1.0)), ("gru", (1.0, 0.0)), (None, (0.0, 0.0))):
        for (length, value), seed in itertools.product(zip((8, 16), returns, strict=True), (0, 1)):
            keys = {"cell": cell, "env_kwargs": {"length": length, "penalty": 0.1}, "env": "maze"}
            write_run(tmp_path / f"{cell}{length}_{seed}", (value + seed,), seed=seed, **keys)
    return tmp_path


def members(directory):
    return [member for run in read_evaluated(directory) for member in samples(run)]


def test_each_cell_is_a_line_over_the_length_that_differs_with_a_band_over_seeds(sweep):
    assert varied_length(members(sweep)) == "env.kwargs.length"
    (curves,) = returns_over_lengths(members(sweep), "env.kwargs.length", "final").values()
    assert {label: {length: list(column) for length, column in curve.items()} for label, curve in curves.items()} == {
        "gru": {8.0: [1.0, 2.0], 16.0: [0.0, 1.0]},
        "gtrxl": {8.0: [1.0, 2.0], 16.0: [1.0, 2.0]},
        "none": {8.0: [0.0, 1.0], 16.0: [0.0, 1.0]},
    }
    (axes,) = analysis.draw_memory(sweep).axes
    lines = {line.get_label(): line.get_xydata().ravel().tolist() for line in axes.get_lines()}
    assert lines == {"gru": [8, 1.5, 16, 0.5], "gtrxl": [8, 1.5, 16, 1.5], "none": [8, 0.5, 16, 0.5]}
    assert len(axes.collections) == 3
    band = axes.collections[0].get_paths()[0].vertices
    assert np.ptp(band[band[:, 0] == 8.0][:, 1]) == pytest.approx(1.0)
    assert axes.get_xlabel() == "env.kwargs.length"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.png", "--x", "env.kwargs.lenght"], "did you mean 'env.kwargs.length'"),
        (["--out", "x.png", "--x", "system.name"], "--x system.name: "),
        (["--out", "x.png", "--by", "system.lr"], "--by system.lr is not a key of these runs"),
        (["--out", "x.png", "--score", "last"], "--score last is unknown"),
        (["--out", "x.png", "--x", "env.kwargs.penalty"], "occurs twice with env.kwargs.penalty=0.1"),
    ],
)
def test_pictures_that_cannot_be_drawn_are_refused(sweep, arguments, message, refused, monkeypatch):
    monkeypatch.chdir(sweep)
    assert message in refused("plot", "--kind", "memory", sweep, *arguments)


def test_runs_of_one_length_need_its_name(tmp_path, refused):
    write_run(tmp_path / "run", env_kwargs={"length": 8}, cell="gru")
    error = refused("plot", "--kind", "memory", tmp_path, "--out", tmp_path / "x.png")
    assert "no number in env.kwargs.* differs between these runs: name the length" in error
    cli.main(["plot", "--kind", "memory", str(tmp_path), "--out", str(tmp_path / "x.png"), "--x", "env.kwargs.length"])
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_seeds_of_a_point_differ_in_nothing_else(tmp_path):
    for length in (8, 16):
        keys = {"varied": {"actor_lr": [0.1, 0.2]}, "env_kwargs": {"length": length}, "cell": "gru"}
        write_run(tmp_path / str(length), (1.0, 2.0), **keys)
    with pytest.raises(ConfigError, match=r"the seeds of gru with env.kwargs.length=8 differ in system.actor_lr: tell"):
        analysis.draw_memory(tmp_path)
    for length, seed in itertools.product((8, 16), (0, 1)):
        kwargs = {"length": length, "num_cues": 2 + seed}
        write_run(tmp_path / "cues" / f"{length}_{seed}", seed=seed, env_kwargs=kwargs, cell="gru")
    with pytest.raises(ConfigError, match=r"the seeds of gru with env.kwargs.length=8 differ in env.kwargs.num_cues"):
        analysis.draw_memory(tmp_path / "cues", "env.kwargs.length")
    (axes,) = analysis.draw_memory([tmp_path / "8", tmp_path / "16"], by=["system.actor_lr"]).axes
    assert [line.get_label() for line in axes.get_lines()] == ["gru system.actor_lr=0.1", "gru system.actor_lr=0.2"]


def test_a_seed_without_a_return_is_named(sweep):
    write_run(sweep / "lost", (None,), seed=2, cell="gru", env_kwargs={"length": 8, "penalty": 0.1}, env="maze")
    with pytest.raises(ConfigError, match=r"gru with env.kwargs.length=8 has no final return in .*lost: leave it out"):
        analysis.draw_memory(sweep)


def test_seeds_that_diverged_count_as_the_lowest_of_their_length(sweep, capsys):
    kwargs = {"length": 16, "penalty": 0.1}
    lost = write_run(sweep / "lost", (9.0,), seed=2, cell="gtrxl", env_kwargs=kwargs, env="maze", finished=False)
    (lost / "failure.txt").write_text("TrainingError: training diverged: train/loss became non-finite")
    (curves,) = returns_over_lengths(members(sweep), "env.kwargs.length", "final").values()
    # Of all cells at length 16, 0 is the lowest return; of gtrxl it is 1.
    assert sorted(curves["gtrxl"][16.0]) == [0.0, 1.0, 2.0]
    note = "gtrxl with env.kwargs.length=16: 1 of 3 diverged, counted as the lowest return of all"
    assert note in capsys.readouterr().err


TINY_STUDY = (
    "system=ppo/rec_ppo network=rnn_shared env=memory/t_maze env.kwargs.length=2,3"
    " network.actor_network.rnn_layer.cell_type=gru,mingru arch.population.size=2 hydra.sweep.dir=runs/t_maze"
    " arch.total_timesteps=512 arch.total_num_envs=8 arch.num_evaluation=1 arch.num_eval_episodes=8"
    " system.rollout_length=16 system.num_minibatches=2 system.epochs=1"
)


@pytest.mark.slow
def test_the_study_of_the_guide_is_reported_by_all_commands(tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "stoix_like", *arguments]
        return subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    run("train", "-m", *TINY_STUDY.split())
    tasks = ["memory/t_maze length=2", "memory/t_maze length=3"]
    assert all(run("runs").count(task) == 2 for task in tasks)
    compared = run("compare", "runs/t_maze")
    assert all(text in compared for text in (*tasks, "cell_type=gru", "cell_type=mingru"))
    run("plot", "runs/t_maze", "--out", "curves.png")
    run("plot", "--kind", "memory", "runs/t_maze", "--out", "t_maze.svg")
    run("report", "runs/t_maze", "--out", "report.html")
    assert all(task in (tmp_path / "report.html").read_text() for task in tasks)
