import re
from pathlib import Path

import pytest

from stoix_like.errors import ConfigError, MissingExtraError, first_line, require, resume_command
from stoix_like.interpreter import make_importable

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("run", "quoted"),
    [(Path("/a/run"), "/a/run"), (Path("/a b/it's"), """'/a b/it'"'"'s'"""), ("s3://a/$b", "'s3://a/$b'")],
)
def test_the_command_that_resumes_a_run_can_be_pasted(run, quoted):
    assert resume_command(run) == f"stoix-like resume {quoted}"


def test_every_message_that_resumes_a_run_can_be_pasted():
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "stoix_like").rglob("*.py")}
    unquoted = re.compile(r"""stoix-like resume["'\sf]*\{""")
    assert [name for name, source in sources.items() if unquoted.search(source)] == ["errors.py"]


def test_a_missing_extra_names_its_command():
    with pytest.raises(MissingExtraError, match=r"x=1 needs the package 'no_such': pip install 'stoix_like\[tune\]'$"):
        require("no_such", "x=1", "tune")


def test_the_first_line_of_an_error_is_what_it_says_or_its_class():
    assert first_line(ValueError("\nno arrays\nat 0x1")) == "no arrays"
    assert first_line(KeyError()) == "KeyError"
    frames = '  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\n'
    of_callback = (
        f"INTERNAL: CpuCallback error: Traceback (most recent call last):\n{frames}ValueError: too hot\ngot 4\n"
    )
    assert first_line(RuntimeError(of_callback)) == "ValueError: too hot"
    assert first_line(RuntimeError(of_callback.replace("in g\n", "in g\n    raise\n"))) == "ValueError: too hot"


def test_a_working_directory_that_was_deleted_is_refused(tmp_path, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    here.rmdir()
    with pytest.raises(ConfigError, match=r"^the working directory was deleted: change to a directory that exists$"):
        make_importable()
