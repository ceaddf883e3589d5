import json
import shutil
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf
from PIL import Image

from stoix_like import cli
from stoix_like.architectures.evaluator import Episodes
from stoix_like.base_types import RolloutState, System
from stoix_like.envs import factory
from stoix_like.envs.factory import EnvConfig
from stoix_like.envs.spaces import Discrete
from stoix_like.envs.suites.probes import OneStepProbe
from stoix_like.errors import ConfigError
from stoix_like.inference import evaluation
from stoix_like.inference.baseline import with_policy
from stoix_like.inference.evaluation import describe, evaluate
from stoix_like.policies import load
from stoix_like.rendering import animation
from stoix_like.run.programs.functions import make_keys
from support.recorded import write_config
from support.set_ups import config_of, setup_of
from support.trained_runs import SMALL


@pytest.fixture(scope="module")
def played(pendulum):
    return evaluate(pendulum, episodes=10, which="last", seed=3)


def without_path(record):
    return {name: value for name, value in record.items() if name != "path"}


def test_statistics_are_those_of_the_episodes(played):
    record = played
    returns = np.array(record["episode_returns"])
    assert len(np.unique(returns)) == 10
    assert record["episode_lengths"] == [20] * 10
    assert record["episode_return_mean"] == pytest.approx(returns.mean())
    assert record["episode_return_std"] == pytest.approx(returns.std())
    assert (record["episode_return_min"], record["episode_return_max"]) == (returns.min(), returns.max())
    # The standard error of the mean of 10 is std / sqrt(10); a 95 % interval is about 1.96 of it on either side.
    half = 1.96 * returns.std() / np.sqrt(10)
    assert record["episode_return_ci_low"] == pytest.approx(returns.mean() - half, abs=0.3 * half)
    assert record["episode_return_ci_high"] == pytest.approx(returns.mean() + half, abs=0.3 * half)
    assert record["env_steps"] == 128
    assert (record["system"], record["environment"]) == ("ppo/ff_ppo", "gymnax/Pendulum-v1")
    # They end exactly at arch.max_eval_steps.
    assert record["episodes_cut"] == 0
    assert json.loads(record["path"].read_text()) == without_path(record)
    assert "\n    env steps 128 (" in describe(record)
    assert "\n    gradient steps 128 (" in describe({**record, "step_unit": "gradient steps"})


def still(observation, key):
    """The task's own units, torques in [-2, 2]: none at all."""
    return 0.0 * observation.agent_view[:1]


def test_another_policy_plays_the_same_episodes(pendulum, played):
    record = evaluate(pendulum, episodes=10, which="last", seed=3, policy=still)
    baseline = record["baseline"]
    assert record["episode_returns"] == played["episode_returns"]
    paired = np.subtract(record["episode_returns"], baseline["episode_returns"])
    assert baseline["difference"] == pytest.approx(paired.mean())
    assert "still: return " in describe(record)
    # Whoever acts, an episode that starts upright costs less than one that starts below.
    random = evaluate(pendulum, episodes=10, which="last", seed=3, policy="random")["baseline"]
    assert np.corrcoef(random["episode_returns"], baseline["episode_returns"])[0, 1] > 0.5
    with pytest.raises(ConfigError, match=r"^policy=.*<lambda>.* returns an array of shape \[2\], not \[1\]"):
        evaluate(pendulum, episodes=1, policy=lambda observation, key: observation.agent_view[:2])


class Steps(OneStepProbe):
    action_space = Discrete(3, start=-1)

    def reward(self, view, action):
        return action


@pytest.mark.parametrize("action", [-1, 1])
def test_a_policy_acts_in_the_units_of_the_environment(action):
    env, keys = factory.make_eval(EnvConfig(env_name="own"), Steps()), jax.random.split(jax.random.key(0), 2)
    env_state, timestep = env.reset(keys)
    system = with_policy(System(*[None] * 6), lambda observation, key: jnp.asarray(action), env)
    _, actions, _ = system.eval_act((), RolloutState(env_state, timestep, ()), keys[0])
    np.testing.assert_array_equal(env.step(keys, env_state, actions)[1].reward, [action, action])


@pytest.mark.parametrize(
    ("words", "environment", "steps"),
    [
        (["env=gymnasium/pendulum", "env.time_limit=15"], "gymnasium/Pendulum-v1", 15),
        (["env.time_limit=10"], "gymnax/Pendulum-v1", 10),
    ],
)
def test_a_policy_plays_elsewhere(pendulum, played, words, environment, steps, monkeypatch):
    built, make = [], factory.make_eval
    monkeypatch.setattr(factory, "make_eval", lambda *args: built.append(make(*args)) or built[-1])
    record = evaluate(pendulum, episodes=10, which="last", seed=3, overrides=words, policy="random")
    assert not any(env.on_host and env.unwrapped._batches._threads for env in built)
    assert (record["environment"], record["trained_on"]) == (environment, "gymnax/Pendulum-v1")
    assert record["episode_lengths"] == [steps] * 10
    assert f"{environment}, trained on gymnax/Pendulum-v1: last" in describe(record)


def test_the_same_environment_by_name_gives_the_same_episodes(pendulum, played):
    record = evaluate(pendulum, episodes=10, which="last", seed=3, overrides=["env=gymnax/pendulum"])
    assert record["episode_returns"] == played["episode_returns"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["env=gymnax/cartpole"],
            r"cartpole: the policy observes .*\(3,\).* but gymnax/CartPole-v1 has .*Discrete\(2\)",
        ),
        (["env=gymnax/pendulum", "env.rescale_actions=false"], r"acts in Box\(-1, 1, .*Box\(-2, 2, .*equal shapes"),
        (["system.gamma=0.9"], "^system.gamma=0.9: only the environment can differ"),
    ],
)
def test_other_spaces_and_keys_of_training_are_refused(pendulum, words, message):
    with pytest.raises(ConfigError, match=message):
        evaluate(pendulum, episodes=1, overrides=words)


@pytest.mark.parametrize("seed", [0, 42])
def test_evaluation_shares_no_key_with_training_of_the_same_seed(seed):
    setup = setup_of(*SMALL, f"arch.seed={seed}")
    root = jax.random.key(seed)
    of_training = [jax.random.key_data(key) for key in (root, *jax.random.split(root), *make_keys(setup))]
    of_training = np.concatenate([np.reshape(data, (-1, 2)) for data in of_training])
    of_evaluation = np.asarray(jax.random.key_data(evaluation._keys(seed)))
    assert not (of_training[:, None] == of_evaluation).all(-1).any()


def test_episodes_beyond_the_batch_size_are_played_in_batches(pendulum, played, monkeypatch):
    monkeypatch.setattr(evaluation, "_BATCH_SIZE", 4)
    record = evaluate(pendulum, episodes=10, which="last", seed=4)
    returns = np.array(record["episode_returns"])
    assert len(set(returns)) == 10
    assert record["episode_lengths"] == [20] * 10
    # Another seed gives other start states.
    assert not np.isclose(returns[:, None], played["episode_returns"]).any()


@pytest.mark.slow
def test_members_share_start_states_and_best_selects_one(members, monkeypatch):
    together = evaluate(members, episodes=6, member="all", which="last")
    assert [record["member"] for record in together["members"]] == [0, 1, 2]
    rates = [record["hyperparams"]["actor_lr"] for record in together["members"]]
    np.testing.assert_allclose(rates, [1e-4, 1e-1, 1e-2])
    means = [record["episode_return_mean"] for record in together["members"]]
    # The interquartile mean of three values is their mean: a quarter of three on either side is less than one.
    assert together["episode_return_iqm"] == pytest.approx(np.mean(means))
    assert together["path"].name == "last-all-seed0-6episodes.json"
    assert json.loads(together["path"].read_text()) == without_path(together)
    _, *lines, mean, _ = describe(together).splitlines()
    # Two lines for each member: its returns, and which of its parameters were evaluated.
    assert [line.split(" (")[0].strip() for line in lines[1::2]] == ["env steps 128"] * 3
    assert [line.split("   ")[0].strip() for line in lines[::2]] == [
        "member 0 actor_lr=0.0001",
        "member 1 actor_lr=0.1",
        "member 2 actor_lr=0.01",
    ]
    assert mean.startswith("  mean over members ")

    load_shared, scores = load.load_shared, np.array([5.0, np.nan, 7.0])
    monkeypatch.setattr(
        load, "load_shared", lambda *args: load_shared(*args)._replace(episode_return=scores, ranks=None)
    )
    best = evaluate(members, episodes=6, which="last")
    assert (best["member"], best["trained_with_seed"], best["seed"]) == (2, 44, 0)
    assert best["episode_returns"] == together["members"][2]["episode_returns"]
    assert best["path"].name == "last-member2-seed0-6episodes.json"


@pytest.mark.slow
def test_members_that_diverged_count_as_the_lowest_of_the_others(members, tmp_path, monkeypatch):
    run_dir = shutil.copytree(members, tmp_path / "run")
    (path,) = run_dir.glob("checkpoints/128/host_state/metadata")
    stored = json.loads(json.loads(path.read_text())["text"])
    stored["host_state"]["progress"]["failures"] = {"1": "train/loss became non-finite in update 2"}
    text = json.dumps(stored)
    path.write_text(json.dumps({"text": text, "crc32": zlib.crc32(text.encode())}))
    returns = np.array([[4.0, 6.0], [90.0, 90.0], [1.0, 3.0]])
    played = Episodes(returns, np.ones((3, 2), int), np.ones((3, 2), bool))
    monkeypatch.setattr(evaluation, "_play", lambda *_: played)
    found = evaluate(run_dir, episodes=2, member="all", which="last")
    # The mean of 5, 2 and, for member 1, 2.
    assert (found["diverged"], found["episode_return_iqm"]) == ([1], 3.0)
    assert found["members"][1]["episode_return_mean"] == 90.0
    assert "  member(s) 1 diverged, and count as the lowest of the others" in describe(found).splitlines()
    trained = evaluation._load(load.open_run(run_dir), "last", "all")
    assert evaluation._best(trained, played) == 0
    assert evaluate(run_dir, episodes=2, member="all", which="128")["diverged"] == [1]


@pytest.mark.slow
def test_evaluate_command_with_rendering(pendulum, played, tmp_path, capsys, monkeypatch):
    """The same evaluation with rendering writes the same results to another file."""
    gif, before = tmp_path / "episode.gif", []
    # Another test may have evaluated the run in the same way.
    number = 1 + sum(1 for _ in pendulum.glob("evaluations/last-seed3-10episodes*.json"))
    path = pendulum / f"evaluations/last-seed3-10episodes-{number}.json"

    def write_animation(*args):
        before.append(json.loads(path.read_text()))
        return animation.write_animation(*args)

    monkeypatch.setattr(evaluation, "write_animation", write_animation)
    cli.main(f"evaluate {pendulum} --episodes 10 --which last --seed 3 --render {gif}".split())
    lines = capsys.readouterr().out.splitlines()
    written = json.loads(path.read_text())
    assert lines[0] == "ppo/ff_ppo on gymnax/Pendulum-v1: last parameters, 10 episodes (greedy), seed 3"
    assert f"return {written['episode_return_mean']:.2f}   std " in lines[1]
    assert f"95 % of the mean {written['episode_return_ci_low']:.2f} to " in lines[1]
    assert lines[2].startswith("    env steps 128 (")
    assert max(map(len, lines[:3])) <= 120
    assert lines[3:] == [f"  21 frames of 20 steps in {gif}", f"  written to {path}"]
    assert written.pop("render")["steps"] == 20
    # The results are written before rendering starts.
    assert before == [written] == [without_path(played)]
    assert played["path"].name == "last-seed3-10episodes.json"
    assert not list(path.parent.glob("*.tmp"))
    with Image.open(gif) as frames:
        assert frames.n_frames == 21


def test_results_that_cannot_be_written_are_printed(pendulum, tmp_path, capsys):
    shutil.copytree(pendulum / "checkpoints", tmp_path / "checkpoints")
    config = OmegaConf.load(pendulum / "config.yaml")
    config.arch.max_eval_steps = 12
    OmegaConf.save(config, tmp_path / "config.yaml")
    (tmp_path / "evaluations").write_text("a file instead of a directory")
    cli.main(f"evaluate {tmp_path} --episodes 3".split())
    printed = capsys.readouterr()
    _, results, _, unfinished = printed.out.splitlines()
    assert "return -" in results
    assert unfinished == "  3 episode(s) did not end within arch.max_eval_steps"
    assert "failed to write the results: " in printed.err
    assert str(tmp_path / "evaluations") in printed.err


def test_results_are_returned_where_a_drawing_raises(pendulum, played, tmp_path, capsys, monkeypatch):
    def draw(*_):
        raise KeyError("agent")

    monkeypatch.setattr(evaluation, "write_animation", draw)
    gif = tmp_path / "episode.gif"
    record = evaluate(pendulum, episodes=10, which="last", seed=3, render=gif)
    assert without_path(record) == without_path(played)
    place = f"{__file__}:{draw.__code__.co_firstlineno + 1}"
    expected = f"failed to render an episode: render={gif} cannot be written (KeyError: 'agent', {place}): correct"
    assert capsys.readouterr().err.startswith(expected)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"episodes": 0}, "episodes=0 must be an integer from 1 to 1,000,000"),
        ({"which": "7"}, "which=7 is unknown: use best, last, or one of"),
        ({"episodes": 333_334, "member": "all"}, "of each of 3 members are too many: use at most 333333"),
        ({"seed": -1}, "seed=-1 is out of range"),
        ({"seed": 2**32}, "seed=4294967296 is out of range"),
        ({"member": 3}, "member=3 does not exist: use best, or 0 to 2"),
        ({"render": "out.png"}, "render=out.png must be an animated gif or an mp4 file: use out.gif"),
    ],
)
def test_invalid_arguments_raise_before_compiling(members, given, message, monkeypatch):
    monkeypatch.setattr(evaluation, "make_evaluator", None)
    before = sorted((members / "evaluations").glob("*"))
    with pytest.raises(ConfigError, match=message):
        evaluate(members, **given)
    assert sorted((members / "evaluations").glob("*")) == before


def test_environment_without_rendering_raises_before_compiling(tmp_path, monkeypatch):
    write_config(tmp_path, config_of(*SMALL, "env=probe/value").resolved)
    monkeypatch.setattr(evaluation, "make_evaluator", None)
    with pytest.raises(ConfigError, match="env.scenario.name=value has no drawing: use one"):
        evaluate(tmp_path, render=tmp_path / "out.gif")
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]
