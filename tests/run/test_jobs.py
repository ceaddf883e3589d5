import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from stoix_like.run import jobs
from support import toys
from support.commands import COMMAND, wait_until
from support.comparisons import without_times
from support.trained_runs import LAYERS

pytestmark = pytest.mark.optimized
MULTIRUN = [
    *(COMMAND, "train", "-m", *LAYERS),
    *("system.rollout_length=16", "arch.total_num_envs=4", "arch.total_timesteps=51200"),
    *("arch.num_evaluation=40", "arch.num_eval_episodes=4", "arch.seed=0,1"),
]


@pytest.fixture(scope="module")
def reference(tmp_path_factory, environment):
    sweep = tmp_path_factory.mktemp("reference") / "sweep"
    subprocess.run([*MULTIRUN, f"hydra.sweep.dir={sweep}"], env=environment, check=True, timeout=300)
    return histories(sweep)


def history(run):
    with contextlib.suppress(FileNotFoundError):
        return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return []


def histories(sweep):
    return [without_times(history(sweep / name)) for name in ("0-seed0", "1-seed1")]


def jobs_of(sweep):
    found = subprocess.run(["pgrep", "-f", f"submitit.core._submit {sweep}"], capture_output=True, text=True)
    return [int(number) for number in found.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "stop"), [("basic", signal.SIGTERM), ("joblib", signal.SIGKILL)])
def test_a_multirun_that_was_cut_continues_with_the_same_command(tmp_path, environment, reference, launcher, stop):
    sweep = tmp_path / "sweep"
    command = [*MULTIRUN, f"hydra.sweep.dir={sweep}", f"hydra/launcher={launcher}"]
    # One job after the other, so that one is complete.
    command += ["hydra.launcher.n_jobs=1"] if launcher == "joblib" else []
    with subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: len(history(sweep / "1-seed1")) > 10, 200, process)
        os.killpg(process.pid, stop)
        assert process.wait(timeout=100) == (128 + stop if stop == signal.SIGTERM else -stop)
    written = (sweep / "0-seed0/metrics.jsonl").read_bytes()
    assert 10 < len(history(sweep / "1-seed1")) < 41

    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert f"{sweep}/0-seed0 is complete" in done.stdout
    assert re.search(r"resuming after [\d,]+ env steps", done.stdout)
    assert (sweep / "0-seed0/metrics.jsonl").read_bytes() == written
    assert histories(sweep) == reference

    other = [word.replace("arch.seed=0,1", "arch.seed=1,0") for word in command]
    refused = subprocess.run(other, env=environment, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2
    assert "continue it with the same overrides, or choose another directory" in refused.stderr


@pytest.mark.slow
def test_a_warning_of_the_scheduler_saves_the_run_and_queues_its_job_again(tmp_path, environment, reference):
    sweep = tmp_path / "sweep"
    command = [*MULTIRUN, f"hydra.sweep.dir={sweep}", "hydra/launcher=submitit_local"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        names = ("0-seed0", "1-seed1")
        wait_until(lambda: any(3 < len(history(sweep / name)) < 30 for name in names), 200, process)
        for job in jobs_of(sweep):
            os.kill(job, signal.SIGUSR2)
        assert process.wait(timeout=300) == 0, process.stderr.read().decode()
    logs = "".join(path.read_text() for path in sweep.glob(".submitit/*/*_log.*"))
    assert re.search(r"stopped after [\d,]+ env steps, saved", logs)
    assert "Requeued job" in logs
    assert re.search(r"resuming after [\d,]+ env steps", logs)
    assert histories(sweep) == reference


def ray_jobs(directory):
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_job = (process / "cmdline").read_bytes().startswith(b"ray::_run")
            if is_job and (process / "cwd").readlink() == directory:
                found.append(int(process.name))
    return found


@pytest.mark.slow
def test_jobs_on_ray_whose_node_is_lost_resume_from_their_mirrors(tmp_path, environment, reference):
    pytest.importorskip("ray")
    sweep, store = tmp_path / "sweep", tmp_path / "store"
    command = [*MULTIRUN, f"hydra.sweep.dir={sweep}", f"checkpoint.mirror=file://{store}"]
    command += ["hydra/launcher=ray", "hydra.launcher.address=local", "hydra.launcher.num_cpus=0.5"]
    with subprocess.Popen(
        command, env=environment, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        wait_until(lambda: list(store.glob("*/checkpoints/*.complete")), 200, process)
        for job in ray_jobs(tmp_path):
            os.kill(job, signal.SIGKILL)
        for name in ("0-seed0", "1-seed1"):
            shutil.rmtree(sweep / name)
        printed = process.communicate(timeout=300)[0]
    assert process.returncode == 0, printed
    assert re.search(r"resuming after [\d,]+ env steps", printed)
    assert histories(sweep) == reference
    assert without_times(history(store / "1-seed1")) == reference[1]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["submitit_local", "joblib"])
def test_a_job_that_is_refused_in_another_process_is_reported_in_one_line(tmp_path, environment, launcher):
    command = [*MULTIRUN, f"hydra.sweep.dir={tmp_path}/sweep", f"hydra/launcher={launcher}", "arch.num_devices=7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    summary = done.stderr.splitlines()[-1]
    assert summary.startswith(f"stoix-like: 2 of 2 jobs failed: {tmp_path}/sweep/0-seed0 (arch.num_devices=7 ")


RULE = "-" * 40
LOST = [
    (
        "UncompletedJobError",
        "Job 12_0 (task: 0) with path /s/12_0_result.pkl\nhas not produced any output (state: OUT_OF_MEMORY)\n"
        f"Error stream produced:\n{RULE}\nresuming\noom_kill event\n",
        "Job 12_0 (task: 0) with path /s/12_0_result.pkl has not produced any output (state: OUT_OF_MEMORY)"
        " oom_kill event; other jobs may still be running",
    ),
    (
        "FailedJobError",
        f"Job (task=0) failed during processing with trace:\n{RULE}\nTraceback\nImportError: no x\n\n{RULE}\n"
        "You can check full logs with 'job.stderr(0)'\n  - /s/12_0_log.err\n  - /s/12_0_log.out",
        "ImportError: no x - /s/12_0_log.out; other jobs may still be running",
    ),
    ("UncompletedJobError", "Job not requeued", "Job not requeued; other jobs may still be running"),
    ("TerminatedWorkerError", "A worker was killed.\nThe exit codes are {SIGKILL}", "A worker was killed."),
]


@pytest.mark.parametrize(("name", "text", "said"), LOST, ids=[name for name, _, _ in LOST])
def test_an_error_of_a_launcher_is_one_line_that_names_the_job(name, text, said):
    assert str(jobs.failure(type(name, (Exception,), {})(text))) == f"a job failed: {said}"


@pytest.mark.slow
def test_a_job_that_diverges_does_not_keep_the_others_from_running(tmp_path, environment):
    sweep = tmp_path / "sweep"
    command = [*MULTIRUN[:3], f"hydra.sweep.dir={sweep}", *toys.overrides(nan_at=-1), "system.nan_at=2,-1"]
    command += ["env=probe/value", "logger=silent", "arch.total_num_envs=4", "arch.num_evaluation=1"]
    command += ["arch.total_timesteps=64"]
    # The same command trains the job that failed again, and no other.
    for printed in ("", f"{sweep}/1-seed42 is complete"):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
        failed, summary = (line for line in done.stderr.splitlines() if "non-finite" in line)
        assert done.returncode == 1
        assert failed.startswith(f"{sweep}/0-seed42: training diverged: train/reward became non-finite in update 2")
        assert summary.startswith(f"stoix-like: 1 of 2 jobs failed: {sweep}/0-seed42 (TrainingError: training diverged")
        assert printed in done.stdout
        assert len(history(sweep / "1-seed42")) == 2
