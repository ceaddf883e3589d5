"""Run directories whose files are not what they should be."""

import os
import time

import pytest
from omegaconf import OmegaConf

from stoix_like.config import GROUPS
from stoix_like.errors import ConfigError
from stoix_like.storage import config_file, run_dir
from stoix_like.storage.run_directory import RunDirectory

CONFIG = "".join(f"{group}: {{a: 1}}\n" for group in GROUPS)
RESOLVED = {group: {"a": 1} for group in GROUPS}
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 10))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (LAUGHS, r"cannot read .*/config.yaml: it contains the alias \*a0: write the value out"),
        ("a: &a [*a]\n", r"contains the alias \*a"),
        ("a: &a\n  b: *a\n", r"contains the alias \*a"),
        ("[" * 100_000, "nested more than 64 levels deep"),
        ("{a: " * 100_000, "nested more than 64 levels deep"),
        ("- " * 100_000, "nested more than 64 levels deep"),
        ("a: " + "x" * 2**21, "has more than 2,097,152 bytes"),
        (f"arch: {'9' * 10_000}\n", "cannot read"),
        ("arch: ${a.b}\n", "cannot read|it must have the groups"),
        ("a: 1\n", "it must have the groups"),
        ("a: b: c\n", "cannot read"),
    ],
)
def test_a_hostile_configuration_is_refused_quickly_and_in_one_line(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    start = time.monotonic()
    with pytest.raises(ConfigError, match=message) as error:
        config_file.plain_config(tmp_path)
    assert "\n" not in str(error.value)
    assert time.monotonic() - start < 2


def test_a_configuration_that_is_no_regular_file_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        config_file.plain_config(tmp_path)
    path.unlink()
    (tmp_path / "elsewhere").write_text(CONFIG)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not a regular file"):
        config_file.plain_config(tmp_path)


def test_a_configuration_is_written_where_nothing_else_lies(tmp_path):
    path = tmp_path / "config.yaml"
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="already holds a run"):
        RunDirectory(tmp_path).check_new()
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDirectory(tmp_path).write_config(RESOLVED)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    RunDirectory(tmp_path).write_config(RESOLVED)
    assert OmegaConf.load(path) == RESOLVED


def test_a_link_in_place_of_the_lock_is_refused(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"\.lock is not a regular file"), RunDirectory(tmp_path).locked():
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_a_summary_that_cannot_be_read_is_missing(tmp_path):
    os.mkfifo(tmp_path / "summary.json")
    assert run_dir.read_summary(tmp_path) == {}
    (tmp_path / "summary.json").unlink()
    for text in ("[" * 100_000, "[]", "{"):
        (tmp_path / "summary.json").write_text(text)
        assert run_dir.read_summary(tmp_path) == {}
