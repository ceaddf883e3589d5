import ast
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest

from stoix_like.envs.suites import SUITES

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def names(requirements):
    return {re.split(r"[<>=\[;]", requirement)[0].lower() for requirement in requirements}


def test_every_import_is_declared():
    imported = set()
    for path in (ROOT / "stoix_like").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                imported.add(node.module.partition(".")[0])
    # The import package `hydra` comes from hydra-core, `yaml` from PyYAML.
    packages = importlib.metadata.packages_distributions()
    extras = PROJECT["optional-dependencies"]
    declared = names(PROJECT["dependencies"]).union(*(names(extras[name]) for name in extras.keys() - {"dev", "docs"}))
    # What pip installs only by a command of its own, which errors and the guide show.
    declared |= {suite.without_dependencies for suite in SUITES.values()}
    for name in imported - set(sys.stdlib_module_names) - {"stoix_like"}:
        assert {package.lower() for package in packages[name]} & declared, f"{name} is not declared"


def test_packages_without_their_dependencies_are_part_of_the_development_environment():
    found = [suite.without_dependencies for suite in SUITES.values() if suite.without_dependencies]
    assert found == re.findall(r"--no-deps ([\w-]+)==", (ROOT / "Makefile").read_text())


def test_the_loggers_extra_brings_the_viewer_of_tensorboard():
    assert "tensorboard" in names(PROJECT["optional-dependencies"]["loggers"])


def test_the_type_checker_is_pinned_to_the_tested_version():
    (pinned,) = (each for each in PROJECT["optional-dependencies"]["dev"] if each.startswith("mypy"))
    assert pinned in (ROOT / "constraints.txt").read_text().splitlines()


LOWEST, ABOVE = map(int, re.fullmatch(r">=3\.(\d+),<3\.(\d+)", PROJECT["requires-python"]).groups())
VERSIONS = [f"3.{minor}" for minor in range(LOWEST, ABOVE)]


def test_the_versions_of_python_are_the_same_everywhere():
    pattern = re.compile(r"Programming Language :: Python :: (.*)")
    assert [found[1] for found in map(pattern.fullmatch, PROJECT["classifiers"]) if found] == VERSIONS
    spoken = f"Python {', '.join(VERSIONS[:-1])} or {VERSIONS[-1]}"
    for name in ("README.md", "CONTRIBUTING.md", "Makefile", "docs/index.md"):
        assert spoken in (ROOT / name).read_text(encoding="utf-8"), name


def fake_python(path, minor):
    """Write a program that answers questions about its version as another Python does, and fails otherwise."""
    answer = f"import sys; sys.version_info = (3, {minor}, 0)"
    path.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec {sys.executable} -c "{answer}; $2"\nexit 3\n')
    path.chmod(0o755)


def make(tmp_path, *arguments):
    environment = f"{tmp_path}/.venv"
    command = ["make", "-C", str(ROOT), f"VENV={environment}", f"{environment}/.core", *arguments]
    # Without the arguments of the `make` that runs the tests.
    variables = {name: os.environ[name] for name in os.environ.keys() - {"MAKEFLAGS", "MFLAGS", "PYTHON"}}
    variables["PATH"] = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    return subprocess.run(command, capture_output=True, text=True, env=variables)


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_refuses_versions_of_python_that_the_package_does_not_support(tmp_path):
    python = tmp_path / "python"
    for minor in (LOWEST - 1, ABOVE):
        fake_python(python, minor)
        assert "\nstoix_like needs Python 3." in make(tmp_path, f"PYTHON={python}").stdout, minor
    for minor in (LOWEST, ABOVE - 1):
        fake_python(python, minor)
        assert f"{python} -m venv" in make(tmp_path, f"PYTHON={python}").stdout, minor


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_takes_the_newest_python_that_the_package_supports(tmp_path):
    fake_python(tmp_path / "python3", ABOVE)
    newest = f"python{VERSIONS[-1]}"
    fake_python(tmp_path / newest, ABOVE - 1)
    assert f"{newest} -m venv" in make(tmp_path, "--dry-run").stdout


@pytest.mark.parametrize(
    ("imported", "unwanted"),
    [
        ("stoix_like.cli", {"hydra", "jax", "numpy"}),
        pytest.param(
            "stoix_like.run.experiment, stoix_like.envs.suites.gymnax",
            {"scipy.stats", "pandas", "wandb"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_packages_are_imported_where_they_are_used(imported, unwanted):
    code = f"import sys, {imported}; print({unwanted} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", code], text=True) == "set()\n"


@pytest.mark.slow
def test_the_source_distribution_passes_its_own_tests(tmp_path):
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (archive,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    unpacked = next(path for path in tmp_path.iterdir() if path.is_dir())
    # Those that read files outside the package.
    chosen = ["tests/test_scripts.py", "tests/test_results.py", "tests/test_packaging.py"]
    chosen += ["tests/test_docs.py", "tests/test_pages.py"]
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", *chosen]
    done = subprocess.run(command, cwd=unpacked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
