"""Packed runs: they evaluate and load as the runs themselves, are small, and hold no path of the machine."""

import importlib
import json
import shutil
from pathlib import Path

import jax
import numpy as np
import pytest
import yaml
from omegaconf import OmegaConf

import stoix_like
from stoix_like.errors import ConfigError
from support.off_policy_runs import SMALL

pytestmark = pytest.mark.slow
MORE = ["env.time_limit=20", "arch.total_timesteps=256", "arch.num_eval_episodes=2", "logger=silent"]
DQN = [*(word for word in SMALL if "q_network" not in word), *MORE, "env=gymnax/cartpole"]
SAC = [*SMALL, *MORE, "env=gymnax/pendulum", "arch.population.size=2"]


def test_packed_runs_evaluate_as_the_originals(pendulum, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parent.parent / "scripts")
    pack_runs = importlib.import_module("pack_runs")
    made = {"ppo/ff_ppo": ["env=gymnax/pendulum"], "q_learning/ff_dqn": DQN, "sac/ff_sac": SAC}
    for system, words in made.items():
        run = tmp_path / system
        if system == "ppo/ff_ppo":
            shutil.copytree(pendulum, run)
        else:
            stoix_like.train(system, [*words, f"arch.resume_from={run}"], run_dir=run)
        (run / ".hydra").mkdir()  # as the command line writes it
        OmegaConf.save([f"system={system}", *words], run / ".hydra/overrides.yaml")
        (run / ".hydra/config.yaml").write_text((run / "config.yaml").read_text())
    runs, data, unfinished = [tmp_path / system for system in made], tmp_path / "data", tmp_path / "unfinished"
    shutil.copytree(runs[0], unfinished, ignore=shutil.ignore_patterns("summary.json"))

    (refusal,) = pack_runs.pack(data, [*runs, unfinished])
    assert refusal.startswith(f"{unfinished}: ")
    rows = [json.loads(line) for line in (data / "runs.jsonl").read_text().splitlines()]
    assert [(row["system"], row["policy"], len(row["seeds"])) for row in rows] == [
        (system, "every seed", number) for system, number in zip(made, (1, 1, 2), strict=True)
    ]
    assert yaml.safe_load((data / "README.md").read_text().split("---\n")[1])["license"] == "apache-2.0"
    assert not [path for path in data.rglob("*") if path.is_file() and str(tmp_path).encode() in path.read_bytes()]
    for row, run in zip(rows, runs, strict=True):
        place = data / row["directory"]
        assert sum(path.stat().st_size for path in place.rglob("*") if path.is_file()) <= 300_000
        one, other = (stoix_like.evaluate(directory, 4, member="all") for directory in (run, place))
        assert {**one, "path": None} == {**other, "path": None}
        policies = [stoix_like.load_policy(directory, greedy=False) for directory in (run, place)]
        view, key = policies[0].random_observations(jax.random.key(0), 5), jax.random.key(1)
        np.testing.assert_array_equal(*(policy(view, key) for policy in policies))

    with pytest.raises(ConfigError, match="can be evaluated, but not resumed"):
        stoix_like.resume(data / rows[0]["directory"], ["arch.total_timesteps=256"])
    # A packed run can be packed again; without enough room, it keeps its results.
    assert pack_runs.pack(tmp_path / "again", [data / row["directory"] for row in rows], 20) == []
    again = [json.loads(line) for line in (tmp_path / "again/runs.jsonl").read_text().splitlines()]
    assert again == [{**row, "policy": None} for row in rows]
    (refusal,) = pack_runs.pack(tmp_path / "none", [runs[0]], 1)
    assert refusal == f"{runs[0]}: it has more than 1 kB without a policy"
    with pytest.raises(ConfigError, match="holds files: choose a new directory"):
        pack_runs.pack(data, runs)
