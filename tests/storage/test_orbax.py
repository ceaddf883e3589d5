import errno
from pathlib import Path

import pytest

from stoix_like.errors import ConfigError, DamagedError
from stoix_like.storage import checkpoint, orbax
from support.stored import TARGETS, assert_intact, save


@pytest.mark.parametrize("name", ["x[8]", "a*b?", "plain"])
def test_checkpoints_survive_a_directory_of_any_name(tmp_path, capsys, name):
    run_dir = tmp_path / name
    writer = save(run_dir, 1)
    assert writer.usable
    assert capsys.readouterr().err == ""
    assert_intact(checkpoint.read(run_dir, 1, TARGETS))
    moved = run_dir.rename(tmp_path / "[par]")
    assert_intact(checkpoint.read(moved, 1, TARGETS))


def test_paths_are_replaced_only_if_orbax_would_expand_them(tmp_path):
    for name, linked in (("plain", False), ("x[8]", True), ("a*", True), ("b?", True)):
        directory = tmp_path / name / "checkpoints"
        directory.mkdir(parents=True)
        (directory / "file").touch()
        with orbax.plain_path(directory) as path:
            assert (path != directory) == linked
            assert not any(mark in str(path) for mark in "*?[")
            assert (path / "file").exists()


@pytest.mark.parametrize(
    ("error", "transient"),
    [
        (OSError(errno.EMFILE, "Too many open files"), True),
        (OSError(errno.ENOENT, "No such file"), False),
        (MemoryError(), True),
        (ValueError("RESOURCE_EXHAUSTED: out of memory"), True),
        (RuntimeError("can't start new thread"), True),
        (ValueError("DATA_LOSS: the checksum differs"), False),
    ],
)
def test_errors_of_the_machine_are_told_from_damage(error, transient):
    wrapped = Exception("Encountered error while reading array index")  # as Orbax does
    wrapped.__cause__ = error
    for raised in (error, wrapped):
        found = orbax.unreadable(Path("run/checkpoints/1"), raised)
        assert isinstance(found, ConfigError if transient else DamagedError)
        assert f"run/checkpoints/1: {str(error) or 'MemoryError'}" in str(found)
