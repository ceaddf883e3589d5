"""Runs as the console is told of them."""

import time

from stoix_like.loggers import RunInfo

SUMMARY = {
    "env_steps": 1280,
    "eval/episode_return_mean": 475.3,
    "absolute/episode_return_mean": 480.0,
    "timing": {"startup": 7.0, "compilation": 3.21, "training": 56.79, "total": 67.0},
    "steps_per_second": 312_345.0,
    "wall_seconds": 67.0,
}


def run_info(run_dir):
    notes = ("arch.total_timesteps [1300] is rounded down to 1,280",)
    names = {"system": "ppo/ff_ppo", "environment": "gymnax/CartPole-v1", "devices": "1 × cpu", "config": {}}
    counts = {"num_updates": 10, "total_timesteps": 1280, "num_evaluations": 2, "absolute_episodes": 320}
    return RunInfo(run_dir, seed=3, notes=notes, **names, **counts)


def record(steps, mean, wall):
    return {
        "env_steps": steps,
        "wall_seconds": wall,
        "steps_per_second": 1000.0 if steps else None,
        "eval/episode_return_mean": mean,
        "eval/episode_return_std": None if mean is None else 12.1,
        "eval/episode_length_mean": mean,
    }


def log_run(logger, run_dir, pause=0.0):
    logger.start(run_info(run_dir))
    for steps, mean, wall in ((0, 9.25, 1.0), (640, None, 3.0), (1280, 475.3, 4.0)):
        time.sleep(pause)
        logger.log(record(steps, mean, wall))
    logger.finish(SUMMARY)
    logger.close()
