import importlib.util
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from stoix_like.errors import ConfigError
from stoix_like.lab.aot import report, targets, topology
from support.set_ups import config_of
from support.toy_runs import TOY_RUN
from support.trained_runs import LAYERS

GPUS = [name for name in targets.names() if targets.find_target(name).platform != "tpu"]


@pytest.fixture
def on_this_cpu(monkeypatch):
    monkeypatch.setattr(topology, "find_devices", lambda target, count: jax.local_devices())
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", "2")


@pytest.mark.usefixtures("on_this_cpu")
def test_a_report_tells_memory_and_kernels_of_every_program():
    target = targets.find_target("h200")
    compiled = report.compile_for(config_of(*TOY_RUN, "arch.num_devices=1"), target)
    compiled.check()
    text = "\n".join(compiled.lines())
    assert text.startswith("1 × NVIDIA H200, 106 GiB of 141 GiB for a run")
    for name in ("init", "train", "evaluate", "select"):
        assert re.search(rf"^{name}  .* (KiB|MiB) .*%$", text, re.MULTILINE)
    assert re.search(r"^  step of the rollout +4 +\d+ +0 +0$", text, re.MULTILINE)
    assert compiled.steps_per_update == 16
    assert f"{compiled.update.launches:,} launches per update" in text
    assert "no host transfers" in text
    update = compiled.update
    assert f"{update.cost / 1e3:.3g} of kernels and {1.5e-3 * update.launches:.3g} of launches at 1.5 µs;" in text
    assert len(re.findall(r"^[\d.]+% +[\d,]+ +\S", text, re.MULTILINE)) == 5
    assert re.search(r"memory for about [\d,]+ environments \(arch.total_num_envs\), or for [\d,]+ members", text)


@pytest.mark.usefixtures("on_this_cpu")
def test_a_run_that_does_not_fit_is_refused_with_the_keys_to_lower(monkeypatch):
    target = targets.find_target("h200")
    config = config_of(*TOY_RUN, "arch.num_devices=1")
    # Before it compiles, where its arrays alone are too large.
    with pytest.raises(ConfigError, match=r"arch\.\w+=.* is too large: .* but only .* is available"):
        report.compile_for(config, target._replace(memory=100))
    compiled = report.compile_for(config, target)
    small = compiled._replace(setup=compiled.setup._replace(device_memory=1000))
    with pytest.raises(ConfigError, match=r"--for h200: the run needs .*: use a smaller arch.total_num_envs or"):
        small.check()


@pytest.mark.usefixtures("on_this_cpu")
def test_what_one_process_cannot_compile_is_refused(monkeypatch):
    config = config_of(*TOY_RUN, "arch.num_devices=8")
    with pytest.raises(ConfigError, match="arch.num_devices=8 is too many: --for v5e-4 has 4"):
        report.compile_for(config, targets.find_target("v5e-4"))
    a100 = [SimpleNamespace(compute_capability="8.0", device_kind="A100")]
    monkeypatch.setattr(topology, "find_devices", lambda target, count: a100)
    config = config_of("arch.fused_networks=true", "arch.num_devices=1")
    with pytest.raises(ConfigError, match="arch.fused_networks=true does not fit into the shared memory of a A100"):
        report.compile_for(config, targets.find_target("a100"))
    monkeypatch.setattr(topology, "find_devices", lambda target, count: jax.local_devices())
    config = config_of("env=gymnasium/cartpole", "arch.num_devices=1")
    with pytest.raises(ConfigError, match="--for h200: gymnasium/CartPole-v1 steps on the host.* use arch=sebulba"):
        report.compile_for(config, targets.find_target("h200"))


# See `plugins.stack_note`.
UNLIMITED_STACK = ["sh", "-c", 'ulimit -s "$(ulimit -H -s)" && exec "$@"', "sh"]


def run_for(target, *overrides):
    compiler = "jax_plugins" if target in GPUS else "libtpu"
    if importlib.util.find_spec(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    command = [*UNLIMITED_STACK, sys.executable, "-m", "stoix_like", "compile", *overrides, "--for", target]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def compile_on(target, *overrides):
    """Compile a run; return the columns of each row of the report."""
    compiled = run_for(target, *overrides)
    assert (compiled.returncode, compiled.stderr) == (0, "")
    return {name: row.split() for name, row in re.findall(r"^ *([a-z0-9 ]+?)  +(.*)$", compiled.stdout, re.MULTILINE)}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "v5e-4", "v5p-8"])
def test_a_run_compiles_for_an_accelerator_that_is_not_there(target):
    rows = compile_on(target, *LAYERS)
    assert {"init", "train", "evaluate", "select", "update", "epoch", "minibatch"} <= set(rows)
    assert any("of the rollout" in name for name in rows)
    assert rows["minibatch"][-2:] == ["0" if target == "h200" else "1", "0"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["h200", "b200"])
def test_networks_are_fused_for_a_gpu_and_move_fewer_bytes(target):
    moved = []
    for fused in ("false", "true"):
        wide = [override.replace("[8]", "[256,256]") for override in LAYERS]
        text = run_for(target, *wide, "arch.total_num_envs=1024", f"arch.fused_networks={fused}").stdout
        size, unit = re.search(r"and ([\d.]+) (\w+) read and written per update", text).groups()
        moved.append(float(size) * {"MiB": 1, "GiB": 1024}[unit])
    assert moved[1] < 0.2 * moved[0]


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS)
def test_every_gpu_is_compiled_for(target):
    assert "launches per update" in run_for(target, *LAYERS).stdout


@pytest.mark.slow
def test_what_the_compiler_refuses_names_the_keys_to_lower():
    sizes = ["arch.total_num_envs=65536", "arch.population.size=64", "arch.total_timesteps=1e9"]
    refused = run_for("v5e-4", *LAYERS, *sizes, "system.num_minibatches=16")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert re.search("train needs more than 15.8 GiB .* arch.population.size or arch.total_num_envs", refused.stderr)


@pytest.mark.slow
def test_learner_and_actors_of_sebulba_compile():
    overrides = ["arch=sebulba", "env=gymnasium/cartpole", "system=impala/ff_impala", "arch.total_num_envs=8"]
    compiled = run_for("h200", *LAYERS, *overrides)
    assert re.findall("^actor 0 [a-z]+", compiled.stdout, re.MULTILINE) == [
        f"actor 0 {name}" for name in ("start", "begin", "advance", "finish")
    ]
    assert "evaluate calls environments on the host, and was not compiled" in compiled.stdout
    # Those of the actors depend on how often they act.
    assert re.search(r"^\d+ launches per update of the learner, 0\.\d+ per env", compiled.stdout, re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "body", "collectives"),
    [
        ("ppo/rec_ppo arch.total_num_envs=16", "minibatch", 1),
        ("q_learning/ff_dqn", "epoch", 1),
        ("q_learning/ff_pqn", "minibatch", 1),
        # The critic's, then those of the actor, whose loss takes the new critic.
        ("ddpg/ff_ddpg env=gymnax/pendulum", "epoch", 2),
        ("sac/ff_sac env=gymnax/pendulum", "epoch", 2),
        ("mpo/ff_mpo", "epoch", 2),
        ("spo/ff_spo", "epoch", 1),
        ("search/ff_az", "epoch", 1),
        ("search/ff_mz", "epoch", 1),
        ("reppo/ff_reppo env=gymnax/pendulum", "minibatch", 2),
        # The advantages, whose better half weighs, and the gradients.
        ("mpo/ff_vmpo", "minibatch", 2),
        # The largest importance weight, and the gradients.
        ("q_learning/rec_r2d2", "epoch", 2),
        # Mean and deviation of the advantages of the new critic, metrics, and the gradients.
        ("awr/ff_awr", "epoch", 4),
    ],
)
def test_gradients_are_averaged_at_once_and_rollouts_need_no_other_device(system, body, collectives):
    name, *overrides = system.split()
    rows = compile_on("v5e-4", f"system={name}", "arch.total_num_envs=8", *overrides)
    assert rows[body][-2] == str(collectives)
    # A rollout of one step is no loop.
    assert {row[-2] for name, row in rows.items() if "of the rollout" in name} <= {"0"}
    # None in any loop.
    assert {row[-1] for name, row in rows.items() if len(row) == 4} == {"0"}
