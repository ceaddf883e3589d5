import json
import signal
import subprocess

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.storage import checkpoint
from stoix_like.storage.run_files import METRICS, read_records
from support.commands import COMMAND, variables, wait_until
from support.comparisons import without_times
from support.lazily import Lazy

mjx_hinge = Lazy("support.mjx_hinge")
# mjx broadcasts arrays of different ranks.
pytestmark = [pytest.mark.slow, pytest.mark.optimized, pytest.mark.usefixtures("without_type_checks")]
RUN = [
    *("system=ppo/ff_ppo", "env._target_=support.mjx_hinge.Hinge", "system.rollout_length=16"),
    *("system.num_minibatches=2", "arch.total_num_envs=8", "arch.total_timesteps=2e4"),
    *("arch.num_evaluation=20", "arch.num_eval_episodes=4"),
]


def stored(run_dir):
    step = checkpoint.steps(run_dir)[-1]
    text = json.loads((run_dir / "checkpoints" / str(step) / "host_state" / "metadata").read_text())["text"]
    return step, json.loads(text)["checksums"]


def test_runs_on_mjx_data_are_resumed_evaluated_and_exported(tmp_path):
    state, _ = mjx_hinge.Hinge().reset(jax.random.key(0))
    assert any(leaf.size == 0 for leaf in jax.tree.leaves(state))
    env = variables(JAX_DISABLE_MOST_OPTIMIZATIONS="0")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    subprocess.run([COMMAND, "train", *RUN, f"hydra.run.dir={whole}"], env=env, check=True)
    with subprocess.Popen([COMMAND, "train", *RUN, f"hydra.run.dir={killed}"], env=env) as process:
        wait_until(lambda: killed.exists() and checkpoint.steps(killed), 500, process)
        process.send_signal(signal.SIGKILL)
    subprocess.run([COMMAND, "resume", str(killed), "--trust"], env=env, check=True)
    assert stored(killed) == stored(whole)
    histories = [without_times(list(read_records(run_dir / METRICS))) for run_dir in (whole, killed)]
    assert histories[0] == histories[1]

    subprocess.run([COMMAND, "evaluate", str(killed), "--episodes", "2", "--trust"], env=env, check=True)
    policy = stoix_like.load_policy(killed, trust=True)
    policy.export(tmp_path / "policy.onnx")
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(tmp_path / "policy.onnx")
    view = np.asarray([0.1, 0.99, -0.2], np.float32)
    (action,) = session.run(None, {session.get_inputs()[0].name: view[None]})
    np.testing.assert_allclose(action[0], policy(view), atol=1e-5)
