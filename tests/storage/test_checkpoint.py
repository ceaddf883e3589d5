import os
import shutil
import subprocess
import sys

import jax.numpy as jnp
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage import checkpoint, orbax
from support.stored import ITEMS, TARGETS, assert_intact, save


def replace_by_directory(path):
    path.unlink()
    path.mkdir()


def newest(run_dir):
    return checkpoint.newest_readable(run_dir, lambda step: checkpoint.read(run_dir, step, TARGETS))


def test_large_checkpoints_have_longer_to_be_written(tmp_path, monkeypatch):
    """20 minutes alone, and a second for every 10 MB."""
    ocp, given = orbax.load(), []
    options = ocp.AsyncOptions
    monkeypatch.setattr(ocp, "AsyncOptions", lambda **values: given.append(values) or options(**values))
    writer = checkpoint.Writer(tmp_path, keep=1)
    writer.save(1, {"replay": {"steps": jnp.zeros(25_000_000, jnp.int8)}}, {})
    writer.close()
    assert given == [{"timeout_secs": 1202}]


@pytest.mark.parametrize("change", [os.unlink, pytest.param(replace_by_directory, marks=pytest.mark.slow)])
@pytest.mark.parametrize("names", [("rollout_state", "array_metadatas", "process_0"), ("host_state", "metadata")])
def test_whatever_goes_wrong_with_a_checkpoint_the_one_before_is_used(tmp_path, capsys, change, names):
    save(tmp_path, 1, 2)
    change(tmp_path.joinpath("checkpoints/2", *names))
    # A file where damaged checkpoints are moved to.
    (tmp_path / "checkpoints-damaged").touch()
    found = newest(tmp_path)
    assert found.step == 1
    assert_intact(found)
    assert "the checkpoint after 2 steps is damaged" in capsys.readouterr().err
    assert [path.is_dir() for path in tmp_path.glob("checkpoints-damaged-*/2")] == [True]


def test_what_has_the_name_of_a_checkpoint_and_is_none_counts_as_damaged(tmp_path):
    save(tmp_path, 1)
    path = tmp_path / "checkpoints" / "2"
    path.touch()
    assert checkpoint.Writer(tmp_path, 1).newest == 1
    assert newest(tmp_path).step == 1
    assert not path.exists()


def test_a_linked_directory_of_checkpoints_is_refused(tmp_path, capsys):
    save(tmp_path / "elsewhere", 1)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(tmp_path / "elsewhere" / "checkpoints")
    with pytest.raises(ConfigError, match=r"run/checkpoints is a link, not a directory"):
        checkpoint.steps(run_dir)
    writer = checkpoint.Writer(run_dir, 1)
    writer.save(2, ITEMS, {})
    writer.close()
    assert writer.newest is None
    assert "is a link, not a directory" in capsys.readouterr().err
    assert checkpoint.steps(tmp_path / "elsewhere") == [1]


@pytest.mark.slow
def test_every_file_that_is_missing_is_noticed_or_harmless(tmp_path):
    """Faults in the content of files are those of `test_checkpoint_faults`."""
    save(tmp_path / "good", 1)
    names = [path.relative_to(tmp_path / "good") for path in (tmp_path / "good").rglob("*") if path.is_file()]
    assert len(names) > 15
    noticed = 0
    for number, name in enumerate(names):
        # TensorStore caches the files of a path.
        run_dir = shutil.copytree(tmp_path / "good", tmp_path / str(number))
        replace_by_directory(run_dir / name)
        try:
            assert_intact(checkpoint.read(run_dir, 1, TARGETS))
        except checkpoint.DamagedError:
            noticed += 1
    assert noticed >= 5


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
import jax
from stoix_like.storage import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
# Another process takes the space after it was found.
checkpoint.Writer._check_room = lambda writer, num_bytes: None
arrays = {f"leaf{i}": jax.random.normal(jax.random.key(i), (100, 100)) for i in range(8)}
writer = checkpoint.Writer(Path(sys.argv[1]), 2)
writer.save(1, {"shared": arrays, "local": arrays}, {})
writer.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), 10**9))
for step in (2, 3):
    writer.save(step, {"shared": arrays, "local": arrays}, {})
writer.close()
assert writer.newest == 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("limit", [40, 3000, 20000])
def test_a_disk_that_fills_up_while_a_checkpoint_is_written_is_reported_in_one_line(tmp_path, limit):
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path), str(limit)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cannot write a checkpoint to {tmp_path}/checkpoints: ")
