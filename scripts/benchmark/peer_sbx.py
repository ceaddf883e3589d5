"""Measure a training run of sbx, in sbx's own virtual environment. The settings are JSON, see `scenarios.py`.

sbx steps gymnasium's environments on the host. Every model compiles its own programs, before the time starts.
"""

import itertools
import json
import sys
from typing import Any

import jax
import sbx
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from worker import serve, timed


def main() -> None:
    """Train with another seed for every line of standard input."""
    settings = json.loads(sys.argv[1])
    seeds = itertools.count(1)

    def run() -> dict[str, Any]:
        env = make_vec_env(settings["env"], n_envs=settings["num_envs"])
        model = getattr(sbx, settings["algorithm"])("MlpPolicy", env, seed=next(seeds), **settings["model"])
        # Its first gradient steps.
        model.learn(getattr(model, "learning_starts", 0) + 2 * settings["num_envs"])
        with timed() as clock:
            model.learn(settings["steps"])
        mean, _ = evaluate_policy(model, env, n_eval_episodes=32)
        return {"wall": clock.wall, "cpu": clock.cpu, "steps": settings["steps"], "return": float(mean)}

    serve(run, compile=None, jax=jax.__version__, device=jax.devices()[0].device_kind)


if __name__ == "__main__":
    main()
