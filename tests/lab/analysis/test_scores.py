import json

import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage.recorded_runs import members, read_run
from support.lazily import Lazy
from support.recorded import set_key, store_episodes, write_run

scores = Lazy("stoix_like.lab.analysis.scores")


def returns_of(directory, kind="final"):
    return [scores.episode_returns(member, kind).tolist() for member in members(read_run(directory))]


def evaluate(directory, name, **record):
    (directory / "evaluations").mkdir(exist_ok=True)
    (directory / f"evaluations/{name}.json").write_text(json.dumps({"which": name.partition("-")[0], **record}))


def test_returns_of_the_best_parameters_and_of_offline_runs_are_those_of_the_absolute_metric(tmp_path):
    run = write_run(tmp_path / "one")
    store_episodes(run, [1.0, 2.0])
    store_episodes(write_run(tmp_path / "two", (1.0, 2.0)), [[1.0, 2.0], [3.0, None]])
    assert returns_of(run, "best") == [[1.0, 2.0]]
    first, second = returns_of(tmp_path / "two", "best")
    assert first == [1.0, 2.0]
    np.testing.assert_array_equal(second, [3.0, np.nan])
    with pytest.raises(ConfigError, match=r"of its last parameters: use .* --which last --member all, or --score best"):
        returns_of(run)
    # Those measure their last parameters.
    set_key(run, "arch.architecture_name", "offline")
    assert returns_of(run) == [[1.0, 2.0]]


def test_evaluations_of_the_present_parameters_count(tmp_path):
    run = write_run(tmp_path / "a run")
    with pytest.raises(ConfigError, match=r"use stoix-like evaluate '.*/a run' --which last --member all$"):
        returns_of(run)
    evaluate(run, "last-seed0-1episodes", env_steps=100, episode_returns=[1.0])
    evaluate(run, "last-seed0-2episodes", env_steps=100, episode_returns=[1.0, 2.0])
    # Of an earlier state of the run, with another search, against another opponent, of other parameters.
    evaluate(run, "last-seed0-3episodes", env_steps=50, episode_returns=[0.0] * 3)
    evaluate(run, "last-seed1-3episodes", env_steps=100, episode_returns=[0.0] * 3, simulations=4)
    evaluate(run, "last-seed2-3episodes", env_steps=100, episode_returns=[0.0] * 3, opponent="own.expert")
    evaluate(run, "best-seed0-4episodes", env_steps=100, episode_returns=[5.0] * 4)
    assert returns_of(run) == [[1.0, 2.0]]
    assert returns_of(run, "best") == [[5.0] * 4]


def test_evaluations_of_single_members_and_of_all_count(tmp_path):
    run = write_run(tmp_path / "run", (1.0, 2.0))
    evaluate(run, "last-member1-seed0-2episodes", env_steps=100, member=1, episode_returns=[3.0, 4.0])
    with pytest.raises(ConfigError, match="no episode returns of its last parameters"):
        returns_of(run)
    played = [{"member": member, "env_steps": 100, "episode_returns": [float(member)]} for member in range(2)]
    evaluate(run, "last-all-seed0-1episodes", members=played)
    assert returns_of(run) == [[0.0], [3.0, 4.0]]


def test_episodes_of_successive_halving_are_those_of_the_trials_in_the_results(tmp_path):
    """Its last parameters may be those of trials that were stopped early."""
    run = write_run(tmp_path / "run", (1.0, 2.0))
    set_key(run, "arch.population.halving", {"rounds": 2})
    for which, value in (("last", 0.0), ("best", 5.0)):
        played = [{"member": member, "env_steps": 100, "episode_returns": [value]} for member in range(2)]
        evaluate(run, f"{which}-all-seed0-1episodes", members=played)
    assert returns_of(run) == returns_of(run, "best") == [[5.0], [5.0]]
    store_episodes(run, [[1.0, 1.0], [2.0, 2.0]])
    assert returns_of(run) == [[1.0, 1.0], [2.0, 2.0]]


def test_damaged_evaluations_are_named(tmp_path):
    run = write_run(tmp_path / "run")
    evaluate(run, "last-seed0-1episodes", env_steps="100", episode_returns=[1.0])
    with pytest.raises(ConfigError, match=r"last-seed0-1episodes.json cannot be read .*: remove it"):
        returns_of(run)
