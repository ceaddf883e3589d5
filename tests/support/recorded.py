"""Run directories written by hand."""

import json

import numpy as np
from omegaconf import OmegaConf

from stoix_like.config import LAYOUT
from stoix_like.storage.run_files import LAYOUT_NUMBER


def write_config(directory, values):
    """Write a configuration that is not remembered as this user's own."""
    text = OmegaConf.to_yaml(OmegaConf.create({LAYOUT: LAYOUT_NUMBER, **values}))
    (directory / "config.yaml").write_text(text)


def set_key(directory, key, value):
    config = OmegaConf.load(directory / "config.yaml")
    OmegaConf.update(config, key, value)
    OmegaConf.save(config, directory / "config.yaml")


def change_records(run, change):
    """Update each record of a run with what a function of its number and of itself returns."""
    records = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    lines = [json.dumps({**record, **change(number, record)}) for number, record in enumerate(records)]
    (run / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines))


def write_run(
    directory,
    finals=(1.0,),
    *,
    seed=0,
    system="ppo/ff_ppo",
    env="CartPole-v1",
    curves=None,
    varied=None,
    finished=True,
    bests=None,
    env_kwargs=None,
    env_params=None,
    env_keys=None,
    cell=None,
    **system_keys,
):
    """Write a run: a single one, or a population if there are several returns.

    `curves` `[evaluation][member]` are the returns of all evaluations; by default each run has one before training, 0,
    and one after.
    """
    curves = curves or [[0.0] * len(finals), list(finals)]
    alone, varied, bests = len(curves[-1]) == 1, varied or {}, bests or curves[-1]
    config = {
        "arch": {"seed": seed, "total_timesteps": 100 * (len(curves) - 1), "population": {"hyperparams": None}},
        "system": {"name": system, "module": "stoix_like.x", "actor_lr": 0.001, **system_keys},
        "env": {
            "env_name": "gymnax",
            "scenario": {"name": env},
            "kwargs": env_kwargs or {},
            "params": env_params or {},
            **(env_keys or {}),
        },
        "network": {} if cell is None else {"actor_network": {"rnn_layer": {"cell_type": cell}}},
        "checkpoint": {"keep": 1},
        "logger": {"console": {"enabled": True}},
    }
    records = [
        {
            "env_steps": 100 * step,
            "wall_seconds": 2.0 * step,
            "eval/episode_return_mean": values[0] if alone else list(values),
            "eval/episode_return_iqm": 0.0,
            "train/entropy": None if step == 0 else (0.5 if alone else [0.5] * len(values)),
        }
        for step, values in enumerate(curves)
    ]
    members = [
        {
            "seed": seed + index,
            **{name: values[index] for name, values in varied.items()},
            "eval/episode_return_mean": final,
            "absolute/episode_return_mean": best,
            "failure": None if final is not None else "train/loss became non-finite",
        }
        for index, (final, best) in enumerate(zip(curves[-1], bests, strict=True))
    ]
    summary = {
        "system": system,
        "environment": f"gymnax/{env}",
        "seed": seed,
        "wall_seconds": 3.5,
        "compile_seconds": 1.0,
        "steps_per_second": 1e5,
        "versions": {"python": "3.12.1", "jax": "0.11.2"},
        "devices": ["cpu:cpu"],
        "absolute/episode_return_mean": bests[0] if alone else list(bests),
    }
    if not alone:
        summary |= {"population/members": members, "population/varied": list(varied)}
    directory.mkdir(parents=True)
    write_config(directory, config)
    (directory / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    if finished:
        (directory / "summary.json").write_text(json.dumps(summary))
    return directory


def write_grid(directory, offsets, seeds=5):
    """Write a population of one value per offset, all with the same seeds."""
    effects = np.random.default_rng(0).normal(size=seeds) * 50.0
    noise = np.random.default_rng(1).normal(size=(len(offsets), seeds))
    finals = (np.asarray(offsets)[:, None] + effects + noise).ravel()
    write_run(directory, finals.tolist(), varied={"actor_lr": [float(offset) for offset in offsets for _ in effects]})
    summary = json.loads((directory / "summary.json").read_text())
    for place, member in enumerate(summary["population/members"]):
        member["seed"] = place % seeds
    (directory / "summary.json").write_text(json.dumps(summary))
