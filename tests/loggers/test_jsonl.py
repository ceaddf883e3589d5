import contextlib
import json
import os
import resource
import signal
from unittest.mock import Mock

from stoix_like.loggers import LoggerConfig, make_logger
from stoix_like.loggers.jsonl import JsonlLogger
from stoix_like.loggers.tensorboard import TensorBoardConfig
from stoix_like.loggers.wandb import WandbConfig
from support.logged import SILENT, run_info


def test_a_resumed_metrics_file_holds_the_history_and_flushes_new_records(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # Left by a killed process: a record after the checkpoint, and half of another one.
    path.write_text('{"env_steps": 0}\n{"env_steps": 64}\n{"env_st')
    logger = JsonlLogger(path)
    logger.start(run_info(tmp_path)._replace(history=({"env_steps": 0},)))
    logger.log({"env_steps": 128, "train/loss": float("inf"), "eval/episode_return_mean": None, "members": [1, 2.5]})
    lines = path.read_text().splitlines()  # before the file is closed
    assert [json.loads(line) for line in lines] == [
        {"env_steps": 0},
        {"env_steps": 128, "train/loss": None, "eval/episode_return_mean": None, "members": [1, 2.5]},
    ]
    assert '"env_steps": 128,' in lines[1]  # an int stays an int
    logger.finish({})
    logger.close()
    logger.close()


def test_updates_before_a_damaged_line_are_kept(tmp_path):
    path = tmp_path / "updates.jsonl"
    path.write_bytes(b'{"env_steps": 0}\n{"env_steps": 64}\n{"env_steps": \xff}\n{"env_steps": 80}\n')
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.start(run_info(tmp_path)._replace(history=({"env_steps": 128},), env_steps=128))
    assert path.read_text() == '{"env_steps": 0}\n{"env_steps": 64}\n'
    logger.close()


def test_updates_up_to_the_checkpoint_are_kept_and_copies_of_the_run_stay(tmp_path):
    path, kept = tmp_path / "updates.jsonl", '{"env_steps": 0}\n{"env_steps": 64}\n'
    path.write_text(kept + '{"env_steps": 80}\n{"env_steps": 9')
    os.link(path, tmp_path / "other.jsonl")
    path.chmod(0o444)
    logger = JsonlLogger(tmp_path / "metrics.jsonl")
    logger.start(run_info(tmp_path)._replace(history=({"env_steps": 64},), env_steps=64))
    assert path.read_text() == kept
    logger.log_updates({"env_steps": 72})
    assert path.read_text() == kept + '{"env_steps": 72}\n'
    assert (tmp_path / "other.jsonl").read_text().endswith('{"env_steps": 9')
    logger.close()


@contextlib.contextmanager
def full_disk(size):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_delays_records_and_leaves_no_torn_line(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    logger = make_logger(LoggerConfig(), tmp_path)
    logger.start(run_info(tmp_path))
    logger.log({"env_steps": 0})
    capsys.readouterr()
    with full_disk(path.stat().st_size + 5):
        logger.log({"env_steps": 128})
        logger.log({"env_steps": 256})
        assert path.read_text() == '{"env_steps": 0}\n'
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith(f"cannot write {path}: ")
    assert captured.out.count("\n") == 2  # the console continues
    logger.log({"env_steps": 384})
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [0, 128, 256, 384]
    with full_disk(path.stat().st_size):
        logger.log({"env_steps": 512})
        logger.close()
    assert capsys.readouterr().err.splitlines()[-1] == f"{path} lacks the last 1 record(s)"
    assert path.read_text().count("\n") == 4


def test_a_torn_line_that_cannot_be_cut_is_cut_before_the_next_record(tmp_path, monkeypatch):
    logger = JsonlLogger(path := tmp_path / "metrics.jsonl")
    logger.start(run_info(tmp_path))
    with full_disk(5), monkeypatch.context() as context:
        context.setattr(os, "ftruncate", Mock(side_effect=OSError("stale file handle")))
        logger.log({"env_steps": 0})
    assert path.read_text() == '{"env'
    logger.log({"env_steps": 128})
    logger.close()
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [0, 128]


def test_a_metrics_file_that_could_not_be_opened_is_written_with_the_next_record(tmp_path, capsys):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 0}\n{"env_st')
    logger = JsonlLogger(path)
    with full_disk(3):
        logger.start(run_info(tmp_path)._replace(history=({"env_steps": 0},)))
        logger.log({"env_steps": 128})
    logger.log({"env_steps": 256})
    logger.close()
    assert [json.loads(line)["env_steps"] for line in path.read_text().splitlines()] == [0, 128, 256]
    assert capsys.readouterr().err.count("\n") == 1


def test_loggers_follow_no_links_out_of_the_run_directory(tmp_path, capsys):
    victim, run_dir = tmp_path / "victim", tmp_path / "run"
    victim.write_text("mine")
    run_dir.mkdir()
    (tmp_path / "elsewhere").mkdir()
    for name in ("metrics.jsonl", "metrics.jsonl.tmp"):
        (run_dir / name).symlink_to(victim)
    (run_dir / "tensorboard").symlink_to(tmp_path / "elsewhere")
    (run_dir / "wandb").symlink_to(tmp_path / "elsewhere")
    config = LoggerConfig(TensorBoardConfig(enabled=True), WandbConfig(enabled=True, mode="offline"), SILENT)
    logger = make_logger(config, run_dir)
    logger.start(run_info(run_dir)._replace(history=({"env_steps": 0},)))
    logger.close()
    assert victim.read_text() == "mine"
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert (run_dir / "metrics.jsonl").read_text() == '{"env_steps": 0}\n'
    assert capsys.readouterr().err.count("is a link, not a directory") == 2
