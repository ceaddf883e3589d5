"""The reference covers every public symbol, and what the guides and the README show is true."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stoix_like.config import compose_config, typed

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    path
    for path in (ROOT / "stoix_like").rglob("*.py")
    if not any(part.startswith("_") for part in path.relative_to(ROOT).with_suffix("").parts if part != "__init__")
)
REFERENCE = "\n".join(path.read_text() for path in sorted((ROOT / "docs/reference").rglob("*.md")))
OWN_SYSTEM = ROOT / "docs/guides/write_your_own_system.md"
GUIDES = [ROOT / "docs/guides/import_the_parts.md", ROOT / "docs/guides/use_a_trained_policy.md", OWN_SYSTEM]
PAGES = [ROOT / "README.md", ROOT / "docs/index.md", *GUIDES]


def module_name(path):
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def public_symbols(body, prefix=""):
    """Functions and classes with their methods; read from the source, where nothing writes a docstring by itself."""
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # What a flax module does stands in __call__; other magic methods explain themselves.
            if node.name.startswith("_") and node.name != "__call__":
                continue
            yield prefix + node.name, ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                yield from public_symbols(node.body, f"{prefix}{node.name}.")


def blocks(page, language):
    """The fenced blocks of a page: pairs of title and code."""
    fence = rf'^```{language}(?: title="([^"]+)")?\n(.*?)^```$'
    return re.findall(fence, page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A directory with the files of the guide to systems of one's own, to be in."""
    for title, text in blocks(OWN_SYSTEM, "python") + blocks(OWN_SYSTEM, "yaml"):
        if title:
            path = tmp_path / title
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("mine", None)


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_everything_public_has_a_docstring(path):
    tree = ast.parse(path.read_text())
    assert ast.get_docstring(tree), "the module has no docstring"
    assert [name for name, docstring in public_symbols(tree.body) if not docstring] == []


@pytest.mark.parametrize("path", SOURCES, ids=module_name)
def test_everything_public_is_in_the_reference(path):
    names = [name for name, _ in public_symbols(ast.parse(path.read_text()).body)]
    documented = re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE)
    assert not names or module_name(path) in documented, f"no page in docs/reference shows {names}"


def test_no_page_of_the_reference_leaves_symbols_out():
    assert re.findall(r"^ +(?:members|filters|inherited_members):.*$", REFERENCE, re.MULTILINE) == []


def test_a_missing_docstring_is_found():
    source = 'class A:\n  "d"\n  def __call__(self): ...\n  def _f(self): ...\nasync def f(): ...'
    assert list(public_symbols(ast.parse(source).body)) == [("A", "d"), ("A.__call__", None), ("f", None)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_python_block_runs(page, directory):
    shown = blocks(page, "python")
    assert shown
    namespace = {"__name__": "shown"}
    for _, code in shown:
        exec(compile(code, page.name, "exec"), namespace)


def test_the_system_of_the_guide_learns_from_the_shell(directory):
    ((_, command),) = blocks(OWN_SYSTEM, "sh")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "JAX_COMPILATION_CACHE_DIR": str(directory / "cache"),
    }
    done = subprocess.run(command, shell=True, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (directory / "runs").glob("mine/action/*")
    assert json.loads((run / "summary.json").read_text())["eval/episode_return_mean"] == 1.0
    last = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["train/episode_return_mean"] > 0.9


def test_the_preset_of_the_guide_changes_what_it_says(directory):
    names = ("ppo/ff_ppo", "careful_ppo")
    packaged, preset = (typed(compose_config([f"system={name}"], [directory / "conf"])) for name in names)
    assert preset.system_name == "careful_ppo"
    assert preset.build is packaged.build
    assert (preset.system.clip_eps, preset.system.epochs) == (0.1, 2)
    assert preset.system.gamma == packaged.system.gamma
