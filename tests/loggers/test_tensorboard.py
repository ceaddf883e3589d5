import json
import struct

import pytest

from stoix_like.loggers import LoggerConfig, make_logger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from support.logged import RECORDS, SILENT, SUMMARY, run_info, tiny_gif


def make(run_dir):
    return make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), run_dir)


def log_run(run_dir):
    logger = make(run_dir)
    logger.start(run_info(run_dir))
    for record in RECORDS:
        logger.log(record)
    logger.finish(SUMMARY)
    logger.close()


def read_events(path):
    """Read the events of a TFRecord file: length (8 bytes), its checksum (4), the event, its checksum (4)."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, events = path.read_bytes(), []
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        body = data[12 : 12 + length]
        assert struct.unpack("<I", data[8:12]) == (masked_crc32c(data[:8]),)
        assert struct.unpack("<I", data[12 + length : 16 + length]) == (masked_crc32c(body),)
        events.append(Event.FromString(body))
        data = data[16 + length :]
    return events


def test_event_files_hold_the_configuration_and_all_curves(tmp_path, capfd):
    log_run(tmp_path)
    assert capfd.readouterr() == ("", "")
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, start, config, *rest = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert (start.step, start.session_log.status) == (0, 1)
    assert config.summary.value[0].tag == "config/text_summary"
    assert json.loads(config.summary.value[0].tensor.string_val[0]) == {"arch": {"seed": 3}}
    curves = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in rest]
    assert curves == [
        (0, {"eval/episode_return_mean": 9.5}),
        (640, {"train/loss": 0.25}),
        (1280, {"train/loss": 0.125, "eval/episode_return_mean/0": 100.0, "eval/episode_return_mean/1": 200.0}),
        (1280, {"absolute/episode_return_mean": 150.0}),
    ]


def log_session(run_dir, name, info, records):
    """Log a session of a run, to a file of this name: those of TensorBoard have seconds, which two may share."""
    logger = make(run_dir)
    logger.start(info)
    for record in records:
        (logger.log_updates if "updates" in record else logger.log)(record)
    logger.close()
    path = max((run_dir / "tensorboard").iterdir(), key=lambda path: len(path.name))
    return path.rename(path.with_name(name))


def shown(run_dir):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator

    loaded = EventAccumulator(str(run_dir / "tensorboard")).Reload()
    return {tag: [event.step for event in loaded.Tensors(tag)] for tag in loaded.Tags()["tensors"]}


def test_a_run_that_starts_again_discards_what_it_showed(tmp_path):
    for number in range(2):
        path = log_session(tmp_path, f"events.out.tfevents.{number}", run_info(tmp_path), RECORDS[:2])
        assert [event.step for event in read_events(path) if event.session_log.status] == [0]
    assert shown(tmp_path) == {"config/text_summary": [0], "eval/episode_return_mean": [0], "train/loss": [640]}


def test_a_run_that_resumes_discards_what_follows_its_checkpoint_and_shows_updates(tmp_path):
    killed, update = {"env_steps": 960, "train/loss": 0.1}, {"env_steps": 768, "updates": 12, "train/loss": 0.5}
    log_session(tmp_path, "events.out.tfevents.0", run_info(tmp_path), [*RECORDS[:2], killed])
    resumed = run_info(tmp_path)._replace(history=RECORDS[:2], env_steps=704)
    path = log_session(tmp_path, "events.out.tfevents.1", resumed, [update])
    _, start, _, logged = read_events(path)
    assert (start.step, start.session_log.status) == (705, 1)
    assert (logged.step, {value.tag: value.simple_value for value in logged.summary.value}) == (
        768,
        {"train/loss": 0.5},
    )
    assert shown(tmp_path) == {"config/text_summary": [0, 0], "eval/episode_return_mean": [0], "train/loss": [640, 768]}


def test_tensorboard_shows_gifs_as_images_and_flushes_each_record(tmp_path):
    logger = make(tmp_path)
    logger.start(run_info(tmp_path))
    path = tiny_gif(tmp_path)
    logger.log_video(path, 640)
    logger.log_video(path.rename(tmp_path / "640_dream.gif"), 640)
    logger.log_video(tmp_path / "640.mp4", 640)
    logger.log(RECORDS[0])
    path = tmp_path / "640_dream.gif"
    (events,) = (tmp_path / "tensorboard").iterdir()
    *_, last, dream, record = read_events(events)
    assert record.summary.value[0].tag == "eval/episode_return_mean"
    assert (dream.step, dream.summary.value[0].tag) == (640, "dream")
    (value,) = last.summary.value
    assert (last.step, value.tag) == (640, "video")
    assert (value.image.width, value.image.height) == (3, 2)
    assert value.image.encoded_image_string == path.read_bytes()
    logger.close()


def test_tensorboard_is_dropped_when_it_cannot_write(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("a file in the way")
    log_run(tmp_path)
    assert capsys.readouterr().err.startswith(
        "logger 'tensorboard' failed; the run continues without it: NotADirectoryError"
    )
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
