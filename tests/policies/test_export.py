import itertools
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest

from stoix_like.errors import ConfigError


def test_export_refuses_endings_of_other_formats(policy, tmp_path):
    with pytest.raises(ConfigError, match=r"ends like a \.NPZ file, but holds onnx: use policy\.onnx"):
        policy.export(tmp_path / "policy.NPZ", "onnx")
    with pytest.raises(ConfigError, match=r"has an unknown ending: use .stablehlo, .onnx, .npz, or name the format"):
        policy.export(tmp_path / "policy.bin")
    assert list(tmp_path.iterdir()) == []


LOAD = """
    import pathlib, sys
    import jax, jax.export, numpy
    given = numpy.load(sys.argv[2])
    act = jax.export.deserialize(pathlib.Path(sys.argv[1]).read_bytes()).call
    found, expected = numpy.asarray(act(given["view"], given["key_data"])), given["action"]
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype), (found.shape, found.dtype)
    numpy.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
    assert not any(name.partition(".")[0] in ("stoix_like", "flax", "distrax", "gymnax") for name in sys.modules)
    print("equal")
"""


@pytest.mark.slow
def test_exported_policy_needs_only_jax(sampling, tmp_path):
    key = jax.random.key(3)
    view = np.asarray(sampling.random_observations(key, 3).agent_view)
    np.savez(tmp_path / "given.npz", view=view, action=sampling(view, key), key_data=jax.random.key_data(key))
    path = sampling.export(tmp_path / "policy.stablehlo")
    assert {entry.name for entry in tmp_path.iterdir()} == {"given.npz", "policy.stablehlo", "policy.stablehlo.json"}
    command = [sys.executable, "-I", "-c", textwrap.dedent(LOAD), path, tmp_path / "given.npz"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout, done.returncode) == ("equal\n", 0), done.stderr


@pytest.mark.parametrize("format", ["onnx", "npz"])
def test_formats_without_random_numbers_refuse_sampling_policies(sampling, tmp_path, format):
    with pytest.raises(ConfigError, match=f"format={format}: .* random numbers of jax: use --greedy"):
        sampling.export(tmp_path / "policy", format)
    assert list(tmp_path.iterdir()) == []


def test_export_that_differs_from_the_policy_raises_and_writes_no_file(policy, tmp_path, monkeypatch):
    act, traces = policy.act_on, itertools.count()
    # Another function whenever it is traced: for the file, and for the comparison.
    monkeypatch.setattr(policy, "act_on", lambda *inputs: act(*inputs) + 1e-3 * next(traces))
    with pytest.raises(RuntimeError, match="batch=1: the exported function and the policy differ"):
        policy.export(tmp_path / "policy.stablehlo")
    assert list(tmp_path.iterdir()) == []
