"""Budgets: they fall when lines go, and rise only in a commit that says what a user gets for the new ones."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import stoix_like

ROOT, PACKAGE = (Path(stoix_like.__file__).parents[depth] for depth in (1, 0))
# Lines of Python by room; the longest prefix counts, and files of no room belong to the ground.
ROOMS = {
    "": 2_466,
    "utils": 6_440,
    "envs": 6_580,
    "networks": 7_287,
    "systems": 12_872,
    "architectures": 1_359,
    "arch_config assembly callbacks composition config": 1_283,
    "storage": 2_900,
    "loggers rendering data": 2_567,
    "policies": 1_682,
    "run": 5_475,
    "inference cli": 1_853,
    "envs/suites": 3_907,
    "lab": 7_086,
    "single_file": 2_393,
}
OUTSIDE_THE_CORE = ("envs/suites", "lab", "single_file")
CORE = 52_764
DOCSTRINGS = 0.1425  # share of the lines outside the single files
TESTS = 48_430
PAGE, PPO = 260, 172  # lines of one algorithm
YAML = 331
CHANGELOG = 12_000  # bytes
MODULES = 90  # of the package, that importing `ff_ppo` loads
RELATIVE_CLAUSES = 44  # "those of", "that of", "of which"


def count(*paths):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in paths)


def sizes():
    lines, prefixes = dict.fromkeys(ROOMS, 0), {prefix: room for room in ROOMS for prefix in room.split()}
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).with_suffix("").as_posix()
        inside = [prefix for prefix in prefixes if name == prefix or name.startswith(f"{prefix}/")]
        lines[prefixes[max(inside, key=len)] if inside else ""] += count(path)
    return lines


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_keep_their_budget(room):
    assert sizes()[room] <= ROOMS[room]


def test_the_core_keeps_its_budget():
    assert sum(lines for room, lines in sizes().items() if room not in OUTSIDE_THE_CORE) <= CORE


def test_docstrings_say_things_once():
    paths = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "single_file"]
    nodes = [node for path in paths for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    owners = [node for node in nodes if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)]
    strings = [node.body[0] for node in owners if ast.get_docstring(node)]
    assert sum(node.end_lineno - node.lineno + 1 for node in strings) <= DOCSTRINGS * count(*paths)


def test_pages_are_short():
    pages = {path.stem: count(path) for path in PACKAGE.glob("systems/*/anakin/*.py")}
    assert max(pages.values()) <= PAGE
    assert pages["ff_ppo"] <= PPO


def test_few_modules_stand_behind_an_algorithm():
    code = "import sys, stoix_like.systems.ppo.anakin.ff_ppo; print(*sys.modules)"
    names = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=ROOT).split()
    assert len([name for name in names if name.startswith("stoix_like")]) <= MODULES


def test_what_surrounds_the_package_is_short():
    assert count(*(ROOT / "tests").rglob("*.py")) <= TESTS
    assert len(list((ROOT / "configs").rglob("*.yaml"))) <= YAML
    assert len((ROOT / "CHANGELOG.md").read_bytes()) <= CHANGELOG
    text = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    assert len(re.findall("those of|that of|of which", text, re.IGNORECASE)) <= RELATIVE_CLAUSES
