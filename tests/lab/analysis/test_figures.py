import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError
from support.lazily import Lazy
from support.recorded import change_records, write_run

analysis, figures, report = map(Lazy, (f"stoix_like.lab.analysis{name}" for name in ("", ".figures", ".report")))

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.mark.slow
def test_figures_as_files(two, tmp_path):
    for suffix, start in ((".png", b"\x89PNG"), (".svg", b"<?xml"), (".html", b"<!doctype html>"), (".pdf", b"%PDF")):
        path = tmp_path / f"curves{suffix}"
        cli.main(["plot", str(two), "--out", str(path), "--test", "welch"])
        assert path.read_bytes().startswith(start)
    style = ["--title", "Two", "--label", "DQN", "--label", "PPO", "--width", "3.5"]
    cli.main(["plot", str(two), "--out", str(tmp_path / "styled.html"), *style])
    styled = (tmp_path / "styled.html").read_text()
    assert "<title>Two</title>" in styled
    assert 'width="252pt"' in styled  # 72 points an inch
    assert "DQN (" in styled
    assert "ff_dqn" not in styled
    page = (tmp_path / "curves.html").read_text()
    assert "ppo/ff_ppo" in page
    assert "<script" not in page


@pytest.mark.slow
def test_populations_that_vary_other_hyperparameters_have_panels_of_their_own(tmp_path):
    write_run(tmp_path / "a", (1.0, 2.0), varied={"actor_lr": [0.1, 0.2]})
    write_run(tmp_path / "b", (3.0, None, 5.0), varied={"gamma": [0.9, 0.9, 0.8]})
    algorithms = analysis.read(tmp_path)
    shown = [axes.get_xlabel() for axes in figures.draw(algorithms, "slices").axes]
    assert shown == ["actor_lr", "gamma"]
    with pytest.raises(ConfigError, match="two hyperparameters that vary"):
        figures.draw(algorithms, "heatmap")
    with pytest.raises(ConfigError, match="no population varies both actor_lr and gamma"):
        figures.draw(algorithms, "heatmap", hyperparams=("actor_lr", "gamma"))
    write_run(tmp_path / "c", (1.0, 2.0), varied={"gamma": [0.9, 0.8], "clip_eps": [0.1, 0.2]})
    (axes, _) = figures.draw(analysis.read(tmp_path), "heatmap").axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("gamma", "clip_eps")
    report.write([tmp_path], tmp_path / "page.html")


def test_populations_of_other_settings_are_not_averaged(tmp_path):
    """Seeds of one population may be in several runs; those of other wrappers are another population."""
    for name, seed, rate, frames in (("a", 0, 0.2, 1), ("b", 0, 0.3, 1), ("c", 2, 0.3, 1), ("d", 0, 0.3, 4)):
        env_keys = {"frame_stack": frames}
        varied = {"actor_lr": [0.1, 0.2]}
        write_run(tmp_path / name, (1.0, 2.0), varied=varied, clip_eps=rate, seed=seed, env_keys=env_keys)
    drawn = figures.draw(analysis.read(tmp_path), "slices")
    found = {axes.get_title(): len(axes.collections[0].get_offsets()) for axes in drawn.axes}
    assert {title.removeprefix("ppo/ff_ppo on gymnax/CartPole-v1 "): count for title, count in found.items()} == {
        "clip_eps=0.2 frame_stack=1": 2,
        "clip_eps=0.3 frame_stack=1": 4,
        "clip_eps=0.3 frame_stack=4": 2,
    }


def test_a_lone_member_is_no_population_that_varies(tmp_path):
    run = write_run(tmp_path / "a")
    change_records(run, lambda *_: {"hyperparams/actor_lr": 0.3})
    with pytest.raises(ConfigError, match="needs a population with hyperparameters that vary"):
        figures.draw(analysis.read(tmp_path), "slices")
    report.write([tmp_path], tmp_path / "page.html")
    assert "<td>0.3</td>" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--out", "x.gif"], "the ending must be one of .png"),
        (["--out", "none/x.png"], "none is not a directory"),
        (["--out", "x.png", "--test", "welsh"], "did you mean 'welch'"),
        (["--out", "x.png", "--kind", "curve"], "did you mean 'curves'"),
        (["--out", "x.png", "--kind", "profiles", "--band", "error"], "error: unrecognized arguments: --band"),
        (["--out", "x.png", "--kind", "heatmap"], "needs a population"),
        (["--out", "x.png", "--label", "DQN"], "--label is given 1 times: name each of q_learning/ff_dqn, ppo/ff_ppo"),
        (["--out", "x.png", "--metric", "eval/episode_retrn_mean"], "did you mean 'eval/episode_return_mean'"),
        (["--out", "x.png", "--by", "system.actr_lr"], "did you mean 'system.actor_lr'"),
    ],
)
def test_plots_that_cannot_be_drawn_are_refused(two, arguments, message, refused, monkeypatch):
    monkeypatch.chdir(two)
    assert message in refused("plot", two, *arguments)
