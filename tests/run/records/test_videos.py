import re
from types import SimpleNamespace

import pytest
from PIL import Image

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.loggers import Logger, MultiLogger
from stoix_like.run.experiment import resume
from stoix_like.run.records import videos
from stoix_like.run.records.videos import Videos
from stoix_like.run.set_up.setup import set_up
from support.comparisons import recorded
from support.custom_envs import Spot
from support.set_ups import config_of, setup_of
from support.trained_runs import SMALL

# Evaluations after 64 and 128 steps.
RUN = [*SMALL, "env.time_limit=10", "arch.total_timesteps=128", "arch.num_evaluation=2", "arch.population.size=2"]


class Shown(Logger):
    def __init__(self):
        self.videos = []

    def log_video(self, path, env_steps):
        self.videos.append((path.name, env_steps))


@pytest.mark.slow
def test_videos_leave_the_results_as_they_are_and_continue_after_a_resume(tmp_path):
    plain = stoix_like.train("ppo/ff_ppo", RUN, run_dir=tmp_path / "plain").run_dir
    shown = stoix_like.train("ppo/ff_ppo", [*RUN, "logger.video.every_evals=2"], run_dir=tmp_path / "shown").run_dir
    assert recorded(shown) == recorded(plain)
    resume(shown, ["arch.total_timesteps=256", "arch.num_evaluation=4"])
    assert sorted(path.name for path in (shown / "videos").iterdir()) == ["128.gif", "256.gif"]
    with Image.open(shown / "videos/256.gif") as gif:
        assert gif.n_frames == 11


def test_a_video_that_code_of_a_user_ends_is_reported_once_with_its_line(tmp_path, capsys, monkeypatch):
    def without_display(path, *_):
        raise SystemExit("no display")

    def record(*evaluations):
        for evaluation in evaluations:
            recorder.record({}, {}, evaluation, 0, 100 * evaluation, loggers)
        recorder.log(loggers, wait=True)

    drawn = SimpleNamespace(record=lambda shared, hyperparams, key: None)
    monkeypatch.setattr(videos, "Recorder", lambda *_: drawn)
    monkeypatch.setattr(videos, "write_animation", lambda path, *_: path.write_bytes(b"a video"))
    recorder, logger = Videos(setup_of(*SMALL, "logger.video.every_evals=2"), tmp_path), Shown()
    loggers = MultiLogger([logger])
    record(2, 4)
    monkeypatch.setattr(videos, "write_animation", without_display)
    record(6, 8, 10)
    recorder.close()
    assert logger.videos == [("200.gif", 200), ("400.gif", 400)]
    reason = f"SystemExit: no display ({__file__}:{without_display.__code__.co_firstlineno + 1})\n"
    assert capsys.readouterr().err == f"a video failed; the run continues without videos: {reason}"


def test_a_scene_that_raises_is_refused_with_its_line():
    class Blind(Spot):
        def scene(self):
            raise TypeError("no sprites")

    config = config_of(*SMALL, "env=own", "logger.video.every_evals=3")
    place = rf"{re.escape(__file__)}:{Blind.scene.__code__.co_firstlineno + 1}"
    message = (
        rf"^logger.video.every_evals=3: .* cannot be drawn \(TypeError: no sprites, {place}\): scene\(\) must .*=0"
    )
    with pytest.raises(ConfigError, match=message):
        set_up(config._replace(custom_env=Blind()))
