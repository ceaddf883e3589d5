"""Addresses that cannot work."""

import sys

import pytest
from faulty_store import FaultyFileSystem

from stoix_like.errors import ConfigError, MissingExtraError
from stoix_like.storage import mirror, remote
from stoix_like.storage.store import Store


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The files of an empty store by name, and a user without a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror, "SECONDS_BETWEEN_PASSES", 0.01)
    FaultyFileSystem.reset()
    yield FaultyFileSystem.store
    FaultyFileSystem.reset()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere://bucket/run", "the protocol nowhere:// is unknown: use gs://, s3://"),
        ("s3://bucket/../run", "is not the address of a directory"),
        ("s3://bucket/*/run", "is not the address of a directory"),
        ("runs/mirror", "is not the address of a directory"),
        ("faulty://bucket/nothing", "faulty://bucket/nothing holds no run: config.yaml is missing"),
    ],
)
def test_addresses_that_cannot_work_are_refused(tmp_path, address, message):
    with pytest.raises(ConfigError, match=message):
        remote.fetch(address, tmp_path)


def test_a_store_whose_package_is_missing_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/run needs the package 's3fs': .*'stoix_like\[s3\]'"):
        Store("s3://bucket/run")


def test_an_address_with_a_password_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match="contains a password") as refused:
        remote.check_new("ftp://user:secret@host/run")
    assert "secret" not in str(refused.value)
