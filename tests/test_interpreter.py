import pytest

from stoix_like.errors import ConfigError
from stoix_like.interpreter import make_importable


def test_a_working_directory_that_was_deleted_is_refused(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(ConfigError, match=r"^the working directory was deleted: change to a directory that exists$"):
        make_importable()
