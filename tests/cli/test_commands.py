import dataclasses
import importlib
import importlib.util
import inspect
import sys

import pytest

from stoix_like import cli
from stoix_like.errors import ConfigError
from stoix_like.lab.tuning import SweepConfig


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

    monkeypatch.setattr("stoix_like.policies.load.load_policy", refuse)
    monkeypatch.setattr("stoix_like.lab.tuning.from_command_line", refuse)
    with pytest.raises(SystemExit):
        cli.main(command.split())
    assert "imported" in capsys.readouterr().err


def test_the_help_of_a_sweep_has_every_setting_with_its_default(capsys):
    with pytest.raises(SystemExit) as exit_:
        cli.main(["sweep", "--help"])
    assert exit_.value.code == 0
    shown = capsys.readouterr().out.partition("settings, each sweep.NAME=VALUE:\n")[2]
    names = [line.split()[0] for line in shown.splitlines() if line[2] != " "]
    assert names == [field.name for field in dataclasses.fields(SweepConfig)]
    assert "  fresh_seeds  seeds on which the best trial is trained again after the search; 0: none (default" in shown
    assert "  space        ranges by key\n" in shown  # without a reference to code
    assert "null: one after the other in this process" in " ".join(shown.split())


class _ReachedError(Exception):
    """What a command calls was called."""


@pytest.mark.parametrize(
    ("command", "target", "expected"),
    [
        ("push run me/policy --private", "lab.hub.push", {"private": True}),
        ("push run me/policy", "lab.hub.push", {"private": False}),
        ("collect run --out a.npz --replay", "lab.collect.collect", {"replay": True}),
        ("collect run --out a/b-v0 --format minari", "lab.collect.collect", {"format": "minari"}),
        ("ladder run --members --neighbours 2", "lab.ladder.ladder", {"members": True, "neighbours": 2}),
        ("report run --out x.html --no-animation", "lab.analysis.report.write", {"animation": False}),
        ("report run --out x.html", "lab.analysis.report.write", {"animation": True}),
        (
            "compare run --level 0.01 --target 9 --test permutation --score best",
            "lab.analysis.Settings",
            {"level": 0.01, "target": 9.0, "test": "permutation", "score": "best"},
        ),
        ("export run --out a.onnx --agent 1 --no-greedy --member 2", "policies.load.load_policy", {"agent": 1}),
    ],
)
def test_flags_reach_what_they_are_for(command, target, expected, monkeypatch, tmp_path):
    """The arguments are compared by name, however they are passed."""
    monkeypatch.chdir(tmp_path)
    module, _, name = f"stoix_like.{target}".rpartition(".")
    function, found = getattr(importlib.import_module(module), name), {}

    def reached(*args, **kwargs):
        found.update(inspect.signature(function).bind(*args, **kwargs).arguments)
        raise _ReachedError

    monkeypatch.setattr(importlib.import_module(module), name, reached)
    with pytest.raises(_ReachedError):
        cli.main(command.split())
    assert {key: found[key] for key in expected} == expected
