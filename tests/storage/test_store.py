"""Stores whose packages are missing."""

import sys

import pytest

from stoix_like.errors import MissingExtraError
from stoix_like.storage.store import Store


def test_a_store_whose_package_is_missing_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingExtraError, match=r"s3://bucket/run needs the package 's3fs': .*\[s3\]'"):
        Store("s3://bucket/run")
