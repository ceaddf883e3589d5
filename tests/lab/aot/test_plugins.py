import importlib.metadata
import importlib.util
import resource

import pytest

from stoix_like.errors import MissingExtraError
from stoix_like.lab.aot.plugins import prepare, stack_note
from stoix_like.lab.aot.targets import find_target


@pytest.mark.parametrize(("target", "extra"), [("h200", "cuda12"), ("v5e-4", "tpu")])
def test_a_missing_compiler_belongs_into_an_environment_of_its_own(target, extra, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = rf"--for {target} needs the package .*\[aot-{extra}\]', then .* in an environment of its own"
    with pytest.raises(MissingExtraError, match=message):
        prepare(find_target(target))


@pytest.mark.parametrize(
    ("target", "version", "limit", "noted"),
    [
        ("v5e-4", "0.0.42.1", 8 << 20, True),
        ("v5e-4", "0.0.48.1", 8 << 20, False),
        ("v5e-4", "0.0.42.1", resource.RLIM_INFINITY, False),
        ("h200", "0.0.42.1", 8 << 20, False),
    ],
)
def test_an_old_compiler_of_tpus_needs_a_large_stack(target, version, limit, noted, monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, resource.RLIM_INFINITY))
    note = stack_note(find_target(target))
    assert (note is not None) == noted
    assert not noted or "ulimit -s unlimited" in note
