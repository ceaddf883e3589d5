import json
import struct

import pytest

from stoix_like.loggers import LoggerConfig, make_logger
from stoix_like.loggers.wandb import WandbConfig
from support.logged import RECORDS, SILENT, SUMMARY, run_info, tiny_gif


def read_wandb(run_dir):
    """Read the records of a .wandb file: a 7-byte header, then the log format of LevelDB."""
    import wandb
    from wandb.proto.wandb_internal_pb2 import Record

    wandb.teardown()  # W&B writes in a separate process: wait for it
    (path,) = run_dir.glob("wandb/offline-run-*/run-*.wandb")
    block_size, header_size, last_kinds = 32768, 7, (1, 4)  # whole records, and last parts of split ones
    data, records, body = path.read_bytes(), [], b""
    assert data[:4] == b":W&B"
    position = header_size
    while position + header_size <= len(data):
        if block_size - position % block_size < header_size:  # too short for a header: padding
            position += block_size - position % block_size
            continue
        length, kind = struct.unpack("<HB", data[position + 4 : position + header_size])
        body += data[position + header_size : position + header_size + length]
        position += header_size + length
        if kind in last_kinds:
            records.append(Record.FromString(body))
            body = b""
    return records


def items(updates):
    """Return the keys and values of W&B updates, with nested keys joined by dots."""
    return {update.key or ".".join(update.nested_key): json.loads(update.value_json) for update in updates}


@pytest.fixture
def isolated_wandb(monkeypatch):
    """W&B without the settings of the user and without a server."""
    wandb = pytest.importorskip("wandb")
    for variable in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_RUN_ID", "WANDB_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.teardown()  # W&B reads the variables once per process


@pytest.mark.slow
def test_offline_wandb_files_hold_configuration_curves_and_summary(tmp_path, isolated_wandb):
    wandb_config = WandbConfig(enabled=True, project="walk", group="seeds", tags=("a", "b"), mode="offline")
    logger = make_logger(LoggerConfig(console=SILENT, wandb=wandb_config), tmp_path)
    logger.start(run_info(tmp_path))
    for record in RECORDS:
        logger.log(record)
    logger.log_video(tiny_gif(tmp_path), 640)
    logger.finish(SUMMARY)
    logger.close()
    records = read_wandb(tmp_path)

    (run,) = (record.run for record in records if record.WhichOneof("record_type") == "run")
    assert (run.project, run.run_group, list(run.tags)) == ("walk", "seeds", ["a", "b"])
    assert run.display_name == "ppo/ff_ppo gymnax/CartPole-v1 seed 3"
    assert items(run.config.update)["arch"] == {"seed": 3}

    history = [items(record.history.item) for record in records if record.WhichOneof("record_type") == "history"]
    logged = [{key: value for key, value in row.items() if not key.startswith("_")} for row in history]
    video = logged.pop()
    assert (video["env_steps"], video["video._type"]) == (640, "video-file")
    assert logged == [
        {"env_steps": 0, "eval/episode_return_mean": 9.5},
        {"env_steps": 640, "train/loss": 0.25},
        {"env_steps": 1280, "train/loss": 0.125, "eval/episode_return_mean/0": 100, "eval/episode_return_mean/1": 200},
    ]
    metrics = [record.metric for record in records if record.WhichOneof("record_type") == "metric"]
    assert ("*", "env_steps") in [(metric.glob_name, metric.step_metric) for metric in metrics]

    summary = {}
    for record in records:
        summary |= items(record.summary.update)
    assert summary["absolute/episode_return_mean"] == 150
    assert summary.get("versions.jax", summary.get("versions", {})) in ("0.10", {"jax": "0.10"})
    (end,) = (record.exit for record in records if record.WhichOneof("record_type") == "exit")
    assert end.exit_code == 0


@pytest.mark.slow
def test_wandb_marks_a_run_without_finish_as_failed(tmp_path, isolated_wandb, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")  # takes effect because the configuration leaves the default
    wandb, runs = pytest.importorskip("wandb"), []
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **given: runs.append(init(**given)) or runs[-1])
    logger = make_logger(LoggerConfig(console=SILENT, wandb=WandbConfig(enabled=True)), tmp_path)
    logger.start(run_info(tmp_path))
    assert runs[0].settings.finish_timeout == 120  # a lost connection does not keep the process
    logger.log(RECORDS[0])
    logger.close()  # without `finish`, as after an exception
    (end,) = (record.exit for record in read_wandb(tmp_path) if record.WhichOneof("record_type") == "exit")
    assert end.exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("checkpoint", "logged", "steps"),
    [
        # Killed after its record at 640 steps, before its first checkpoint or after that of 320 steps.
        # At that step, it may have logged updates alone.
        (None, 640, [640, 1280]),
        (320, 640, [640, 1280]),
        # Stopped at a checkpoint, before its evaluation there.
        (640, 640, [640, 1280]),
        # Offline: the summary is not known.
        (320, None, [0, 640, 1280]),
    ],
)
def test_records_and_videos_that_a_killed_process_logged_are_not_logged_again(
    tmp_path, isolated_wandb, monkeypatch, checkpoint, logged, steps
):
    """W&B restores the summary of a run that it resumes."""
    import wandb

    init = wandb.init

    def resumed(**arguments):
        run = init(**arguments)
        run.summary.update({} if logged is None else {"env_steps": logged})
        return run

    monkeypatch.setattr(wandb, "init", resumed)
    config = LoggerConfig(console=SILENT, wandb=WandbConfig(enabled=True, mode="offline"))
    logger = make_logger(config, tmp_path)
    history = [] if checkpoint is None else [{"env_steps": checkpoint}]
    logger.start(run_info(tmp_path)._replace(history=history, env_steps=checkpoint or 0))
    for record in RECORDS if checkpoint != 640 else RECORDS[1:]:
        logger.log(record)
        logger.log_video(tiny_gif(tmp_path), record["env_steps"])
    logger.close()
    rows = [
        items(record.history.item) for record in read_wandb(tmp_path) if record.WhichOneof("record_type") == "history"
    ]
    # Each record, and its video.
    assert [row["env_steps"] for row in rows] == [step for step in steps for _ in range(2)]


@pytest.mark.slow
def test_one_process_can_have_several_wandb_runs(tmp_path, isolated_wandb):
    config = LoggerConfig(console=SILENT, wandb=WandbConfig(enabled=True, mode="offline"))
    loggers = [(make_logger(config, tmp_path / name), tmp_path / name) for name in ("first", "second")]
    for logger, run_dir in loggers:
        run_dir.mkdir()
        logger.start(run_info(run_dir))
    for logger, _ in loggers:
        logger.log(RECORDS[0])
        logger.finish(SUMMARY)
        logger.close()
    for _, run_dir in loggers:
        assert sum(record.WhichOneof("record_type") == "history" for record in read_wandb(run_dir)) == 1
