"""Runs on a store that tests can make wait or fail."""

import pytest

from stoix_like.storage import mirror
from support.faulty_store import FaultyFileSystem
from support.store_runs import write_checkpoint


@pytest.fixture
def store(tmp_path, monkeypatch):
    """The files of an empty store by name, and a user without a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror, "SECONDS_BETWEEN_PASSES", 0.01)
    FaultyFileSystem.reset()
    yield FaultyFileSystem.store
    FaultyFileSystem.reset()


@pytest.fixture
def run(tmp_path):
    """A directory with the files of a run and two checkpoints."""
    directory = tmp_path / "run"
    for name in ("config.yaml", "metrics.jsonl", "summary.json", ".hydra/overrides.yaml", ".lock"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"of {name}\n")
    for step in (64, 128):
        write_checkpoint(directory, step)
    return directory
