import importlib.metadata
import importlib.util
import os
import re
import subprocess
import sys

import pytest

from stoix_like import cli
from stoix_like.envs import suites

TINY = ["arch.total_timesteps=2048", "arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.total_num_envs=4"]


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("envs", ["env=gymnax/cartpole", "env=gymnax env.scenario.name=Acrobot-v1"]),
        pytest.param("envs", ["env=brax/ant", "env=brax env.scenario.name=ant"], marks=pytest.mark.slow),
        ("envs --all", ["env=gymnax/cartpole", "env=probe/value", "env=probe env.scenario.name=value"]),
        ("experiments", ["+experiment=ppo_cartpole"]),
    ],
)
def test_list_prints_every_choice_as_an_override(what, expected, capsys, monkeypatch):
    if "brax" not in expected[0]:  # The other suites take seconds to import.
        monkeypatch.setattr(suites, "SUITES", {name: suites.SUITES[name] for name in ("gymnax", "probe")})
    cli.main(["list", *what.split()])
    lines = capsys.readouterr().out.splitlines()
    assert set(expected) <= set(lines)
    assert any("probe" in line for line in lines) == ("--all" in what)
    assert not any("_base" in line or "MNIST" in line for line in lines)


@pytest.mark.parametrize(
    ("suite", "expected"),
    [
        ("gymnasium", "env=ALE/Freeway-v5"),
        pytest.param("envpool", "env=envpool/_atari env.scenario.name=Freeway-v5", marks=pytest.mark.slow),
    ],
)
def test_atari_games_are_listed_with_the_usual_preprocessing_alone(suite, expected, capsys, monkeypatch):
    monkeypatch.setattr(suites, "SUITES", {suite: suites.SUITES[suite]})
    cli.main(["list", "envs"])
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "Freeway" in line] == [expected]
    assert f"env={suite} env.scenario.name=CartPole-v1" in lines


def test_help_and_version_exit_with_code_0(capsys):
    for flag in ("--help", "--version"):
        with pytest.raises(SystemExit) as exit_info:
            cli.main([flag])
        assert exit_info.value.code == 0
    out = capsys.readouterr().out
    assert importlib.metadata.version("stoix_like") in out
    assert out.count("check-env") == 1  # commands are listed once


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learn"], "'learn' is not a command: did you mean 'train'?"),
        (["evalute", "runs/a"], "'evalute' is not a command: did you mean 'evaluate'?"),
        (["list", "envs", "memory"], "usage: stoix-like list"),
        (["compile", "--for", "", *TINY], "names no GPU"),
    ],
)
def test_mistyped_commands_are_answered(arguments, message, refused):
    assert message in refused(*arguments)


@pytest.mark.slow
def test_programs_that_were_compiled_ahead_are_read_from_the_cache(tmp_path):
    environment = {
        **os.environ,
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache"),
        # Also those that compile in no time.
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }

    def run(*arguments):
        command = [sys.executable, "-m", "stoix_like", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True).stdout

    def programs():
        names = {path.name for path in (tmp_path / "cache").glob("*-cache")}
        return {name for name in names if re.match("jit_(init|train|evaluate|select)", name)}

    shown = run("compile", *TINY, "logger.wandb.group=${hydra:job.name}")
    assert [line.split()[0] for line in shown.splitlines()] == [
        *("program", "init", "train", "evaluate", "select", "compiled")
    ]
    ahead = programs()
    assert len(ahead) == 4
    assert not (tmp_path / "runs").exists()
    run("train", *TINY)
    assert programs() == ahead
