import numpy as np
import pytest
from PIL import Image

from stoix_like.envs.scenes.base import RecordedEpisode, from_pictures
from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.rendering import animation
from stoix_like.rendering.animation import check_path, write_animation
from support.recordings import make, record


@pytest.fixture(scope="module")
def cart_pole():
    env = make("CartPole-v1")
    return env, record(env, 1000)


def test_gifs_are_animations(cart_pole, tmp_path):
    env, recording = cart_pole
    path = tmp_path / "episode.gif"
    check_path(path)
    path.write_text("overwritten")
    frames = write_animation(path, env.scene(), recording)
    assert [entry.name for entry in tmp_path.iterdir()] == ["episode.gif"]
    with Image.open(path) as gif:
        assert gif.format == "GIF"
        assert gif.n_frames == frames == len(recording.returns)
        assert gif.info["duration"] == 20  # ms, for 50 frames per second
        assert gif.info["loop"] == 0
        gif.seek(frames - 1)
        assert len(gif.convert("RGB").getcolors(1 << 16)) > 3
    assert path.stat().st_size < 5000 * frames


# After the first of 61 entries, 60 follow: 60 * 50 / 60 = 50 and 60 * 50 / 125 = 24 frames.
@pytest.mark.slow
@pytest.mark.parametrize(("fps", "count"), [(60, 51), (125, 25)])
def test_fast_gifs_keep_the_time_at_a_delay_that_browsers_play(fps, count, tmp_path):
    steps = np.arange(61)
    recording = RecordedEpisode(steps, steps, steps, steps, steps == 60)
    shown = []

    def picture(state):
        shown.append(int(state))
        return np.full((2, 2, 3), state / 60.0)

    assert write_animation(tmp_path / "fast.gif", from_pictures(picture, fps), recording) == count
    assert shown[-1] == 60
    durations = []
    with Image.open(tmp_path / "fast.gif") as gif:
        for frame in range(gif.n_frames):
            gif.seek(frame)
            durations.append(gif.info["duration"])
    assert min(durations) >= 20
    # Each entry is shown for 1 / fps: within one delay.
    assert sum(durations) == pytest.approx(1000.0 * 61 / fps, abs=20.0)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.png", "must be an animated gif or an mp4 file: use out.gif"),
        ("missing/out.gif", "is not a directory: create"),
    ],
)
def test_invalid_path_raises(name, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        check_path(tmp_path / name)


@pytest.mark.slow
def test_mp4_is_written_by_ffmpeg_and_refused_without_it(cart_pole, tmp_path, monkeypatch):
    env, recording = cart_pole
    path = tmp_path / "episode.mp4"
    assert write_animation(path, env.scene(), recording) == len(recording.steps)
    # ISO base media files start with the size of a box and its type.
    assert path.read_bytes()[4:8] == b"ftyp"
    monkeypatch.setattr(animation, "_ffmpeg", lambda: None)
    with pytest.raises(MissingExtraError, match=r"needs ffmpeg, or the package .*pip install .*\[video\]'"):
        check_path(path)
