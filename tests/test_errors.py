import re
from pathlib import Path

import pytest

from stoix_like.errors import (
    ConfigError,
    MissingExtraError,
    first_line,
    install_command,
    install_hint,
    require,
    resume_command,
)

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("origin", "command"),
    [
        ({}, "pip install 'stoix_like[tune]'"),
        ({"url": "file:///a%20b/c", "dir_info": {"editable": True}}, "pip install -e '/a b/c[tune]'"),
        ({"url": "file:///a/c", "dir_info": {}}, "pip install '/a/c[tune]'"),
        (
            {"url": "https://host/a.git", "vcs_info": {"vcs": "git", "commit_id": "1"}},
            "pip install 'stoix_like[tune] @ git+https://host/a.git'",
        ),
        (
            {"url": "file:///a/stoix_like.whl", "archive_info": {}},
            "pip install 'stoix_like[tune] @ file:///a/stoix_like.whl'",
        ),
    ],
)
def test_extras_are_installed_from_where_the_package_came(origin, command):
    assert install_command("tune", origin) == command


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


def test_a_checkout_is_named(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert install_hint("tune") == "pip install -e '.[tune]'"
    monkeypatch.chdir("/")
    assert install_hint("tune") == f"pip install -e '{ROOT}[tune]'"
    with pytest.raises(MissingExtraError, match=r"x=1 needs the package 'no_such': pip install -e .*\[tune\]'"):
        require("no_such", "x=1", "tune")


def test_long_numbers_are_shortened_and_long_names_are_not():
    path = f"/scratch/{'run-2026_' * 20}/checkpoints"
    assert str(ConfigError(f"{path}: {10**200} is too large")) == f"{path}: {'1' + 59 * '0'}… is too large"


def test_the_first_line_of_an_error_is_what_it_says_or_its_class():
    assert first_line(ValueError("\nno arrays\nat 0x1")) == "no arrays"
    assert first_line(KeyError()) == "KeyError"
    frames = '  File "a.py", line 1, in f\n    g()\n  File "b.py", line 2, in g\n'
    of_callback = (
        f"INTERNAL: CpuCallback error: Traceback (most recent call last):\n{frames}ValueError: too hot\ngot 4\n"
    )
    assert first_line(RuntimeError(of_callback)) == "ValueError: too hot"
    assert first_line(RuntimeError(of_callback.replace("in g\n", "in g\n    raise\n"))) == "ValueError: too hot"
