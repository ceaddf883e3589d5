"""Tests of the promises of `docs/stability.md` that no other file tests."""

import importlib
import inspect
import re
import runpy
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType

import pytest
from omegaconf import OmegaConf

import stoix_like
from stoix_like import moved_names, renamed_keys
from stoix_like.composition import compose_config, config_dir, group_choices, override_config
from stoix_like.config import GROUPS, LAYOUT, parse_config
from stoix_like.errors import ConfigError
from stoix_like.networks.build.modules import instantiate
from stoix_like.storage import checkpoint, config_file
from stoix_like.storage.run_files import LAYOUT_NUMBER

# One line per name: `module.function(parameters)`, in the order that callers rely on; behind `*`, by keyword. Lines
# are only added.
NAMES = Path(__file__).with_name("stable_names.txt").read_text().splitlines()
MESSAGE = r"unknown key 'system.discount': renamed: use system.gamma{} \(stoix_like 9.0 no longer knows the old name\)"


def has_ended(removed):
    """Return whether the version from which on an old name is unknown is here."""
    return tuple(map(int, stoix_like.__version__.split(".")[:2])) >= tuple(map(int, removed.split(".")))


def named(path):
    """Import an object by its path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.fixture
def moved(monkeypatch):
    """Move `stoix_like.left.Old` to `stoix_like.errors.ConfigError`, for a test; return the module that it has left."""
    module = ModuleType("stoix_like.left")
    module.__getattr__ = lambda name: moved_names.resolve("stoix_like.left", name)
    monkeypatch.setitem(sys.modules, "stoix_like.left", module)
    monkeypatch.setitem(moved_names.MOVED, "stoix_like.left.Old", ("stoix_like.errors.ConfigError", "9.0"))
    return module


@pytest.fixture
def renamed(monkeypatch):
    """Rename `system.discount`, for a test."""
    monkeypatch.setitem(renamed_keys.RENAMED, "system.discount", ("system.gamma", "9.0"))


@pytest.mark.parametrize("line", NAMES, ids=lambda line: line.partition("(")[0])
def test_names_keep_their_import_paths_and_their_arguments(line):
    path, recorded = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", line).groups()
    with pytest.deprecated_call() if f"stoix_like.{path}" in moved_names.MOVED else nullcontext():
        found = named(f"stoix_like.{path}")
    if recorded is None:  # a type whose fields may change
        return
    names, by_name = (re.findall(r"\w+", part) for part in (*recorded.split("*"), "")[:2])
    parameters = inspect.signature(found).parameters
    others = [parameter for parameter in parameters.values() if parameter.name not in (*names, *by_name)]
    assert set(by_name) <= parameters.keys()
    assert [name for name in parameters if name in names] == names
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    if not inspect.isclass(found):
        assert list(parameters)[: len(names)] == names
        assert all(parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY for name in names)
    assert [other for other in others if other.kind not in variadic and other.default is other.empty] == []


def test_renamed_keys_are_answered_by_the_command_line(renamed):
    with pytest.raises(ConfigError, match=MESSAGE.format("=0.5")):
        compose_config(["system.discount=0.5"])
    with pytest.raises(ConfigError, match=MESSAGE.format("")):
        override_config(compose_config([]), ["system.discount=0.5"])


def test_renamed_keys_are_answered_in_yaml_files_of_users(renamed):
    with pytest.raises(ConfigError, match=MESSAGE.format("")):
        parse_config(compose_config(["+system.discount=0.5"]))


def test_runs_that_were_recorded_with_the_old_name_are_read(tmp_path, renamed):
    groups = "".join(f"{group}: {{a: 1}}\n" for group in GROUPS if group != "system")
    (tmp_path / "config.yaml").write_text(f"{LAYOUT}: {LAYOUT_NUMBER}\nsystem: {{discount: 0.5}}\n{groups}")
    assert config_file.plain_config(tmp_path)["system"] == {"gamma": 0.5}
    assert config_file.read_config(tmp_path).system == {"gamma": 0.5}


def test_checkpoints_that_were_written_with_the_old_name_are_read(tmp_path, monkeypatch):
    monkeypatch.setitem(renamed_keys.RENAMED, "system.gamma", ("system.discount", "9.0"))
    shutil.unpack_archive(Path(__file__).parent / f"storage/layout_{LAYOUT_NUMBER}.zip", tmp_path)
    (run,) = tmp_path.iterdir()
    system = checkpoint.read_host_state(run, 16)["config"]["system"]
    assert system["discount"] == 0.99
    assert "gamma" not in system


def test_names_that_have_moved_are_answered_with_a_warning(moved, tmp_path):
    (tmp_path / "user.py").write_text("\nfrom stoix_like.left import Old\n")
    message = (
        r"stoix_like\.left\.Old has moved: import stoix_like\.errors\.ConfigError"
        r" \(stoix_like 9\.0 no longer knows the old path\)"
    )
    with pytest.warns(DeprecationWarning, match=message) as warned:
        assert runpy.run_path(str(tmp_path / "user.py"))["Old"] is ConfigError
    # The line of the user, where Python shows the warning.
    assert {(Path(warning.filename).name, warning.lineno) for warning in warned} == {("user.py", 2)}
    with pytest.raises(AttributeError, match=r"module 'stoix_like\.left' has no attribute 'Older'"):
        moved.Older  # noqa: B018
    assert not hasattr(moved, "Older")


def test_networks_in_yaml_files_may_name_the_old_path(moved):
    with pytest.deprecated_call():
        assert isinstance(instantiate({"_target_": "stoix_like.left.Old", "message": "no"}), ConfigError)


def test_names_that_have_moved_lead_to_names_that_exist_and_end_with_their_version():
    for old, (new, removed) in moved_names.MOVED.items():
        with pytest.deprecated_call():
            assert named(old) is named(new)
        assert not has_ended(removed), f"{old} has been deprecated long enough: remove its row"


def test_renamed_keys_lead_to_keys_that_exist_and_end_with_their_version():
    systems = [OmegaConf.load(config_dir() / "system" / f"{system}.yaml") for system in group_choices("system")]
    known = {f"system.{key}" for system in systems for key in system}
    composed = compose_config([])
    for old, (new, removed) in renamed_keys.RENAMED.items():
        assert new in known or OmegaConf.select(composed, new, default="no") != "no", new
        assert old not in known
        assert OmegaConf.select(composed, old, default="no") == "no", old
        assert not has_ended(removed), f"{old} has been deprecated long enough: remove its row"
