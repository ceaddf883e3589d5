import json

import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image
from quick_compilation import quick_compilation  # noqa: F401

import stoix_like
from stoix_like import cli
from stoix_like.config import compose_config, typed
from stoix_like.errors import ConfigError
from stoix_like.policy import load_policy
from stoix_like.runner import evaluation
from stoix_like.runner.evaluation import evaluate_run

SMALL = [
    "network.actor_network.pre_torso.layer_sizes=[8]",
    "network.critic_network.pre_torso.layer_sizes=[8]",
    "system.rollout_length=16",
    "arch.total_num_envs=4",
    "arch.num_eval_episodes=2",
    "arch.num_evaluation=2",
    "arch.total_timesteps=128",
    "arch.absolute_metric=false",
    "arch.compile_cache=false",
    "logger=silent",
]


def train(directory, *overrides):
    return stoix_like.train("ppo/ff_ppo", [*SMALL, *overrides], run_dir=directory).run_dir


@pytest.fixture(scope="module")
def pendulum(tmp_path_factory):
    limit = ["env.time_limit=20"]
    return train(tmp_path_factory.mktemp("runs") / "pendulum", "env=gymnax/pendulum", *limit)


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    varied = "arch.population.hyperparams={actor_lr: [1e-4, 1e-1, 1e-2]}"
    return train(tmp_path_factory.mktemp("runs") / "members", varied, "env.time_limit=30")


def without_path(record):
    return {name: value for name, value in record.items() if name != "path"}


def test_numbers_are_those_of_the_episodes(pendulum):
    record = evaluate_run(pendulum, episodes=10, which="last", seed=3)
    returns = np.array(record["episode_returns"])
    assert len(np.unique(returns)) == 10
    assert record["episode_lengths"] == [20] * 10
    assert record["episode_return_mean"] == pytest.approx(returns.mean())
    assert record["episode_return_std"] == pytest.approx(returns.std())
    assert (record["episode_return_min"], record["episode_return_max"]) == (returns.min(), returns.max())
    # The mean of 10 is off by std / sqrt(10), of which an interval of 95 % takes about 1.96 on either side.
    half = 1.96 * returns.std() / np.sqrt(10)
    assert record["episode_return_ci_low"] == pytest.approx(returns.mean() - half, abs=0.3 * half)
    assert record["episode_return_ci_high"] == pytest.approx(returns.mean() + half, abs=0.3 * half)
    assert record["env_steps"] == 128
    assert (record["system"], record["environment"]) == ("ppo/ff_ppo", "gymnax/Pendulum-v1")
    assert record["episodes_cut"] == 0
    assert json.loads(record["path"].read_text()) == without_path(record)


def test_the_seed_decides_and_no_result_is_replaced(pendulum):
    first, again, other = (evaluate_run(pendulum, episodes=5, seed=seed) for seed in (7, 7, 8))
    assert first["episode_returns"] == again["episode_returns"]
    assert not set(first["episode_returns"]) & set(other["episode_returns"])
    directory = pendulum / "evaluations"
    assert [record["path"] for record in (first, again, other)] == [
        directory / "best-seed7-5episodes.json",
        directory / "best-seed7-5episodes-2.json",
        directory / "best-seed8-5episodes.json",
    ]
    assert not list(directory.glob("*.tmp"))


def test_many_episodes_are_played_in_batches(pendulum, monkeypatch):
    monkeypatch.setattr(evaluation, "_MOST_AT_ONCE", 4)
    record = evaluate_run(pendulum, episodes=10)
    assert len(set(record["episode_returns"])) == 10
    assert record["episode_lengths"] == [20] * 10


@pytest.mark.parametrize(
    ("values", "low", "high"),
    [
        # The mean of two draws from {0, 1} is 0 and 1 with probability 1/4 each: the tails of 2.5 % lie inside.
        ([0.0, 1.0], 0.0, 1.0),
        ([500.0] * 20, 500.0, 500.0),
        ([3.0], None, None),
    ],
)
def test_intervals(values, low, high):
    assert evaluation._interval(np.array(values)) == (low, high)


def test_members_meet_the_same_start_states(members):
    together = evaluate_run(members, episodes=6, member="all", which="last")
    assert [record["member"] for record in together["members"]] == [0, 1, 2]
    rates = [record["hyperparams"]["actor_lr"] for record in together["members"]]
    np.testing.assert_allclose(rates, [1e-4, 1e-1, 1e-2])
    alone = evaluate_run(members, episodes=6, member=2, which="last")
    assert (alone["member"], alone["trained_with_seed"], alone["seed"]) == (2, 44, 0)
    assert alone["episode_returns"] == together["members"][2]["episode_returns"]
    means = [record["episode_return_mean"] for record in together["members"]]
    # Of three, a quarter cut off on either side is none.
    assert together["episode_return_iqm"] == pytest.approx(np.mean(means))
    assert together["path"].name == "last-all-seed0-6episodes.json"
    assert alone["path"].name == "last-member2-seed0-6episodes.json"
    assert json.loads(together["path"].read_text()) == without_path(together)


def test_the_best_member_is_taken(members):
    record = evaluate_run(members, episodes=2)
    assert (
        record["env_steps"] == load_policy(members).env_steps == load_policy(members, member=record["member"]).env_steps
    )


def evaluate(*given):
    cli.main(["evaluate", *map(str, given)])


def test_from_the_shell(pendulum, tmp_path, capsys):
    picture = tmp_path / "episode.gif"
    evaluate(pendulum, "--episodes", 3, "--which", "last", "--seed", 11, "--render", picture)
    lines = capsys.readouterr().out.splitlines()
    written = json.loads((pendulum / "evaluations/last-seed11-3episodes.json").read_text())
    assert lines[0] == "ppo/ff_ppo on gymnax/Pendulum-v1: last parameters, 3 episodes (greedy), seed 11"
    assert f"return {written['episode_return_mean']:.2f}   std " in lines[1]
    assert f"95 % of the mean {written['episode_return_ci_low']:.2f} to " in lines[1]
    assert "env steps 128" in lines[1]
    assert lines[2] == f"  21 frames of 20 steps in {picture}"
    assert lines[3].endswith("evaluations/last-seed11-3episodes.json")
    assert written["render"]["steps"] == 20
    with Image.open(picture) as frames:
        assert frames.n_frames == 21


def test_a_line_for_each_member(members, capsys):
    evaluate(members, "--episodes", 2, "--member", "all", "--seed", 12)
    _, *lines, mean, _ = capsys.readouterr().out.splitlines()
    assert [line.split("   ")[0].strip() for line in lines] == [
        "member 0 actor_lr=0.0001",
        "member 1 actor_lr=0.1",
        "member 2 actor_lr=0.01",
    ]
    assert mean.startswith("  interquartile mean over members ")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"episodes": 0}, "--episodes 0 must be at least 1"),
        ({"which": "first"}, "--which first is not known: use best, last, or a number"),
        ({"which": "7"}, "which=7 is not known: use best, last, or one of"),
        ({"seed": -1}, "--seed -1 is out of range"),
        ({"seed": 2**32}, "--seed 4294967296 is out of range"),
        ({"member": 3}, "member=3 is not there: use best, or 0 to 2"),
        ({"member": "worst"}, "member=worst is not there"),
        ({"render": "out.mp4"}, "use out.gif"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_compiling(members, given, message, monkeypatch):
    monkeypatch.setattr(evaluation, "make_evaluator", None)
    before = sorted((members / "evaluations").glob("*")) if (members / "evaluations").exists() else []
    with pytest.raises(ConfigError, match=message):
        evaluate_run(members, **given)
    assert (sorted((members / "evaluations").glob("*")) if before else []) == before


def test_an_environment_that_cannot_be_drawn_is_refused_before_compiling(tmp_path, monkeypatch):
    config = compose_config([*SMALL, "env=probe/value"])
    OmegaConf.save(OmegaConf.create(typed(config).resolved), tmp_path / "config.yaml")
    monkeypatch.setattr(evaluation, "make_evaluator", None)
    with pytest.raises(ConfigError, match="env.scenario.name=value cannot be drawn: there is CartPole-v1"):
        evaluate_run(tmp_path, render=tmp_path / "out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]


def test_a_directory_without_a_run(tmp_path):
    with pytest.raises(ConfigError, match="holds no run"):
        evaluate_run(tmp_path)
