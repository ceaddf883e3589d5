import json
import shutil

import jax
import numpy as np
import pytest
from omegaconf import OmegaConf

from stoix_like.errors import ConfigError
from stoix_like.policies.load import TrainedState, choose_member, load_member, load_policy, load_shared, open_run
from support.toy_runs import train_toy
from support.trained_runs import select_untrained


def read_scores(run_dir):
    """Return the environment steps `[N]` and returns `[N]` or `[N, P]` of N evaluations after an update."""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()[1:]]
    return [record["env_steps"] for record in records], np.array(
        [record["eval/episode_return_mean"] for record in records]
    )


def assert_member(found, shared, member):
    jax.tree.map(lambda leaf, leaves: np.testing.assert_array_equal(leaf, np.asarray(leaves)[member]), found, shared)


def test_which_selects_the_parameters(pendulum):
    assert load_policy(pendulum, "last").env_steps == 128
    steps, scores = read_scores(pendulum)
    assert load_policy(pendulum).env_steps == steps[scores.argmax()]
    with pytest.raises(ConfigError, match="which=7 is unknown"):
        load_policy(pendulum, "7")
    with pytest.raises(ConfigError, match="holds no run"):
        load_policy(pendulum.parent)


def test_a_run_with_a_search_of_an_earlier_version_is_refused_and_without_one_read(members, tmp_path):
    edited = shutil.copytree(members, tmp_path / "edited")
    config = OmegaConf.load(edited / "config.yaml")
    config.arch.population.halving, config.system.calibrated = {"rounds": None, "eta": 3}, False
    OmegaConf.save(config, edited / "config.yaml")
    load_policy(edited)
    config.arch.population.halving.rounds = 2
    OmegaConf.save(config, edited / "config.yaml")
    with pytest.raises(ConfigError, match="this version has neither arch.population.halving nor"):
        load_policy(edited)


@pytest.mark.slow
def test_a_policy_needs_no_environment_until_it_plays(pendulum, tmp_path):
    """The scenario of the copy exists nowhere."""
    alone = shutil.copytree(pendulum, tmp_path / "alone")
    config = OmegaConf.load(alone / "config.yaml")
    config.env.scenario.name = "Absent-v0"
    OmegaConf.save(config, alone / "config.yaml")
    policy, original = load_policy(alone), load_policy(pendulum)
    observations = original.random_observations(jax.random.key(0), 4)
    np.testing.assert_array_equal(policy(observations), original(observations))
    view = np.asarray(observations.agent_view, np.float64)
    np.testing.assert_array_equal(policy.predict(view)[0], original.predict(view)[0])
    assert (policy.action_space.high, policy.legend) == (2.0, original.legend)
    assert policy.export(tmp_path / "policy.npz").read_bytes() == original.export(tmp_path / "own.npz").read_bytes()
    with pytest.raises(ConfigError, match="Absent-v0"):
        policy.play(1)

    path = alone / "environment.json"
    path.write_text(path.read_text().replace('"Box"', '"Ball"'))
    with pytest.raises(ConfigError, match=r"environment.json .*kind='Ball'.*: delete it, and the environment is built"):
        load_policy(alone)
    path.write_text("{")
    with pytest.raises(ConfigError, match=r"environment.json cannot be read .*: delete it"):
        load_policy(alone)
    path.unlink()
    with pytest.raises(ConfigError, match="Absent-v0"):
        load_policy(alone)


@pytest.mark.parametrize("which", ["best", "last"])
def test_default_member_is_the_best(members, which):
    steps, scores = read_scores(members)
    # Of equal returns, the latest.
    latest_best = len(steps) - 1 - scores[::-1].argmax(0)
    selected = latest_best if which == "best" else np.full(3, len(steps) - 1)
    returns = np.take_along_axis(scores, selected[None], 0)[0]
    loaded = load_shared(open_run(members), which)
    np.testing.assert_allclose(loaded.episode_return, returns)
    policy, member = load_policy(members, which), int(returns.argmax())
    assert policy.env_steps == steps[selected[member]]
    assert_member(policy.shared, loaded.shared, member)


def test_the_member_that_the_summary_names_is_the_best_everywhere(members, tmp_path):
    """Of the run, and not of the evaluation that happened to be the highest."""
    named = shutil.copytree(members, tmp_path / "named")
    summary = json.loads((named / "summary.json").read_text())
    for member in range(3):
        (named / "summary.json").write_text(json.dumps(summary | {"population/best": {"member": member}}))
        assert load_member(open_run(named), "best", "best").member == member
        assert load_member(open_run(named), "last", None).member == member
    # It says nothing about parameters of another step.
    (named / "summary.json").write_text(json.dumps(summary | {"population/best": {"member": 0}, "env_steps": 64}))
    assert load_member(open_run(named), "best", "best").member == load_shared(open_run(named)).episode_return.argmax()


def test_parameters_before_the_first_update_are_never_the_best(members, tmp_path):
    """Earlier versions recorded them as such: the last ones take their place."""
    recorded = select_untrained(members, tmp_path / "recorded", [1])
    run = open_run(recorded)
    best, last = load_shared(run), load_shared(run, "last")
    assert best.env_steps[1] == 128
    assert best.selected[1].startswith("last, as none was evaluated after an update, return ")
    assert best.selected[0].startswith("best of 2 evaluations, return ")
    np.testing.assert_array_equal(best.episode_return[1], last.episode_return[1])
    assert_member(jax.tree.map(lambda leaf: np.asarray(leaf)[1], best.shared), last.shared, 1)
    policy = load_policy(recorded, member=1)
    assert "128 env steps (last, as none was evaluated after an update, return " in str(policy)


def test_member_selects_one_of_the_population(members):
    loaded = load_shared(open_run(members), "last")
    policy = load_policy(members, int(loaded.env_steps[0]), member=1)
    assert_member(policy.shared, loaded.shared, 1)


@pytest.mark.parametrize(
    ("returns", "member", "chosen"),
    [
        ([3.0, np.nan, 5.0, 4.0], "best", 2),
        ([-np.inf, -3.0, np.nan], None, 1),
        ([np.nan, np.nan], "best", 0),
        ([3.0, np.nan, 5.0], "1", 1),
        ([3.0, 5.0], np.int64(0), 0),
        (3.0, "best", 0),
        (np.nan, 0, 0),
    ],
)
def test_choose_member(returns, member, chosen):
    assert choose_member(TrainedState({}, np.zeros_like(returns), np.array(returns)), member) == chosen


@pytest.mark.parametrize("member", [3, -1, True, "all", "first"])
def test_choose_member_raises_for_unknown_members(member):
    with pytest.raises(ConfigError, match=f"member={member} does not exist: use best, or 0 to 2"):
        choose_member(TrainedState({}, np.zeros(3), np.zeros(3)), member)


@pytest.mark.optimized
@pytest.mark.parametrize(("which", "expected"), [("last", 320), ("best", None), ("240", 240)])
def test_the_best_the_last_and_kept_parameters_can_be_loaded(tmp_path_factory, which, expected):
    opened = open_run(train_toy(tmp_path_factory), trust=True)
    loaded = load_shared(opened, which)
    assert set(loaded.shared) == {"reward", "updates"}
    assert expected is None or loaded.env_steps == expected
    assert loaded.shared["updates"] == loaded.env_steps // 16
    with pytest.raises(ConfigError, match=r"which=17 is unknown: use best, last, or one of 240, 320"):
        load_shared(opened, "17")
