import collections
import ctypes
import gc
import importlib.metadata
import itertools
import os
import re
import shutil
import tempfile
from pathlib import Path

# Before jax starts its backend: two devices on any machine, and no accelerator.
os.environ["JAX_NUM_CPU_DEVICES"] = "2"
os.environ["JAX_PLATFORMS"] = "cpu"
# Most tests compile programs that run for less time than optimising them takes; tests marked `optimized` opt out.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"
# Programs are kept for the next run of the tests, also those of the processes that tests start.
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".jax_cache"))
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"
# Every operation outside of a program is lowered once for each shape, a sixth of that time for the lines it comes from.
os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"

# What tests train is not recorded as trusted by the user who runs them.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="stoix_like-state-")

import hypothesis
import jax
import jaxtyping
import pytest

from stoix_like import cli
from support.trained_runs import train_members, train_pendulum

# Reproducible examples.
hypothesis.settings.register_profile("repeatable", derandomize=True)
hypothesis.settings.load_profile("repeatable")

jax.config.update("jax_numpy_rank_promotion", "raise")

_SLOW_FILE = re.compile(r"^pytestmark = .*pytest\.mark\.(slow|learn|clusters)", re.MULTILINE)


def pytest_configure(config):
    """Compile the fusions of quick tests in half of the time, by XLA's older emitters, which jaxlib 0.11 lacks."""
    if config.option.markexpr == "not slow" and importlib.metadata.version("jaxlib").startswith("0.10."):
        os.environ["XLA_FLAGS"] = "--xla_cpu_use_fusion_emitters=false"


def pytest_ignore_collect(collection_path, config):
    """Leave files of slow tests alone out of runs of the quick ones: they import whole suites."""
    if config.option.markexpr == "not slow" and collection_path.suffix == ".py":
        return bool(_SLOW_FILE.search(collection_path.read_text())) or None
    return None


def pytest_unconfigure():
    """Remove what this process has written for a user."""
    shutil.rmtree(os.environ["XDG_STATE_HOME"], ignore_errors=True)


def pytest_collection_finish():
    """Collect garbage rarely, and exempt what is imported by now, most objects of all."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000)


def pytest_collection_modifyitems(items):
    """Mark the kinds of slow tests: those of suites by their place, and what trains or starts clusters as slow."""
    for item in items:
        if any(map(item.get_closest_marker, ("learn", "clusters"))):
            item.add_marker(pytest.mark.slow)
        elif item.path.parent.name == "suites" and item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.suites)


def pytest_terminal_summary(terminalreporter, config):
    """Of a run of slow tests, print tests, seconds and failures by file."""
    if not config.option.markexpr.startswith("slow"):
        return
    rows = collections.defaultdict(lambda: [0, 0.0, 0])
    for report in itertools.chain(*terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            row = rows[report.location[0]]
            row[0] += report.when == "call"
            row[1] += report.duration
            row[2] += report.failed
    terminalreporter.section("tests, seconds and failures by file")
    for path, (tests, seconds, failed) in sorted(rows.items(), key=lambda row: -row[1][1]):
        terminalreporter.write_line(f"{tests:5} {seconds:8.1f} {failed:3}  {path}")
    tests, seconds, failed = map(sum, zip(*rows.values(), strict=True)) if rows else (0, 0.0, 0)
    terminalreporter.write_line(f"{tests:5} {seconds:8.1f} {failed:3}  in all")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    """Compile with all optimisations where a test or its module is marked `optimized`, quickly elsewhere."""
    jax.config.update("jax_disable_most_optimizations", item.get_closest_marker("optimized") is None)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item, nextitem):
    """Return the memory of compiled programs to the system after a file, once they have four gigabytes of it."""
    if (nextitem is None or nextitem.path != item.path) and _resident_bytes() > 4 * 2**30:
        jax.clear_caches()
        gc.collect()
        # The C library of Linux keeps what was freed.
        ctypes.CDLL(None).malloc_trim(0)


def _resident_bytes():
    """Return the memory of this process; 0 on systems other than Linux."""
    file = Path("/proc/self/statm")
    return int(file.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if file.exists() else 0


@pytest.fixture
def without_type_checks():
    """Call functions as users do: without run-time checks of annotations, and with implicit rank promotion."""
    jaxtyping.config.update("jaxtyping_disable", True)
    with jax.numpy_rank_promotion("allow"):
        yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def homeless(monkeypatch):
    """Let the user have neither HOME nor an entry, as in containers."""

    def home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)


@pytest.fixture
def refused(capfd):
    """Return a function that runs a command which exits with code 2, and returns what it says."""

    def run(*words):
        with pytest.raises(SystemExit) as stopped:
            cli.main([*map(str, words)])
        out, err = capfd.readouterr()
        assert (stopped.value.code, out) == (2, "")
        return err

    return run


@pytest.fixture(scope="session")
def pendulum(tmp_path_factory):
    return train_pendulum(tmp_path_factory)


@pytest.fixture(scope="session")
def members(tmp_path_factory):
    return train_members(tmp_path_factory)
