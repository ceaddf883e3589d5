import errno
import os
from pathlib import Path
from unittest.mock import Mock

import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage import files


def test_a_write_follows_no_link_and_leaves_no_other_file(tmp_path):
    victim = tmp_path / "bashrc"
    victim.write_text("mine")
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    for name in ("config.yaml", "config.yaml.tmp", ".config.yaml.tmp"):
        (run_dir / name).symlink_to(victim)
    files.write_text(run_dir / "config.yaml", "a: 1\n")
    assert victim.read_text() == "mine"
    assert not (run_dir / "config.yaml").is_symlink()
    assert (run_dir / "config.yaml").read_text() == "a: 1\n"
    assert len(list(run_dir.iterdir())) == 3


def test_what_cannot_be_written_is_refused_beforehand(tmp_path):
    (tmp_path / "file").touch()
    files.check_writable(tmp_path / "file", "--out")
    for path, message in (
        (tmp_path / "none/x.npz", "none is not a directory: create it first"),
        (tmp_path, "is a directory: choose a file in it"),
        (Path("/proc/x.npz"), "--out=/proc cannot be written: /proc: "),
    ):
        with pytest.raises(ConfigError, match=message):
            files.check_writable(path, "--out")
    files.check_place(tmp_path / "new/place", "sweep.dir")
    with pytest.raises(ConfigError, match=r"sweep.dir=.*/file/new cannot be written: .*/file: Not a directory"):
        files.check_place(tmp_path / "file/new", "sweep.dir")
    with pytest.raises(ConfigError, match=r"sweep.dir=.* cannot be written: .*: File name too long"):
        files.check_place(tmp_path / ("x" * 300) / "new", "sweep.dir")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_written_file_has_the_permissions_of_other_files(tmp_path):
    (tmp_path / "usual").touch()
    files.write_json(tmp_path / ("x" * 251 + ".txt"), {"a": float("nan")})
    (path,) = tmp_path.glob("x*")
    assert path.read_text() == '{\n  "a": null\n}\n'
    assert path.stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")

    def fail():
        with files.replaced(path) as file:
            file.write(b"new")
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_only_regular_files_are_read(tmp_path):
    (tmp_path / "file").write_text("12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    os.mkfifo(tmp_path / "fifo")
    assert files.read_bytes(tmp_path / "file", limit=5) == b"12345"
    with pytest.raises(OSError, match="has more than 4 bytes"):
        files.read_bytes(tmp_path / "file", limit=4)
    with pytest.raises(OSError, match="is a link, not a regular file"):
        files.read_bytes(tmp_path / "link", limit=5)
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(OSError, match="is not a regular file"):
            files.read_bytes(path, limit=5)
    # A directory of a run is neither a link nor a file.
    files.check_directory(tmp_path)
    files.check_directory(tmp_path / "missing")
    for name in ("file", "link"):
        with pytest.raises(OSError, match="not a directory"):
            files.check_directory(tmp_path / name)


def test_a_lock_that_outlives_its_process_says_how_to_remove_it(tmp_path, monkeypatch):
    """Without `flock`, the file is the lock, and stays when another machine is lost."""
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(fcntl, "flock", Mock(side_effect=OSError(errno.ENOSYS, "flock is not implemented")))
    path = tmp_path / ".lock"
    path.touch()
    with (
        pytest.warns(UserWarning, match="flock not supported"),
        pytest.raises(ConfigError, match=f"^in use; delete {path} if its process is gone$"),
        files.locked(path, "in use"),
    ):
        pass
    path.unlink()
    with pytest.warns(UserWarning, match="flock not supported"), files.locked(path, "in use"):
        assert path.read_text().startswith(f"{os.getpid()}\n")
    assert not path.exists()
    # That of the operating system needs no removal.
    monkeypatch.undo()
    with files.locked(path, "in use"), pytest.raises(ConfigError, match="^in use$"), files.locked(path, "in use"):
        pass
