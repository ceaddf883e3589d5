"""Small trained runs shared by several test modules; each is trained once, by one of the test processes."""

import json
import os
import shutil
import zlib

from filelock import FileLock

import stoix_like

LAYERS = [f"network.{name}_network.pre_torso.layer_sizes=[8]" for name in ("actor", "critic")]
SMALL = [
    *LAYERS,
    *("system.rollout_length=16", "system.num_minibatches=2", "arch.total_num_envs=4", "arch.num_eval_episodes=2"),
    *("arch.absolute_metric=false", "arch.compile_cache=false", "logger=silent"),
]
# A run of a single agent, whose episodes end exactly at `arch.max_eval_steps`.
PENDULUM = [
    *(*SMALL, "env=gymnax/pendulum", "env.time_limit=20", "arch.max_eval_steps=20"),
    # A large learning rate, so that few updates suffice for actions away from zero.
    *("system.normalize_observations=true", "system.actor_lr=0.1"),
]
BUDGET = ["arch.total_timesteps=128", "arch.num_evaluation=2"]
TINY = [
    *LAYERS,
    *("arch.total_num_envs=4", "arch.total_timesteps=5000", "arch.num_evaluation=3", "arch.num_eval_episodes=3"),
    "system.rollout_length=32",
]
_run_dirs = {}


def _train(tmp_path_factory, name, *overrides):
    if name not in _run_dirs:
        own = tmp_path_factory.getbasetemp()
        trained = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "trained" / name
        trained.parent.mkdir(exist_ok=True)
        with FileLock(f"{trained}.lock"):
            if not trained.exists():
                stoix_like.train("ppo/ff_ppo", [*overrides, *BUDGET], run_dir=trained)
        _run_dirs[name] = shutil.copytree(trained, tmp_path_factory.mktemp("runs") / name)
    return _run_dirs[name]


def train_pendulum(tmp_path_factory):
    return _train(tmp_path_factory, "pendulum", *PENDULUM)


def train_members(tmp_path_factory):
    varied = "arch.population.hyperparams={actor_lr: [1e-4, 1e-1, 1e-2]}"
    return _train(tmp_path_factory, "members", *SMALL, varied, "env.time_limit=30")


def select_untrained(run_dir, target, members):
    """Copy a run of a population whose first evaluation was recorded as the best one of some members."""
    (path,) = shutil.copytree(run_dir, target).glob("checkpoints/128/host_state/metadata")
    stored = json.loads(json.loads(path.read_text())["text"])
    best, history = stored["host_state"]["best"], stored["host_state"]["progress"]["history"]
    for member in members:
        best["env_steps"][member], best["episode_return"][member] = history[0]["env_steps"], 1e6
    text = json.dumps(stored)
    path.write_text(json.dumps({"text": text, "crc32": zlib.crc32(text.encode())}))
    return target
