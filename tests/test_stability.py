import importlib
import inspect
import re
from pathlib import Path

import pytest

# One line per name: `module.function(parameters)`, in the order that callers rely on; behind `*`, by keyword. Lines
# are only added.
NAMES = Path(__file__).with_name("stable_names.txt").read_text().splitlines()


def named(path):
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("line", NAMES, ids=lambda line: line.partition("(")[0])
def test_names_keep_their_import_paths_and_their_arguments(line):
    path, recorded = re.fullmatch(r"([\w.]+)(?:\((.*)\))?", line).groups()
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
