import math

import numpy as np
import pytest

import stoix_like
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.overrides import check_given_once, is_hydras, to_overrides
from support.composed import compose_config


def test_dictionary_composes_to_its_values():
    overrides = {
        "env": "gymnax/acrobot",
        "arch.seed": np.int64(7),
        "arch.total_timesteps": 1e6,
        "arch.absolute_metric": False,
        "arch.num_devices": None,
        "system.actor_lr": np.float64(1.5e-4),
        "logger.wandb.project": "it's {mine}, 100 %",
        "network.actor_network.pre_torso.layer_sizes": (16, 8),
        "arch.population.hyperparams": {"clip_eps": {"uniform": [0.1, 0.3]}, "gamma": [0.9, 0.99]},
        "+env.params.max_steps_in_episode": 50,
        "+env.kwargs": {"my-key": 1, "two words": {"a.b": np.float32(0.5)}},
    }
    composed = compose_config(to_overrides(overrides))
    run = parse_config(composed)
    assert run.env.scenario.name == "Acrobot-v1"
    assert (run.arch.seed, run.arch.total_timesteps, run.arch.absolute_metric) == (7, 1_000_000, False)
    assert run.system.actor_lr == 1.5e-4
    assert composed.logger.wandb.project == "it's {mine}, 100 %"
    assert run.network["actor_network"]["pre_torso"]["layer_sizes"] == [16, 8]
    assert run.arch.population.hyperparams == overrides["arch.population.hyperparams"]
    assert composed.env.params.max_steps_in_episode == 50
    assert composed.env.kwargs == {"my-key": 1, "two words": {"a.b": 0.5}}


@pytest.mark.parametrize(
    "text", ["true", "1e3", "null", "a=b", "", "x,y", "[1]", "{a: 1}", "a\\b", "a\\'b\\\\", "nan", "Off"]
)
def test_strings_stay_strings(text):
    composed = compose_config(to_overrides({"logger.wandb.project": text}))
    assert composed.logger.wandb.project == text


def test_list_is_unchanged():
    assert to_overrides(["arch.seed=1"]) == ["arch.seed=1"]
    assert to_overrides(()) == []
    assert to_overrides({"arch.seed": math.inf}) == ["arch.seed=inf"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("arch.seed=1", r"overrides='arch.seed=1' is a string: pass a list, \['arch.seed=1'\], or a dictionary"),
        ([("arch.seed", 1)], r"\('arch.seed', 1\) is not a string"),
        ({"arch.seed": object}, r"arch.seed=<class 'object'> is a type"),
        ({"arch.seed=1": 1}, "the key 'arch.seed=1' must be a string without '='"),
        ({"env.kwargs": {"a:b": 1}}, "env.kwargs: an override cannot have the key 'a:b'"),
        ({"arch.sed": 1}, "unknown key 'arch.sed'"),
    ],
)
def test_what_is_refused(overrides, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        stoix_like.train("ppo/ff_ppo", overrides, run_dir=tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "start",
    [
        lambda given: stoix_like.train("ppo/ff_ppo", given),
        lambda given: stoix_like.sweep("ppo/ff_ppo", given, {"gamma": {"uniform": [0.9, 0.99]}}, trials=2),
        lambda given: stoix_like.tune("gymnax/pendulum", "ppo/ff_ppo", overrides=given),
    ],
    ids=["train", "sweep", "tune"],
)
def test_a_system_cannot_be_given_twice(start, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given in (["system=sac/ff_sac"], {"system": "sac/ff_sac"}):
        with pytest.raises(ConfigError, match="^system=sac/ff_sac: system is given twice, as an argument and as an"):
            start(given)
    assert list(tmp_path.iterdir()) == []
    # A dictionary sets keys of the choice.
    check_given_once(to_overrides({"system": {"gamma": 0.9}}), system="ppo/ff_ppo")
    check_given_once(["system=ppo/ff_ppo"], system="ppo/ff_ppo")


def test_a_key_as_an_argument_is_answered_with_the_override():
    with pytest.raises(TypeError, match=r"no argument total_timesteps: .* train\(system, \{'total_timesteps': 9\}\)"):
        stoix_like.train("ppo/ff_ppo", total_timesteps=9)
    with pytest.raises(TypeError, match=r"resume\(\) has no argument mine and no seed: .* \{'mine': 1, 'seed': 2\}"):
        stoix_like.resume("runs/none", mine=1, seed=2)


def test_overrides_of_hydra_itself():
    assert all(map(is_hydras, ["hydra/launcher=basic", "+hydra.a=1", "++hydra.a=1", "~hydra.a", "~hydra/launcher"]))
    assert not any(map(is_hydras, ["arch.seed=1", "~system"]))
