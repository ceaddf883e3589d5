import importlib.util
import sys

import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError


@pytest.mark.parametrize(
    ("command", "imports"),
    [
        ("sweep sweep.trials=1", True),
        ("plot --kind policy run --out a.png --trust", True),
        ("plot --kind trajectory run --out a.png --trust", True),
        ("export run --out a.stablehlo --trust", True),
        ("plot --kind critic run --out a.png", False),
    ],
)
def test_commands_import_code_from_the_working_directory(command, imports, tmp_path, monkeypatch, capsys):
    (tmp_path / "custom_code.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def refuse(*args, **kwargs):
        assert (importlib.util.find_spec("custom_code") is not None) == imports
        raise ConfigError("imported")

    monkeypatch.setattr("stoix_like.inference.load.load_policy", refuse)
    monkeypatch.setattr("stoix_like.tuning.from_command_line", refuse)
    with pytest.raises(SystemExit):
        cli.main(command.split())
    assert "imported" in capsys.readouterr().err
