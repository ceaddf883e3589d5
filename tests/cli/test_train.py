import gc
import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from hydra.core.hydra_config import HydraConfig

import stoix_like
from stoix_like import cli
from stoix_like.cli import train
from stoix_like.config import parse_config
from stoix_like.errors import ConfigError
from stoix_like.overrides import quoted
from stoix_like.run import experiment
from support.commands import COMMAND
from support.selections import first
from support.set_ups import setup_of

PPO_FILE = Path(stoix_like.__file__).parent / "systems/ppo/anakin/ff_ppo.py"
TINY = ["arch.total_timesteps=2048", "arch.num_evaluation=1", "arch.num_eval_episodes=2", "arch.total_num_envs=4"]

REFUSED = [
    (["--env-id", "CartPole-v1", "--num-envs=8"], "unknown keys:\n  'env_id': use env=CartPole-v1"),
    (["-m", "arch.seed=0,1", "--track"], "unknown key 'track': use logger=wandb"),
    (["--arch.seed", "1"], "keys have no dashes: write arch.seed=1"),
    (["system.gama=0.9"], "unknown key 'system.gama': did you mean 'system.gamma'"),
    (["arch.total_num_envs=0"], "arch.total_num_envs=0 is out of range: it must be in [1, 2147483647]"),
    (["env=gymnax"], "env.scenario.name="),
    (["hydra.run.dir=/proc/run"], "hydra.run.dir=/proc/run cannot be written"),
    (["-m", "arch.seed=0,1", "system.gamma=0.9,2.0"], "system.gamma=2.0 is out of range"),
    (["arch.total_num_envs=12,8", "arch.update_batch_size=1,3", "-m"], "use 6 or 9"),
    (["+system.n_steps=5"], "unknown key 'system.n_steps'"),  # a plus does not make a key of it
    (["arch.seed=0,1"], "arch.seed=0,1 has several values: add -m"),
    (["--config-dir", "configs_of_mine"], "--config-dir=configs_of_mine does not exist"),
    (["logger=[]"], "logger=[] is a list of choices: choose one"),
    (["arch.seed=1", "--track"], "unknown key 'track': use logger=wandb"),
    (["arch.total_num_envs=9", "arch.update_batch_size=2"], "use 8 or 10"),
    (["system.gama=1", "--cfg", "job"], "unknown key 'system.gama'"),
    (["--config-dir", "/", "system.gama=0.9"], "unknown key 'system.gama': did you mean 'system.gamma'"),
    (["--config-name", "mine"], "use --config-dir"),
    (["-m", "arch.seed=0,1", "--cfg", "job"], "leave one of them out"),
    (["-m", "arch.seed=0,1", "logger=[wandb,tensorboard]"], "choose one, last in a list, and switch the others on"),
    (["-m", "env=gymnax/cartpole,-0.0"], "env=-0.0 is not known"),
    (["-m", "arch.seed=0,1", "hydra/launcher=submitit_slurm"], "there is no srun here: start it on a node of"),
    (["-m", "system=ppo/ff_ppo,q_learning/ff_dqn", "++system.clip_eps=0.3"], "system=q_learning/ff_dqn: unknown key"),
]
# What the command refuses as `set_up` does.
INVALID = [
    (["system.gamma=1.5"], "system.gamma=1.5 is out of range: it must be in [0.0, 1.0]"),
    (["experiment=ppo_cartpol"], "did you mean 'ppo_cartpole'"),
    (["system.gamma=abc"], "system.gamma=abc has the wrong type: it must be a number"),
    (["logger.wandb.enabled=maybe"], "logger.wandb.enabled=maybe has the wrong type: it must be true or false"),
    (["network.actor_network.pre_torso.layer_sizes=[0]"], "layer_sizes"),
    (["system.clip_eps=0"], "system.clip_eps=0.0 is out of range: it must be more than 0.0"),
    (["system.num_minibatches=3"], "use a divisor of 1024"),
    (["arch.total_timesteps=1000"], "use at least 1024"),
    (["env=gymnax", "env.scenario.name=CartPol-v1"], "did you mean 'CartPole-v1'"),
    (["env.env_name=zoo"], "env.env_name='zoo'"),
    (["env.auto_reset=frsh"], "env.auto_reset=frsh is not known: did you mean 'fresh'"),
    (["+env.params.gravty=1"], "did you mean 'gravity'"),
    (["network=mlp_continuous"], "choose network=mlp"),
    (["network.actor_network.pre_torso.activation=rellu"], "did you mean 'relu'"),
    (["arch.num_devices=64"], "arch.num_devices=64 is too many: use at most"),
    (["arch.population.hyperparams={epochs: [1, 2]}"], "hyperparams.epochs cannot vary between members: choose from"),
    (["+env.params.max_steps_in_episode=1e10"], "env.params.max_steps_in_episode=10000000000 is invalid"),
]


@pytest.mark.parametrize(
    ("arguments", "message"), first(13, REFUSED), ids=[" ".join(arguments) for arguments, _ in REFUSED]
)
def test_invalid_input_prints_one_line_and_exits_with_code_2(arguments, message, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    err = refused("train", *arguments)
    assert err.startswith("stoix-like: ")
    # Two unknown keys have a line each, below the first one.
    assert err.count("\n") == (3 if "unknown keys" in message else 1)
    assert message in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "message"), first(12, INVALID), ids=[" ".join(overrides) for overrides, _ in INVALID]
)
def test_invalid_configurations_are_refused_by_a_sentence(overrides, message):
    with pytest.raises(ConfigError) as refused:
        setup_of(*overrides)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_garbage_is_collected_again_after_the_start(monkeypatch):
    paused = []
    monkeypatch.setattr(train, "_check", lambda args: paused.append(not gc.isenabled()) or None)
    monkeypatch.setattr(train, "_run_hydra", lambda args, alone: paused.append(not gc.isenabled()))
    cli.main(["train"])
    with pytest.raises(SystemExit):
        cli.main(["train", "--config-name", "mine"])
    assert (paused, gc.isenabled()) == ([True, False], True)


def test_runs_of_a_multirun_that_the_configuration_asks_for_are_checked_where_they_start():
    args, _ = train._parse_hydra(["hydra.mode=MULTIRUN"])
    assert train._check(args) is None


JOBLIB = "# @package _global_\ndefaults:\n  - override /hydra/launcher: joblib\n"


@pytest.mark.parametrize(
    ("files", "words", "message"),
    [
        ({"env/mine.yaml": "scenario: [1\n"}, "--config-dir {tmp} env=mine", '"{tmp}/env/mine.yaml", line 1'),
        ({"file": ""}, "hydra.run.dir={tmp}/file/run", "cannot be written"),
        ({"metrics.jsonl": "kept\n"}, "hydra.run.dir={tmp}", "already holds a run"),
        ({"0-seed42/log": ""}, "-m arch.seed=0,1 hydra.sweep.dir={tmp}", "is not empty"),
        (
            {"experiment/a.yaml": JOBLIB, "experiment/b.yaml": JOBLIB},
            "-m --config-dir {tmp} +experiment=a,b",
            "give hydra/launcher=… and its keys on the command line",
        ),
        (
            {"system/broken.yaml": "module: broken_system", "broken_system.py": "0 / 0"},
            "--config-dir {tmp} system=broken --help",
            "system.module=broken_system is not a system (ZeroDivisionError",
        ),
    ],
)
def test_what_files_say_is_refused_and_they_stay(files, words, message, refused, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    err = refused("train", *words.format(tmp=tmp_path).split())
    assert message.format(tmp=tmp_path) in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} - {"__pycache__"} == {name.split("/")[0] for name in files}
    assert {name: (tmp_path / name).read_text() for name in files} == files


def test_an_experiment_needs_no_plus(capsys):
    cli.main(["train", "experiment=ppo_acrobot", "--cfg", "job"])
    assert "Acrobot-v1" in capsys.readouterr().out


@pytest.mark.parametrize("package", ["wandb", "tensorboardX"])
def test_a_missing_package_is_refused_with_the_extra_to_install(package, refused, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, package, None)
    assert "[loggers]'" in refused("train", f"logger={package.removesuffix('X')}")


def test_help_shows_the_documentation_of_the_system_and_every_key(capsys):
    cli.main(["train", "--help"])
    text = capsys.readouterr().out
    for expected in ("Proximal policy optimisation", "clip_eps", "total_timesteps", "gymnax/cartpole", "auto_reset"):
        assert expected in text
    assert re.search(r"system=… +\d+: q_learning \d+, sac \d", text)
    assert "brax/ant" not in text
    # Blocks of the primary file.
    assert "\n[every run]\n" in text
    assert "\n  share: true # one network for all agents" in text
    assert "\ncallbacks: []\n" in text
    assert "(or python -m stoix_like.systems.ppo.anakin.ff_ppo)" in text


def test_help_of_an_experiment_shows_what_it_chooses_and_sets(capsys):
    cli.main(["train", "experiment=sac_pendulum", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("sac/ff_sac: Soft actor-critic")
    assert "[env=gymnax/pendulum]" in text
    assert "[experiment=sac_pendulum]\n# @package _global_\n# SAC on Pendulum-v1" in text


@pytest.mark.parametrize(
    ("word", "heading", "key"),
    [
        ("system=q_learning/ff_ddqn", "system=q_learning/ff_dqn, which it extends", "target_update_period"),
        ("arch=offline", "arch=anakin, which it extends", "distributed: null"),
        ("env=gymnasium/_atari", "env=gymnasium, which it extends", "env_name: gymnasium"),
    ],
)
def test_help_shows_the_keys_of_files_that_another_one_extends_once(capsys, word, heading, key):
    cli.main(["train", word, "--help"])
    _, *titled = re.split(r"^\[(.+)\]$", capsys.readouterr().out, flags=re.MULTILINE)
    headings = titled[::2]
    assert key in dict(zip(headings, titled[1::2], strict=True))[heading]
    assert len(set(headings)) == len(headings)


def test_help_names_no_main_program_that_a_module_does_not_have(capsys, tmp_path):
    (tmp_path / "system").mkdir()
    (tmp_path / "system/toy.yaml").write_text("module: support.toys")
    cli.main(["train", "--config-dir", str(tmp_path), "system=toy", "--help"])
    text = capsys.readouterr().out
    assert text.startswith("toy: A system whose state can be computed by hand.")
    assert "python -m" not in text


FORMS = {
    "module": [sys.executable, "-m", "stoix_like.systems.ppo.anakin.ff_ppo"],
    "file": [sys.executable, str(PPO_FILE)],
    "command": [COMMAND, "train", "system=ppo/ff_ppo"],
}


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_module_a_file_and_the_command_launch_from_any_directory(form, tmp_path):
    done = subprocess.run([*FORMS[form], *TINY, "arch.seed=3"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (run_dir,) = (tmp_path / "runs/ppo/ff_ppo/CartPole-v1").iterdir()
    assert run_dir.name.endswith("-seed3")
    assert {"config.yaml", "metrics.jsonl", "summary.json"} <= {path.name for path in run_dir.iterdir()}
    assert str(run_dir.relative_to(tmp_path)) in done.stdout
    # Other packages print nothing.
    assert done.stderr == ""
    assert not re.search("HYDRA|orbax|absl", done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--cfg job arch.seed=7", "seed: 7"),
        ("arch.seed=7 --cfg job", "seed: 7"),
        ("--help", "Proximal policy optimisation"),
    ],
)
def test_flags_and_overrides_come_in_any_order(words, said, tmp_path):
    done = subprocess.run([*FORMS["module"], *words.split()], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert list(tmp_path.iterdir()) == []


HYDRA = ["logger.wandb.group=${hydra:job.name}", "logger.wandb.project=${hydra:runtime.output_dir}"]


def test_a_run_refers_to_the_configuration_of_hydra(tmp_path, monkeypatch):
    started, outer = [], HydraConfig.instance().cfg
    monkeypatch.setattr(experiment, "run_job", lambda prepared: started.append(prepared) or 1.0)
    cli.main(["train", f"hydra.run.dir={tmp_path}/run", *HYDRA])
    wandb = started[0].setup.config.resolved["logger"]["wandb"]
    assert (wandb["group"], wandb["project"]) == ("ppo/ff_ppo", f"{tmp_path}/run")
    assert HydraConfig.instance().cfg is outer


def test_a_run_from_python_refers_to_the_job_that_it_would_be(tmp_path, monkeypatch):
    started, outer = [], HydraConfig.instance().cfg
    monkeypatch.setattr(experiment, "run", started.append)
    stoix_like.train("ppo/ff_ppo", HYDRA, run_dir=tmp_path / "run")
    wandb = started[0].setup.config.logger.wandb
    assert (wandb.group, wandb.project) == ("ppo/ff_ppo", f"{tmp_path}/run")
    assert started[0].directory.path == tmp_path / "run"
    assert HydraConfig.instance().cfg is outer


@pytest.mark.slow
def test_jobs_of_a_multirun_share_the_directory_of_the_first_one_and_continue_there(tmp_path, monkeypatch):
    started = []

    def run(config):
        started.append((HydraConfig.get().runtime.output_dir, parse_config(config).logger.wandb.group))
        return 1.0

    monkeypatch.setattr(experiment, "run_experiment", run)
    place = quoted(f"{tmp_path}/it's ${{env.scenario.task_name}}")
    given = [f"hydra.sweep.dir={place}", "logger.wandb.group=group-${hydra:job.num}"]
    for _ in range(2):
        cli.main(["train", "-m", "env=gymnax/acrobot,gymnax/cartpole", *given])
    sweep = tmp_path / "it's Acrobot-v1"
    assert started == 2 * [(f"{sweep}/0-seed42", "group-0"), (f"{sweep}/1-seed42", "group-1")]
    assert [path.name for path in tmp_path.iterdir()] == [sweep.name]


@pytest.mark.slow
def test_jobs_that_fail_are_named_after_the_others_have_run(tmp_path, monkeypatch, capfd):
    errors = [
        jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: out of memory\nallocating 8 bytes"),
        OSError(116, "Stale file handle"),
        ConfigError("arch.total_num_envs=8 does not fit into memory"),
    ]

    def run(config):
        if config.arch.seed < len(errors):
            raise errors[config.arch.seed]
        started.append(config.arch.seed)
        return 1.0

    started = []
    monkeypatch.setattr(experiment, "run_experiment", run)
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["train", "-m", "arch.seed=range(4)", f"hydra.sweep.dir={tmp_path}"])
    *lines, summary = capfd.readouterr().err.splitlines()
    assert (started, exit_info.value.code) == ([3], 1)
    said = ["RESOURCE_EXHAUSTED: out of memory", "[Errno 116] Stale file handle", str(errors[2])]
    assert lines == [f"{tmp_path}/{seed}-seed{seed}: {line}" for seed, line in enumerate(said)]
    assert summary.startswith(f"stoix-like: 3 of 4 jobs failed: {tmp_path}/0-seed0 (JaxRuntimeError: {said[0]}); ")
    assert (tmp_path / "2-seed2/failure.txt").read_text() == f"ConfigError: {said[2]}\n"


@pytest.mark.slow
def test_multirun_runs_every_combination(tmp_path):
    command = [*FORMS["module"], "-m", *TINY, "arch.seed=0,1", "system.clip_eps=0.1,0.2", "logger=silent"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (sweep,) = (tmp_path / "runs/ppo/ff_ppo/CartPole-v1").iterdir()
    runs = sorted(path.name for path in sweep.iterdir() if path.is_dir())
    assert runs == ["0-seed0", "1-seed0", "2-seed1", "3-seed1"]
    assert all((sweep / run / "summary.json").exists() for run in runs)
