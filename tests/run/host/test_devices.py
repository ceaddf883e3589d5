import dataclasses
import os
import platform
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from stoix_like.errors import ConfigError
from stoix_like.run.host import devices
from support.set_ups import config_of

FLAGS = "--xla_gpu_exclude_nondeterministic_ops=true --xla_gpu_autotune_level=0"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, FLAGS),
        ("--xla_cpu_enable_fast_math=false", f"--xla_cpu_enable_fast_math=false {FLAGS}"),
        # A value of the user's own stays.
        ("--xla_gpu_autotune_level=2", "--xla_gpu_autotune_level=2 --xla_gpu_exclude_nondeterministic_ops=true"),
        (FLAGS, FLAGS),
    ],
)
def test_deterministic_adds_its_flags_to_those_of_the_user(given, expected, monkeypatch):
    monkeypatch.setattr(devices, "_has_started", lambda: False)
    monkeypatch.setitem(os.environ, "XLA_FLAGS", given or "")
    devices.set_deterministic()
    assert os.environ["XLA_FLAGS"] == expected


def test_deterministic_comes_too_late_on_a_gpu_that_has_started_without_it(monkeypatch):
    monkeypatch.setitem(os.environ, "XLA_FLAGS", "")
    assert jax.default_backend() == "cpu"
    devices.set_deterministic()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    with pytest.raises(ConfigError, match="arch.deterministic=true comes too late, jax has already started"):
        devices.set_deterministic()
    assert not os.environ["XLA_FLAGS"]
    monkeypatch.setitem(os.environ, "XLA_FLAGS", FLAGS)
    devices.set_deterministic()
    monkeypatch.setitem(os.environ, "XLA_FLAGS", "--xla_gpu_exclude_nondeterministic_ops=False")
    with pytest.raises(ConfigError, match="arch.deterministic=true contradicts XLA_FLAGS='--xla_gpu_exclude"):
        devices.set_deterministic()


PROGRAM = """
import os, jax
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.run.set_up.setup import set_up
assert set_up(parse_config(compose_config(["arch.deterministic=true"])))
print(os.environ["XLA_FLAGS"], float(jax.jit(lambda x: x + 1)(1.0)))
"""


@pytest.mark.slow
def test_xla_knows_the_flags_that_a_run_sets_before_jax_starts():
    """XLA ends a process with flags that it does not know."""
    env = {**os.environ, "XLA_FLAGS": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, check=True)
    assert done.stdout == f"{FLAGS} 2.0\n"


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        # Of the root, 8 and 9; none where the entries cannot be read.
        (None, 8),
        ("0::/\n", 8),
        # 5 is the limit of the step, 4 that of its job: whichever is smaller, at any depth.
        ("0::/job/step\n", 4),
        ("0::/job\n", 4),
        # `max` is no limit, and a missing directory has none.
        ("0::/slice/unit\n", 8),
        # The first version: 3 for memory alone or together with another controller, and 2 of a group that has no say.
        ("7:cpuset:/other\n4:memory:/slurm/job\n", 3),
        ("4:cpuset,memory:/slurm/job\n0::/\n", 3),
        ("3:cpuset:/slurm/job\n", 8),
    ],
)
def test_memory_is_limited_by_every_group_above_the_process(tmp_path, entries, expected):
    assert list(devices.memory_limits(tmp_path)) == []
    groups = {"": "8", "job": "4", "job/step": "5", "slice": "max"}
    files = {f"sys/fs/cgroup/{group}/memory.max": limit for group, limit in groups.items()}
    groups = {"": "9", "slurm": "7", "slurm/job": "3", "other": "2"}
    files |= {f"sys/fs/cgroup/memory/{group}/memory.limit_in_bytes": limit for group, limit in groups.items()}
    files |= {} if entries is None else {"proc/self/cgroup": entries}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert min(devices.memory_limits(tmp_path)) == expected


def test_windows_is_refused(monkeypatch):
    arch = config_of().arch
    monkeypatch.setattr(platform, "system", lambda: "Windows")
    with pytest.raises(ConfigError, match="^stoix_like runs on Linux and macOS: on Windows, use WSL$"):
        devices.devices_of(arch)


def test_fused_networks_need_the_shared_memory_of_an_h100():
    arch = config_of("arch.fused_networks=true").arch
    gpus = [SimpleNamespace(compute_capability=capability, device_kind="GPU") for capability in ("9.0", "10.0", "8.0")]
    devices.check_fused(arch, [*gpus[:2], *jax.local_devices()])
    devices.check_fused(dataclasses.replace(arch, fused_networks=False), gpus)
    with pytest.raises(ConfigError, match="arch.fused_networks=true does not fit into .* of a GPU, .*: use false"):
        devices.check_fused(arch, gpus)
