import importlib.metadata
import importlib.util
import os
import resource
import subprocess
import sys

import pytest

from stoix_like.errors import MissingExtraError
from stoix_like.lab.aot.plugins import prepare, stack_note
from stoix_like.lab.aot.targets import find_target


def test_a_missing_compiler_belongs_into_an_environment_of_its_own(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[aot-cuda12\]', then .* in an environment of its own"):
        prepare(find_target("h200"))


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


@pytest.mark.slow
@pytest.mark.parametrize(("target", "module", "extra"), [("h200", "jax_plugins", "cuda12"), ("v5e-4", "libtpu", "tpu")])
def test_a_missing_compiler_is_refused_with_its_extra(target, module, extra):
    if importlib.util.find_spec(module):
        pytest.skip(f"{module} is installed")
    command = [sys.executable, "-m", "stoix_like", "compile", "--for", target]
    refused = subprocess.run(command, env=os.environ, capture_output=True, text=True)
    assert refused.returncode == 2
    assert refused.stdout == ""
    assert len(refused.stderr.splitlines()) == 1
    assert f"stoix-like: --for {target} needs the package" in refused.stderr
    assert f"[aot-{extra}]" in refused.stderr
