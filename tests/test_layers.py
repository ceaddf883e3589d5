"""Imports point down the list of layers, and no files import each other in a circle.

Imports for types alone and those inside functions count, too.
"""

import ast
import fnmatch
import functools
import graphlib
import importlib
import re
from pathlib import Path

import pytest

import stoix_like
import support
from stoix_like.base_types import SystemConfig

ROOT = Path(stoix_like.__file__).parent
# From the bottom to the top; a module belongs to the entry with its longest prefix.
LAYERS = (
    ("errors", "exact", "foreign_keys", "interpreter", "overrides", "schema"),
    ("gymnasium_workers", "single_file", "versions"),
    ("call_thread", "devices", "processes", "signals", "user_code", "weights"),
    ("base_types", "envs.spaces", "utils.collectives", "utils.accelerate.platform"),
    ("utils.accelerate",),
    ("utils",),
    ("envs",),
    ("networks",),
    ("systems.parts",),
    ("systems.algorithm",),
    ("systems.on_policy", "systems.off_policy"),
    ("systems",),
    ("architectures",),
    ("loggers", "storage.contents", "storage.files"),
    ("arch_config", "config", "composition", "unknown_keys"),
    ("storage",),
    ("data",),
    ("rendering",),
    ("assembly",),
    ("policies",),
    ("callbacks",),
    ("run.host",),
    ("run.population",),
    ("run.set_up",),
    ("run.records",),
    ("run.programs",),
    ("run",),
    ("inference",),
    ("lab.aot", "lab.collect", "lab.eject", "lab.hub", "lab.replay_data", "lab.searches"),
    ("lab.analysis", "lab.ladder"),
    ("lab.tuning",),
    ("tuning",),
    ("cli", "lab.plotting"),
    ("",),
)


def module_name(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in ROOT.rglob("*.py")}


@functools.cache
def imports(path):
    """Return the modules of the package that a file imports, anywhere in it."""
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    inside = [name.removeprefix("stoix_like.") for name in names if name.startswith("stoix_like.")]
    # `from package import module`, or `from module import name`.
    return {name if name in MODULES else name.rpartition(".")[0] for name in inside}


def packages(path):
    """Return the other packages that a file imports."""
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [name.name for node in nodes if isinstance(node, ast.Import) for name in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.partition(".")[0] for name in names}


def layer(module):
    prefixes = {prefix: height for height, names in enumerate(LAYERS) for prefix in names}
    fitting = [prefix for prefix in prefixes if module == prefix or module.startswith(f"{prefix}.") or not prefix]
    return prefixes[max(fitting, key=len)]


def test_imports_point_downwards():
    upwards = [
        f"{module} imports {other}"
        for module, path in sorted(MODULES.items())
        for other in sorted(imports(path))
        if layer(other) > layer(module)
    ]
    assert upwards == []


def test_what_is_traced_knows_no_configuration_and_no_files():
    unwanted = {"hydra", "omegaconf", "orbax", "pathlib", "os", "wandb", "gymnax", "gymnasium"}
    traced = [module for module in MODULES if module.startswith(("systems", "architectures", "networks", "utils"))]
    assert len(traced) > 90
    found = {module: packages(MODULES[module]) & unwanted for module in traced}
    # `to_plain` takes what Hydra composed.
    assert {module: names for module, names in found.items() if names} == {
        "networks.from_config.modules": {"omegaconf"}
    }


def test_the_core_imports_neither_the_lab_nor_a_suite():
    """The command line loads both when a command is called, `stoix_like` on first use, and suites by their name."""
    neighbours = ("lab", "envs.suites.", "single_file")
    core = [module for module in MODULES if module and not f"{module}.".startswith((*neighbours, "cli", "tuning"))]
    allowed = {"envs.suites.physics"}
    imported = {
        (module, other) for module in core for other in imports(MODULES[module]) if other.startswith(neighbours)
    }
    assert {pair for pair in imported if pair[1] not in allowed} == set()
    # Environments of users are a suite by its name, too.
    assert not imports(MODULES["envs.factory"]) & {"envs.custom", "envs.check"}


def test_no_circle_of_files():
    graph = {module: imports(path) - {module} for module, path in MODULES.items()}
    graphlib.TopologicalSorter(graph).prepare()


def test_hyperparameters_come_from_the_page_and_at_most_one_other():
    """Each `Config` extends `SystemConfig`, or one system that it varies; options are parts."""
    pages = [module for module in MODULES if re.fullmatch(r"systems\.\w+\.anakin\.\w+", module)]
    assert len(pages) > 40
    for page in pages:
        config = getattr(importlib.import_module(f"stoix_like.{page}"), "Config", SystemConfig)
        ours = [base for base in config.__mro__ if base.__module__.startswith("stoix_like.")]
        assert len(ours) <= 3, (page, ours)


def test_long_modules_have_a_test_file_of_their_name():
    """In the folder that mirrors theirs; algorithms stand beside what their family shares, without `anakin`."""
    without = []
    for path in MODULES.values():
        folders = [name for name in path.relative_to(ROOT).parent.parts if name != "anakin"]
        test = Path(__file__).parent.joinpath(*folders, f"test_{path.stem.lstrip('_')}.py")
        # `__init__` only lists names.
        if path.name != "__init__.py" and len(path.read_text().splitlines()) > 100 and not test.exists():
            without.append(path.relative_to(ROOT).as_posix())
    assert without == []


def test_every_folder_of_tests_is_collected(pytestconfig):
    patterns = pytestconfig.getini("norecursedirs")
    folders = {path.parent.name for path in Path(__file__).parent.rglob("test_*.py")}
    assert not [name for name in folders for pattern in patterns if fnmatch.fnmatch(name, pattern)]


def test_files_are_short():
    lengths = {module: len(path.read_text().splitlines()) for module, path in MODULES.items()}
    assert {module for module, length in lengths.items() if length > 500} == {"utils.multistep"}


def uses_the_encoding_of_the_locale(call):
    """Return whether a call opens, reads or writes a file as text without saying how it is encoded."""
    is_function = isinstance(call.func, ast.Name)
    name = call.func.id if is_function else getattr(call.func, "attr", "")
    if any(keyword.arg == "encoding" for keyword in call.keywords):
        return False
    if name == "open":
        # Methods of other classes take something else first.
        modes = call.args[is_function:]
        return all(isinstance(mode, ast.Constant) and "b" not in str(mode.value) for mode in modes)
    # `files.write_text` encodes; `read_text` of a distribution takes a name.
    return not is_function and (name == "write_text" or (name == "read_text" and not call.args))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("open(path)", True),
        ("open(path, 'x')", True),
        ("open(path, 'rb')", False),
        ("open(path, encoding='utf-8')", False),
        ("path.open('a')", True),
        ("archive.open(info)", False),
        ("os.open(name, os.O_RDONLY)", False),
        ("path.read_text()", True),
        ("path.write_text(text)", True),
        ("write_text(path, text)", False),
    ],
)
def test_calls_that_use_the_encoding_of_the_locale_are_found(source, expected):
    assert uses_the_encoding_of_the_locale(ast.parse(source, mode="eval").body) == expected


def test_files_are_read_and_written_in_utf_8_whatever_the_locale():
    calls = [
        (module, node.lineno)
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and uses_the_encoding_of_the_locale(node)
    ]
    assert calls == []


def test_the_package_of_shared_test_code_lists_its_modules():
    listed = set(re.findall(r"`(\w+)`", support.__doc__))
    assert listed == {path.stem for path in Path(support.__file__).parent.glob("[a-z]*.py")}
