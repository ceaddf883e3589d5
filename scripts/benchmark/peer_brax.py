"""Measure training epochs of brax's own PPO. The settings are JSON, see `scenarios.py`.

brax trains in a thread that waits after each epoch: one epoch, of the whole budget, is one run. Evaluations are not
timed.
"""

import json
import os
import sys
import threading
import time
import traceback
import warnings
from functools import partial
from queue import Queue
from typing import Any

import jax
import jax.numpy as jnp
from brax.training.agents.ppo import networks, train
from worker import Clock, serve

warnings.filterwarnings("ignore", category=DeprecationWarning)

EPOCHS = 100


def replicated(tree: Any, devices: list[jax.Device]) -> Any:
    """Copy arrays to devices, each copy a row: `jax.device_put_replicated`, which brax calls and jax 0.10 removed."""
    rows = jax.sharding.NamedSharding(jax.sharding.Mesh(devices, "x"), jax.sharding.PartitionSpec("x"))
    return jax.tree.map(lambda leaf: jax.device_put(jnp.stack([leaf] * len(devices)), rows), tree)


def main() -> None:
    """Train for one epoch for every line of standard input; the first one compiles."""
    jax.device_put_replicated = replicated
    settings = json.loads(sys.argv[1])
    create = settings["create"]
    env, wrap = SUITES[settings["suite"]](settings["name"])
    num_minibatches = settings["train"]["num_minibatches"]
    batch_size = max(1, create["num_envs"] * settings["rollouts"] // num_minibatches)
    per_update = batch_size * num_minibatches * settings["train"]["unroll_length"]
    per_epoch = max(1, create["total_timesteps"] // per_update) * per_update
    requests: Queue[None] = Queue()
    results: Queue[dict[str, Any]] = Queue()
    clock, started = Clock(), [(0.0, 0.0)]

    def finish(*_: Any) -> None:
        clock.stop(started[0])

    def progress(steps: int, metrics: dict[str, Any]) -> None:
        results.put({"steps": per_epoch, "return": float(metrics["eval/episode_reward"])} if steps else {})
        requests.get()
        started[0] = time.perf_counter(), time.process_time()

    def run() -> dict[str, Any]:
        requests.put(None)
        result = results.get()
        return {"wall": clock.wall, "cpu": clock.cpu, **result}

    def training(**kwargs: Any) -> None:
        try:
            train.train(env, **kwargs)
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    kwargs = dict(
        num_timesteps=EPOCHS * per_epoch,
        num_evals=EPOCHS + 1,
        num_eval_envs=settings["num_eval_envs"],
        num_envs=create["num_envs"],
        batch_size=batch_size,
        episode_length=1000,
        wrap_env_fn=wrap,
        network_factory=partial(networks.make_ppo_networks, **settings["network"]),
        policy_params_fn=finish,
        progress_fn=progress,
        max_devices_per_host=1,
        **settings["train"],
    )
    threading.Thread(target=training, kwargs=kwargs, daemon=True).start()
    results.get()
    serve(run, jax=jax.__version__, device=jax.devices()[0].device_kind)


def brax(name: str) -> tuple[Any, Any]:
    """Return a task of brax, and what wraps it for training: None for brax's own."""
    from brax import envs

    return envs.get_environment(name), None


def playground(name: str) -> tuple[Any, Any]:
    """Return a task of MuJoCo Playground, and what wraps it for training."""
    from mujoco_playground import dm_control_suite, wrapper

    return dm_control_suite.load(name, config_overrides={"impl": "jax"}), wrapper.wrap_for_brax_training


SUITES = {"brax": brax, "playground": playground}

if __name__ == "__main__":
    main()
