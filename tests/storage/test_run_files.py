"""Run directories whose files are not what they should be."""

import os

from stoix_like.storage import run_files


def test_a_summary_that_cannot_be_read_is_missing(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    assert run_files.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").unlink()
    for text in ("[" * 100_000, "[]", "{"):
        (tmp_path / "summary.json").write_text(text)
        assert run_files.read_summary(tmp_path) == {}
