import json
import re
import shutil
import signal
import subprocess
import sys
from unittest.mock import Mock

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
from omegaconf import OmegaConf

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.policies.load import load_shared, open_run
from stoix_like.run import experiment
from stoix_like.storage import checkpoint, remote
from support.commands import COMMAND, wait_until
from support.comparisons import recorded
from support.recorded import set_key
from support.selections import first
from support.set_ups import config_of
from support.toy_runs import toy_loop, train_toy
from support.trained_runs import LAYERS

pytestmark = pytest.mark.optimized
SMALL = [
    *(*LAYERS, "system.normalize_observations=true", "system.rollout_length=16", "env.staggered_starts=true"),
    *("arch.total_num_envs=4", "arch.total_timesteps=76800", "arch.num_evaluation=40", "arch.num_eval_episodes=4"),
    *("arch.seed=3", "checkpoint.every_evals=3"),
]


@pytest.mark.slow
def test_larger_budget_reports_the_schedules_that_move(tmp_path, capsys):
    budget = ["arch.total_timesteps=1024", "arch.num_evaluation=1", "system.decay_learning_rates=true"]
    result = stoix_like.train("ppo/ff_ppo", [*SMALL, *budget], run_dir=tmp_path / "run")
    capsys.readouterr()
    stoix_like.resume(result.run_dir, ["arch.total_timesteps=2048"])
    printed = " ".join(capsys.readouterr().out.split())
    assert "schedules and evaluations follow the new budget of 32 updates (before: 16)" in printed
    assert "move learning rates (fraction of the initial ones) from 0 to 0.5" in printed


def arrays(run_dir, step):
    directory = run_dir / "checkpoints" / str(step)
    items = [path.name for path in directory.iterdir() if path.is_dir() and path.name != "host_state"]
    with ocp.CheckpointManager(directory.parent) as manager:
        restored = manager.restore(
            step, args=ocp.args.Composite(**{name: ocp.args.StandardRestore() for name in items})
        )
    leaves, _ = jax.tree_util.tree_flatten_with_path(dict(restored.items()))
    is_key = lambda leaf: jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)  # noqa: E731
    return {
        jax.tree_util.keystr(path): np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)
        for path, leaf in leaves
    }


def assert_same_results(run_dir, reference):
    assert recorded(run_dir) == recorded(reference)
    step = checkpoint.steps(reference)[-1]
    # A store that lags behind training may have the last checkpoint alone.
    assert checkpoint.steps(run_dir)[-1] == step
    found, expected = arrays(run_dir, step), arrays(reference, step)
    assert found.keys() == expected.keys()
    assert len(found) > 30
    for name, array in expected.items():
        assert found[name].tobytes() == array.tobytes(), name
    one, other = (json.loads((directory / "summary.json").read_text()) for directory in (run_dir, reference))
    for name in ("absolute/episode_return_mean", "absolute/env_steps", "absolute_episode_returns"):
        assert one[name] == other[name]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, environment):
    run_dir = tmp_path_factory.mktemp("reference") / "run"
    subprocess.run([COMMAND, "train", *SMALL, f"hydra.run.dir={run_dir}"], env=environment, check=True, timeout=300)
    return run_dir


def stop_when(process, condition, number):
    wait_until(condition, 200, process)
    process.send_signal(number)
    return process.wait(timeout=100)


@pytest.mark.slow
def test_a_run_that_is_killed_repeatedly_is_bit_identical_to_an_uninterrupted_run(tmp_path, environment, reference):
    run_dir = tmp_path / "run"
    directory = run_dir / "checkpoints"

    def checkpoints_beyond(step):
        return any(found > step for found in checkpoint.steps(run_dir))

    def saving_beyond(step):
        names = [path.name for path in directory.glob("*.orbax-checkpoint-tmp*")]
        return any(int(name.split(".")[0]) > step for name in names)

    def lines():
        return (run_dir / "metrics.jsonl").read_bytes().count(b"\n") if (run_dir / "metrics.jsonl").exists() else 0

    train = [COMMAND, "train", *SMALL, f"hydra.run.dir={run_dir}"]
    resume = [COMMAND, "resume", str(run_dir)]
    # Before the first checkpoint, after one, while one is being written, and between two.
    moments = [
        (train, lambda: lines() >= 1, signal.SIGKILL, -signal.SIGKILL),
        (resume, lambda: checkpoints_beyond(0), signal.SIGKILL, -signal.SIGKILL),
        (resume, lambda: saving_beyond(20_000), signal.SIGKILL, -signal.SIGKILL),
        (resume, lambda: checkpoints_beyond(40_000), signal.SIGTERM, 128 + signal.SIGTERM),
        (resume, lambda: checkpoints_beyond(55_000), signal.SIGINT, 128 + signal.SIGINT),
    ]
    for command, condition, number, code in moments:
        pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, env=environment, text=True, **pipes) as process:
            assert stop_when(process, condition, number) == code
            error = process.stderr.read()
        if code > 0:
            assert f"continue with: stoix-like resume {run_dir}" in error
            assert "Traceback" not in error
    done = subprocess.run(resume, env=environment, check=True, timeout=200, capture_output=True, text=True)
    assert done.stderr == ""
    assert not re.search("HYDRA|orbax|absl", done.stdout)
    assert_same_results(run_dir, reference)
    assert checkpoint.steps(run_dir) == checkpoint.steps(reference)


@pytest.mark.slow
def test_a_run_whose_machine_is_lost_resumes_exactly_from_its_mirror(tmp_path, environment, reference):
    store, run_dir = tmp_path / "store", tmp_path / "run"
    train = [COMMAND, "train", *SMALL, f"hydra.run.dir={run_dir}", f"checkpoint.mirror=file://{store}"]
    environment = {**environment, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with subprocess.Popen(train, env=environment, stdout=subprocess.DEVNULL) as process:
        stop_when(process, lambda: list(store.glob("checkpoints/*.complete")), signal.SIGKILL)
    shutil.rmtree(run_dir)
    subprocess.run([COMMAND, "resume", f"file://{store}"], env=environment, check=True, timeout=200)
    copy = tmp_path / f"cache/stoix_like/resumed/file{store}"
    assert_same_results(copy, reference)
    # What comes from the store is what was there, and all of it is there again.
    for step in checkpoint.steps(copy):
        assert remote.identity(store / f"checkpoints/{step}") == remote.identity(copy / f"checkpoints/{step}")
    assert (store / "summary.json").read_bytes() == (copy / "summary.json").read_bytes()


@pytest.mark.slow
def test_a_second_process_in_the_same_run_directory_is_refused(tmp_path, environment, reference):
    run_dir = shutil.copytree(reference, tmp_path / "run")
    recorded = (run_dir / "config.yaml").read_text()
    resume = [COMMAND, "resume", str(run_dir), "arch.total_timesteps=1e6"]
    first = subprocess.Popen(resume, env=environment, stdout=subprocess.DEVNULL)
    # The first process writes its configuration once it holds the lock.
    wait_until(lambda: (run_dir / "config.yaml").read_text() != recorded, 100)
    second = subprocess.run(resume, env=environment, capture_output=True, text=True)
    first.kill()
    first.wait()
    assert second.returncode == 2
    assert second.stderr == f"stoix-like: {run_dir} is in use: another process is training there\n"


FULL_DISK = """
import resource, signal, sys
from stoix_like import cli
from stoix_like.storage import checkpoint
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
save = checkpoint.Writer.save
def save_with_limit(writer, step, items, host_state):
    full = 20_000 < step < 60_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (40 if full else 10**9, 10**9))
    save(writer, step, items, host_state)
    writer.wait()
    resource.setrlimit(resource.RLIMIT_FSIZE, (10**9, 10**9))
checkpoint.Writer.save = save_with_limit
cli.main(sys.argv[1:])
"""


@pytest.mark.slow
def test_a_full_disk_is_reported_once_and_training_continues(tmp_path, environment, reference):
    """A limit of 40 bytes per file simulates a full disk for some of the checkpoints."""
    run_dir = tmp_path / "run"
    command = [sys.executable, "-c", FULL_DISK, "train", *SMALL, f"hydra.run.dir={run_dir}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"cannot write a checkpoint to {run_dir}/checkpoints: ")
    assert "File too large" in line
    assert line.endswith("training continues, and the last good checkpoint stays")
    assert_same_results(run_dir, reference)
    assert checkpoint.steps(run_dir) == checkpoint.steps(reference)


@pytest.fixture(scope="module")
def toy_run(tmp_path_factory):
    return train_toy(tmp_path_factory)


@pytest.fixture
def run_dir(tmp_path, toy_run):
    return shutil.copytree(toy_run, tmp_path / "run")


def damage(run_dir, step, kind):
    files = [path for path in (run_dir / "checkpoints" / str(step)).rglob("*") if path.is_file()]
    if kind == "host_state":
        (path,) = (path for path in files if path.parent.name == "host_state" and path.name == "metadata")
        path.write_text(path.read_text().replace("updates", "downtes"))
        return
    if kind == "deleted":
        shutil.rmtree(run_dir / "checkpoints" / str(step) / "shared")
        return
    # The files of the arrays; the others are metadata of Orbax.
    for path in (path for path in files if "/rollout_state/" in str(path) and path.parent.name == "d"):
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content if kind == "flipped" else content[: len(content) // 2])


@pytest.mark.parametrize("kind", first(1, ["truncated", "host_state", "flipped", "deleted"]))
def test_a_damaged_checkpoint_is_quarantined_and_the_previous_one_is_used(run_dir, capsys, toy_run, kind):
    newest = checkpoint.steps(run_dir)[-1]
    # Read from the original: reading the copy would cache its undamaged files.
    expected = arrays(toy_run, newest)
    damage(run_dir, newest, kind)
    (run_dir / "summary.json").unlink()
    result = experiment.resume(run_dir, trust=True)
    error = capsys.readouterr().err
    assert f"the checkpoint after {newest} steps is damaged" in error
    assert (run_dir / "checkpoints-damaged" / str(newest)).is_dir()
    assert recorded(run_dir) == recorded(toy_run)
    assert len(result.history) == 5
    found = arrays(run_dir, newest)
    assert all(found[name].tobytes() == array.tobytes() for name, array in expected.items())


def test_a_run_that_sends_data_is_refused_unless_the_command_line_asks_for_it(run_dir):
    set_key(run_dir, "logger.wandb.enabled", True)
    set_key(run_dir, "system", config_of().resolved["system"])
    with pytest.raises(ConfigError, match="logger.wandb.enabled=true sends data to another machine"):
        stoix_like.resume(run_dir)


@pytest.mark.slow
def test_a_larger_budget_continues_the_run_in_the_same_files_also_of_a_path_with_glob_characters(tmp_path, toy_run):
    run_dir = shutil.copytree(toy_run, tmp_path / "[par]" / "x[8]*")
    # A killed process may leave a line after the last checkpoint, and a partial one.
    with (run_dir / "metrics.jsonl").open("a") as file:
        file.write('{"env_steps": 336}\n{"env_st')
    result = stoix_like.resume(run_dir, ["arch.total_timesteps=640"], trust=True)
    before = (toy_run / "metrics.jsonl").read_text()
    assert (run_dir / "metrics.jsonl").read_text().startswith(before)
    # The new budget is evaluated every 160 steps; the first 320 steps are already done.
    assert [line["env_steps"] for line in recorded(run_dir)] == [0, 80, 160, 240, 320, 480, 640]
    assert (result.summary["updates"], result.summary["checkpoint/env_steps"]) == (40, 640)
    assert OmegaConf.load(run_dir / "config.yaml").arch.total_timesteps == 640
    assert load_shared(open_run(run_dir, trust=True), "last").env_steps == 640


@pytest.mark.slow
def test_the_summary_has_the_notes_of_all_processes_of_a_run(run_dir):
    for budget in (336, 352):
        result = stoix_like.resume(run_dir, [f"arch.total_timesteps={budget}"], trust=True)
    notes = result.summary["notes"]
    # Updates of 16 steps: 320 / 16 = 20, 336 / 16 = 21 and 352 / 16 = 22.
    expected = [
        *("resuming after 320 env steps", "follow the new budget of 21 updates (before: 20)"),
        *("resuming after 336 env steps", "follow the new budget of 22 updates (before: 21)"),
    ]
    places = [next(place for place, note in enumerate(notes) if text in note) for text in expected]
    assert places == sorted(places)
    assert len(notes) == len(set(notes))
    assert json.loads((run_dir / "summary.json").read_text())["notes"] == notes


def test_a_checkpoint_without_notes_is_restored(tmp_path, toy_run):
    loop = toy_loop(tmp_path)
    found = checkpoint.read(toy_run, 320, loop.targets())
    del found.host_state["notes"]
    loop.restore(found)
    assert (loop.env_steps, loop.notes) == (320, ())


def test_a_complete_run_keeps_its_results_until_its_extension_can_start(run_dir, toy_run, monkeypatch):
    monkeypatch.setattr(experiment, "TrainingLoop", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        stoix_like.resume(run_dir, ["arch.total_timesteps=640"], trust=True)
    for name in ("summary.json", "config.yaml", "metrics.jsonl"):
        assert (run_dir / name).read_bytes() == (toy_run / name).read_bytes()


def test_a_transient_error_is_not_treated_as_damage(run_dir, toy_run, monkeypatch):
    monkeypatch.setattr(ocp.CheckpointManager, "restore", Mock(side_effect=OSError(24, "Too many open files")))
    with pytest.raises(ConfigError, match="cannot read .*/checkpoints/320: .*Too many open files"):
        stoix_like.resume(run_dir, ["arch.total_timesteps=640"], trust=True)
    assert checkpoint.steps(run_dir) == checkpoint.steps(toy_run)


def test_if_every_checkpoint_is_damaged_none_is_moved(run_dir, toy_run):
    for step in checkpoint.steps(run_dir):
        damage(run_dir, step, "host_state")
    with pytest.raises(ConfigError, match="every checkpoint of .* is damaged"):
        stoix_like.resume(run_dir, trust=True)
    assert checkpoint.steps(run_dir) == checkpoint.steps(toy_run)
    assert recorded(run_dir) == recorded(toy_run)


@pytest.mark.slow
def test_a_run_without_checkpoints_starts_again_only_with_its_own_configuration(run_dir, toy_run, capsys):
    shutil.rmtree(run_dir / "checkpoints")
    with pytest.raises(ConfigError, match="arch.seed was 42 and is 7"):
        stoix_like.resume(run_dir, ["arch.seed=7"], trust=True)
    with pytest.raises(ConfigError, match="is complete, but has no checkpoint to continue from"):
        stoix_like.resume(run_dir, trust=True)
    (run_dir / "summary.json").unlink()
    stoix_like.resume(run_dir, trust=True)
    assert "the run starts from step 0" in capsys.readouterr().err
    assert recorded(run_dir) == recorded(toy_run)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resume", "nowhere"], "nowhere holds no run: config.yaml is missing"),
        (["resume", "."], "/toy\n"),
        (["resume", "toy", "--trust", "arch.num_devices=abc"], "arch.num_devices=abc"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(tmp_path, monkeypatch, refused, toy_run, arguments, message):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(toy_run, tmp_path / "toy")
    assert message in refused(*arguments)
    assert [path.name for path in tmp_path.iterdir()] == ["toy"]
