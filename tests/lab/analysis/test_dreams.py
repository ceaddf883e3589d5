import json

import numpy as np
import pytest
from PIL import Image

import stoix_like
from stoix_like.base_types import Dream
from stoix_like.cli import main
from stoix_like.envs.legends import Legend
from stoix_like.envs.spaces import Box, Dict
from stoix_like.errors import ConfigError
from stoix_like.inference.evaluation import evaluate
from stoix_like.lab.analysis import report
from stoix_like.lab.analysis.dreams import draw_dream, dream_episode
from stoix_like.policies.load import load_policy
from stoix_like.rendering.dreams import DreamedEpisode
from stoix_like.run.records import videos
from support import dreamers
from support.tiny_dreamer import TINY
from support.trained_runs import SMALL


def test_a_figure_has_images_numbers_and_a_shaded_context():
    """20 observations of an image and of two numbers: twelve of them as columns of three rows."""
    space = Dict({"grid": Box(0.0, 1.0, (4, 5, 2)), "speed": Box(-1.0, 1.0, (2,))})
    view = {"grid": np.zeros((20, 4, 5, 2)), "speed": np.linspace(0.0, 1.0, 40).reshape(20, 2)}
    dream = Dream({name: leaf + 0.25 for name, leaf in view.items()}, np.ones(20), np.ones(20))
    figure = draw_dream(DreamedEpisode("toy on env", space, Legend(), 3, view, np.zeros(20), np.zeros(20, bool), dream))
    images, numbers = figure.subfigs
    assert len(images.axes) == 36
    titles = [axes.get_title() for axes in images.axes[:12]]
    assert titles[:3] == ["0 (seen)", "2 (seen)", "3"]
    assert titles[-1] == "19"
    assert [axes.get_ylabel() for axes in images.axes[::12]] == ["truth", "dream", "difference"]
    np.testing.assert_allclose(images.axes[30].images[0].get_array(), 0.25)
    assert [axes.get_title() for axes in numbers.axes] == ["speed[0]", "speed[1]", "reward", "continues"]
    truth, dreamed = numbers.axes[0].lines
    np.testing.assert_allclose(dreamed.get_ydata() - truth.get_ydata(), 0.25)
    shaded = numbers.axes[0].patches[0]
    assert (shaded.get_x(), shaded.get_width()) == (0.0, 2.5)


RUN = [
    *(*SMALL[4:], *dreamers.overrides(), "env=gymnax/cartpole", "env.reward_scale=0.5"),
    *("arch.total_timesteps=64", "arch.num_evaluation=2"),
]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"context": 0}, "context=0 is out of range: it must be at least 1 and below length=50"),
        ({"context": 9, "length": 9}, "context=9 is out of range: it must be at least 1 and below length=9"),
        ({"seed": -1}, "seed=-1 is out of range"),
    ],
)
def test_arguments_out_of_range_are_refused(options, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        dream_episode(tmp_path, **options)


@pytest.mark.parametrize("name", ["dream.jpg", "dream"])
def test_the_command_refuses_other_endings(name, tmp_path, refused):
    error = refused("plot", "--kind", "dream", tmp_path, "--out", name)
    assert "the ending must be one of .png, .svg, .pdf, .html, .gif, .mp4" in error


def train(run_dir, *overrides):
    """Train a run whose videos and dreams are recorded at the last evaluation, after 64 steps; return its metrics."""
    stoix_like.train("ppo/ff_ppo", [*RUN, *overrides], run_dir=run_dir)
    records = map(json.loads, (run_dir / "metrics.jsonl").read_text().splitlines())
    return [{name: value for name, value in record.items() if "second" not in name} for record in records]


@pytest.mark.slow
def test_a_run_is_dreamed_during_training_drawn_and_reported(tmp_path, capsys):
    """Pushes to the left end an episode within a dozen steps; half of the reward of each is what the system learns."""
    run = tmp_path / "run"
    assert train(run, "logger.video.every_evals=2") == train(tmp_path / "plain")
    assert sorted(path.name for path in (run / "videos").iterdir()) == ["64.gif", "64_dream.gif"]
    episode = dream_episode(run, context=4, trust=True)
    count = len(episode.reward)
    assert 9 <= count <= 12
    np.testing.assert_array_equal(episode.reward, [0.0] + [0.5] * (count - 1))
    assert episode.name == "toy on gymnax/CartPole-v1"
    with pytest.raises(ConfigError, match=r"context=20 leaves nothing to predict of an episode with \d+ observations"):
        dream_episode(run, context=20, trust=True)
    command = ["plot", "--kind", "dream", str(run), "--context", "3", "--length", "8", "--trust"]
    for name in ("dream.png", "dream.gif"):
        main([*command, "--out", str(tmp_path / name)])
    assert "drawn to" in capsys.readouterr().out
    with Image.open(tmp_path / "dream.gif") as gif:
        assert gif.n_frames == 8
    report.write([run], tmp_path / "report.html")
    assert "dreamed the others" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("more", [["env=gymnasium/cartpole"], ["arch.population.size=2"]])
def test_environments_on_the_host_and_members_dream(more, tmp_path):
    run = tmp_path / "run"
    train(run, "logger.video.every_evals=2", *more)
    assert (run / "videos/64_dream.gif").exists()
    assert 9 <= len(dream_episode(run, member=0, trust=True).reward) <= 12


@pytest.mark.slow
def test_a_system_without_a_world_model_is_refused_in_one_sentence(tmp_path, refused):
    train(tmp_path / "run", "system.module=support.toys")
    message = "toy on gymnax/CartPole-v1: the system has no world model with a decoder: use a run of system=dreamer/"
    assert message in refused("plot", "--kind", "dream", tmp_path / "run", "--out", tmp_path / "dream.png", "--trust")
    report.write([tmp_path / "run"], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    assert "dreamed the others" not in text
    assert "No dream" not in text


@pytest.mark.slow
def test_a_dream_that_fails_is_reported_once_and_videos_continue(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(videos, "write_dream", lambda *_: 1 / 0)
    monkeypatch.setattr(videos, "write_animation", lambda path, *_: path.write_bytes(b"a video"))
    train(tmp_path / "run", "logger.video.every_evals=1")
    assert sorted(path.name for path in (tmp_path / "run/videos").iterdir()) == ["32.gif", "64.gif"]
    assert capsys.readouterr().err.count("a dream failed; the run continues without dreams: ZeroDivisionError") == 1


@pytest.mark.slow
def test_dreamer_v3_is_trained_dreamed_evaluated_and_exported(tmp_path):
    """With more context, the first observations of a dream stay, and what was a prediction is a reconstruction."""
    run, sizes = tmp_path / "run", ["arch.total_timesteps=192", "arch.num_evaluation=1", "env=gymnax/catch"]
    overrides = [*TINY[1:], *SMALL[5:], *sizes, "system.lr_warmup_steps=1", "logger.video.every_evals=1"]
    stoix_like.train("dreamer/dreamer_v3", overrides, run_dir=run)
    assert sorted(path.name for path in (run / "videos").iterdir()) == ["192.gif", "192_dream.gif"]
    short, long = (dream_episode(run, context=context) for context in (3, 6))
    np.testing.assert_array_equal(short.view, long.view)
    assert short.dream.view.shape == short.view.shape == (10, 10, 5)
    same = (short.dream.view == long.dream.view).all(axis=(1, 2))
    assert same[:3].all()
    assert not same[3:].all()
    assert short.dream.reward.shape == short.dream.continues.shape == (10,)
    main(["plot", "--kind", "dream", str(run), "--out", str(tmp_path / "dream.png")])
    assert evaluate(run, 4)["episode_length_mean"] == 9.0
    policy = load_policy(run)
    action, state = policy.predict(short.view[:1])
    assert action.shape == (1,)
    np.testing.assert_array_equal(state.action, action)
    main(["export", str(run), "--out", str(tmp_path / "policy.onnx")])
    with pytest.raises(ConfigError, match=r"format=npz holds multilayer perceptrons .*: use onnx or stablehlo"):
        policy.export(tmp_path / "policy.npz")
