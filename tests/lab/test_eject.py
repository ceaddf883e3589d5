import dataclasses
import inspect
import re
import runpy
import subprocess
import sys

import pytest
from omegaconf import OmegaConf

from stoix_like import cli
from stoix_like.composition import compose_config
from stoix_like.lab import eject
from support.recorded import write_config
from support.selections import first

PPO = "ppo/ff_ppo"
DQN = "q_learning/ff_dqn"
TORSO = "network.actor_network.pre_torso"
# Imports of the package fail, as where it is not installed.
WITHOUT_PACKAGE = (
    "import runpy, sys; sys.modules['stoix_like'] = None; runpy.run_path(sys.argv.pop(1), run_name='__main__')"
)


@pytest.mark.parametrize("system", first(2, [*eject.SCRIPTS]))
def test_defaults_of_the_files_are_those_of_the_systems(system):
    first, _, text = eject.eject(system, []).partition("\n")
    assert first.startswith(f"# Written by `stoix-like eject {system}` of stoix_like ")
    assert text == inspect.getsource(eject.script_of(system))


@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_files_are_short_and_import_nothing_of_this_package(system):
    source = inspect.getsource(eject.script_of(system))
    assert len(source.splitlines()) <= (460 if system == "search/ff_az" else 410)
    imported = {line.split()[1].partition(".")[0] for line in source.splitlines() if re.match("(import|from) ", line)}
    assert imported - sys.stdlib_module_names <= {"distrax", "flax", "gymnax", "jax", "mctx", "optax"}


def test_settings_of_the_configuration_are_filled_in(tmp_path, capsys):
    path = tmp_path / "script.py"
    words = ["env=gymnax/acrobot", "arch.total_timesteps=1e6", "system.gamma=1", "system.decay_learning_rates=false"]
    layers = [f"network.{name}_network.pre_torso.layer_sizes=[3.2e1]" for name in ("actor", "critic")]
    cli.main(["eject", PPO, "--out", str(path), *words, *layers])
    assert capsys.readouterr().out == f"written to {path}\n"
    config = runpy.run_path(str(path))["Config"]()
    changes = {"env_name": "Acrobot-v1", "total_timesteps": 10**6, "gamma": 1.0, "decay_learning_rates": False}
    expected = dataclasses.replace(eject.script_of(PPO).Config(), **changes, layer_sizes=(32,))
    assert dataclasses.asdict(config) == dataclasses.asdict(expected)
    assert "    gamma: float = 1.0  # discount factor per step\n" in path.read_text()


def test_a_run_directory_brings_its_settings_and_overrides_change_them(tmp_path):
    config = compose_config(["system.clip_eps=0.1", "arch.seed=7", "arch.num_devices=1", "logger=wandb"])
    write_config(tmp_path, OmegaConf.to_container(config, resolve=True))
    path = tmp_path / "script.py"
    eject.eject(str(tmp_path), ["arch.seed=8"], path)
    found = runpy.run_path(str(path))["Config"]()
    assert (found.clip_eps, found.seed, found.gamma) == (0.1, 8, 0.99)


def test_an_existing_file_stays_as_it_is(tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("mine")
    expected = "stoix-like: --out=mine.py exists already: choose another file\n"
    assert refused("eject", PPO, "--out", "mine.py") == expected
    assert (tmp_path / "mine.py").read_text() == "mine"


def test_without_a_file_the_script_is_printed(capsys):
    cli.main(["eject", PPO])
    assert capsys.readouterr().out == eject.eject(PPO, [])


@pytest.mark.parametrize(
    ("source", "override", "names"),
    first(
        7,
        [
            (PPO, "env=probe/value", 'env.env_name="probe": the single file of ppo/ff_ppo has only "gymnax"'),
            (PPO, "env.frame_stack=4", "env.frame_stack=4"),
            (PPO, "network=cnn", "network.actor_network.pre_torso._target_="),
            (PPO, "network=mlp_shared", "network.critic_network.pre_torso."),
            (PPO, "system.clip_eps=-1", "system.clip_eps"),
            (PPO, "arch.population.size=2", "arch.population.size=2"),
            (PPO, "arch=sebulba", "arch.architecture_name="),
            ("mpo/ff_mpo", "arch.seed=1", "system=mpo/ff_mpo has no single file"),
            ("search/ff_az", "system.evaluation_simulations=0", "system.evaluation_simulations=0"),
            ("ppo/ff_pppo", "arch.seed=1", "did you mean 'ppo/ff_ppo'"),
            (".", "arch.seed=1", "holds no run: config.yaml is missing"),
            (PPO, "env=gymnax/discounting_chain", "env.scenario.name=DiscountingChain-bsuite"),
            (PPO, "+env.params.gravity=1.0", "env.params.gravity=1.0"),
            (PPO, "network.critic_network.pre_torso.layer_sizes=[8]", "critic_network.pre_torso.layer_sizes=[8]"),
            (PPO, "system.target_kl=0.01", "system.target_kl=0.01"),
            (PPO, "system.max_grad_norm=null", "'system.max_grad_norm' is not set"),
            (PPO, "system.decay_learning_rates=0.5", "system.decay_learning_rates=0.5"),
            (DQN, f"{TORSO}.layer_sizes=[1.5,64]", f"{TORSO}.layer_sizes[0]=1.5 has the wrong type"),
            ("search/ff_az", "system.search_method=puct", 'system.search_method="puct"'),
        ],
    ),
)
def test_refusals_name_the_key_in_one_line(source, override, names, tmp_path, monkeypatch, refused):
    monkeypatch.chdir(tmp_path)
    error = refused("eject", source, override)
    assert error.count("\n") == 1
    assert names in error
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("system", eject.SCRIPTS)
def test_files_run_where_the_package_cannot_be_imported(system, tmp_path):
    words = ["arch.total_timesteps=1e4", "arch.num_evaluation=2", "arch.num_eval_episodes=2"]
    path = tmp_path / "script.py"
    eject.eject(system, [*words, "system.rollout_length=16", "+env.params.max_steps_in_episode=20"], path)
    command = [sys.executable, "-c", WITHOUT_PACKAGE, path, "--seed", "1", "--total_timesteps", "2.5e3"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(re.fullmatch(r" *\d+ steps, mean return -?[\d.]+", line) for line in lines)
