"""Event files, read back."""

import json
import struct

import pytest

from stoix_like.loggers import LoggerConfig, make_logger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from support.logged import RECORDS, SILENT, SUMMARY, run_info, tiny_gif


def log_run(logger, run_dir):
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
    log_run(make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), tmp_path), tmp_path)
    assert capfd.readouterr() == ("", "")
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert path.name.startswith("events.out.tfevents.")
    first, config, *rest = read_events(path)
    assert first.file_version == "brain.Event:2"
    assert config.summary.value[0].tag == "config/text_summary"
    assert json.loads(config.summary.value[0].tensor.string_val[0]) == {"arch": {"seed": 3}}
    curves = [(event.step, {value.tag: value.simple_value for value in event.summary.value}) for event in rest]
    assert curves == [
        (0, {"eval/episode_return_mean": 9.5}),
        (640, {"train/loss": 0.25}),
        (1280, {"train/loss": 0.125, "eval/episode_return_mean/0": 100.0, "eval/episode_return_mean/1": 200.0}),
        (1280, {"absolute/episode_return_mean": 150.0}),
    ]


def test_a_run_that_starts_again_discards_what_it_showed(tmp_path):
    config = LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True))
    starts = []
    for name in ("events.out.tfevents.0.before", "events.out.tfevents.1.after"):
        logger = make_logger(config, tmp_path)
        logger.start(run_info(tmp_path))
        logger.log(RECORDS[0])
        logger.close()
        # Their names have seconds, of which these two may have the same.
        path = max((tmp_path / "tensorboard").iterdir(), key=lambda path: len(path.name))
        path = path.rename(path.with_name(name))
        starts.append([event.step for event in read_events(path) if event.session_log.status])
    assert starts == [[], [0]]


def test_a_run_that_resumes_discards_what_follows_its_checkpoint_and_shows_updates(tmp_path):
    logger = make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), tmp_path)
    logger.start(run_info(tmp_path)._replace(history=RECORDS[:2], env_steps=704))
    logger.log_updates({"env_steps": 768, "updates": 12, "train/loss": 0.5})
    logger.close()
    (path,) = (tmp_path / "tensorboard").iterdir()
    *_, start, update = read_events(path)
    assert (start.step, start.session_log.status) == (705, 1)
    curves = {value.tag: value.simple_value for value in update.summary.value}
    assert (update.step, curves) == (768, {"train/loss": 0.5})


def test_tensorboard_flushes_each_record(tmp_path):
    logger = make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), tmp_path)
    logger.start(run_info(tmp_path))
    logger.log(RECORDS[0])
    (path,) = (tmp_path / "tensorboard").iterdir()
    assert len(read_events(path)) == 3
    logger.close()


def test_tensorboard_shows_gifs_as_images(tmp_path):
    logger = make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), tmp_path)
    logger.start(run_info(tmp_path))
    path = tiny_gif(tmp_path)
    logger.log_video(path, 640)
    logger.log_video(path.rename(tmp_path / "640_dream.gif"), 640)
    logger.log_video(tmp_path / "640.mp4", 640)
    logger.close()
    path = tmp_path / "640_dream.gif"
    (events,) = (tmp_path / "tensorboard").iterdir()
    *_, last, dream = read_events(events)
    assert (dream.step, dream.summary.value[0].tag) == (640, "dream")
    (value,) = last.summary.value
    assert (last.step, value.tag) == (640, "video")
    assert (value.image.width, value.image.height) == (3, 2)
    assert value.image.encoded_image_string == path.read_bytes()


def test_tensorboard_is_dropped_when_it_cannot_write(tmp_path, capsys):
    (tmp_path / "tensorboard").write_text("a file in the way")
    log_run(make_logger(LoggerConfig(console=SILENT, tensorboard=TensorBoardConfig(enabled=True)), tmp_path), tmp_path)
    assert capsys.readouterr().err.startswith(
        "logger 'tensorboard' failed; the run continues without it: NotADirectoryError"
    )
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
