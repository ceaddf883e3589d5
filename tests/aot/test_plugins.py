import importlib.util
import os
import subprocess
import sys

import pytest

from stoix_like.aot.plugins import prepare
from stoix_like.aot.targets import find_target
from stoix_like.errors import MissingExtraError


def test_a_missing_compiler_belongs_into_an_environment_of_its_own(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"\[aot-cuda12\]', then .* in an environment of its own"):
        prepare(find_target("h200"))


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
