import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import filelock
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage import run_files


@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="needs the rights to act for another user")
def test_a_run_of_another_user_is_seen_to_train():
    directory = Path(tempfile.mkdtemp(dir="/tmp"))  # which other users may enter, unlike that of pytest
    directory.chmod(0o755)
    code = (
        "import os, pathlib; from stoix_like.storage.run_files import is_locked; os.setuid(65534);"
        f" print(is_locked(pathlib.Path({str(directory)!r})))"
    )

    def seen():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()

    (directory / ".lock").touch(0o644)
    assert seen() == "False"
    with filelock.FileLock(directory / ".lock"):
        assert seen() == "True"
    shutil.rmtree(directory)


def test_a_summary_that_cannot_be_read_is_missing(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    assert run_files.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").unlink()
    for text in ("[" * 100_000, "[]", "{"):
        (tmp_path / "summary.json").write_text(text)
        assert run_files.read_summary(tmp_path) == {}


@pytest.mark.parametrize("length", [10, 2**14 - 12, 2**14, 2**16])
def test_the_last_complete_record_is_read_from_the_end(tmp_path, length):
    path = tmp_path / "metrics.jsonl"
    assert run_files.read_last_record(path) == {}
    path.write_text("".join(f'{{"n": {number}, "x": "{"a" * length}"}}\n' for number in range(5)))
    assert run_files.read_last_record(path)["n"] == 4
    path.write_text(path.read_text()[:-5])
    assert run_files.read_last_record(path)["n"] == 3
    assert [record["n"] for record in run_files.read_records(path)] == [0, 1, 2, 3]
    torn = path.read_text().splitlines(keepends=True)
    path.write_text("".join([torn[0], torn[1][:-3] + "\n", *torn[2:]]))
    with pytest.raises(ConfigError, match=r"metrics.jsonl: line 2 is damaged: delete it, or leave the run out"):
        list(run_files.read_records(path))
    path.write_text("{}")
    assert run_files.read_last_record(path) == {}
