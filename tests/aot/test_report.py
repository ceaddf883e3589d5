"""Reports of runs; the compilers for accelerators that are installed compile for real."""

import importlib.util
import os
import re
import subprocess
import sys

import jax
import pytest
from toy_runs import TOY_RUN

from stoix_like.aot import report, targets, topology
from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError

TINY = ["network.actor_network.pre_torso.layer_sizes=[8]", "network.critic_network.pre_torso.layer_sizes=[8]"]
COMPILERS = {"h200": "jax_plugins.xla_cuda12", "v5e-4": "libtpu"}


@pytest.fixture
def on_this_cpu(monkeypatch):
    """Compile for the CPU of this machine instead."""
    monkeypatch.setattr(topology, "find_devices", lambda target, count: jax.local_devices())
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")


@pytest.mark.usefixtures("on_this_cpu")
def test_a_report_tells_memory_and_kernels_of_every_program():
    target = targets.find_target("h200")
    compiled = report.compile_for(parse_config(compose_config([*TOY_RUN, "arch.num_devices=1"])), target)
    compiled.check()
    text = "\n".join(compiled.lines())
    assert text.startswith("1 × NVIDIA H200, 106 GiB of 141 GiB for a run")
    for name in ("init", "train", "evaluate", "select"):
        assert re.search(rf"^{name}  .* (KiB|MiB) .*%$", text, re.MULTILINE)
    assert re.search(r"^  step of the rollout +4 +\d+ +0 +0$", text, re.MULTILINE)
    assert compiled.steps_per_update == 16
    assert f"{compiled.update.launches:,} launches per update" in text
    assert "no host transfers" in text


@pytest.mark.usefixtures("on_this_cpu")
def test_a_run_that_does_not_fit_is_refused_with_the_keys_to_lower(monkeypatch):
    target = targets.find_target("h200")
    config = parse_config(compose_config([*TOY_RUN, "arch.num_devices=1"]))
    # Before it compiles, where its arrays alone are too large.
    with pytest.raises(ConfigError, match=r"arch\.\w+=.* is too large: .* but only .* is available"):
        report.compile_for(config, target._replace(memory=100))
    compiled = report.compile_for(config, target)
    small = compiled._replace(setup=compiled.setup._replace(device_memory=1000))
    with pytest.raises(ConfigError, match=r"--for h200: the run needs .*: use a smaller arch.total_num_envs or"):
        small.check()


def test_what_one_process_cannot_compile_is_refused():
    target = targets.find_target("v5e-4")
    config = parse_config(compose_config([*TOY_RUN, "arch.num_devices=8"]))
    with pytest.raises(ConfigError, match="arch.num_devices=8 is too many: --for v5e-4 has 4"):
        report.compile_for(config, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", COMPILERS)
def test_a_run_compiles_for_an_accelerator_that_is_not_there(target):
    if importlib.util.find_spec(COMPILERS[target].partition(".")[0]) is None:
        pytest.skip(f"{COMPILERS[target]} is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [sys.executable, "-m", "stoix_like", "compile", *TINY, "--for", target]
    compiled = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (compiled.returncode, compiled.stderr) == (0, "")
    rows = dict(re.findall(r"^ *([a-z ]+?)  +(.*)$", compiled.stdout, re.MULTILINE))
    assert {"init", "train", "evaluate", "select", "update", "epoch", "minibatch", "step of the rollout"} <= set(rows)
    # Gradients are averaged once, and rollouts need no other device.
    assert [rows[name].split()[-2:] for name in ("step of the rollout", "minibatch")] == [
        ["0", "0"],
        ["1" if target == "v5e-4" else "0", "0"],
    ]
