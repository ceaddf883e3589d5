import errno
import itertools
import json
import os
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stoix_like
from stoix_like.errors import HostEnvironmentError, TrainingError
from stoix_like.run.training_loop import TrainingLoop
from stoix_like.storage import checkpoint
from stoix_like.storage.recorded_runs import FAILED, read_run
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.utils.jax_utils import named
from support.comparisons import assert_same_state, without_times
from support.custom_envs import Corridor
from support.selections import first
from support.set_ups import loop_of
from support.toy_runs import TOY_RUN, interrupt_at_check, restored, toy_loop
from support.trained_runs import PENDULUM

SMALL = [
    *("env=probe/observed_value", "network.actor_network.pre_torso.layer_sizes=[8]"),
    *("system.rollout_length=4", "system.epochs=1", "arch.total_num_envs=4", "arch.num_eval_episodes=2"),
    *("arch.total_timesteps=320", "arch.num_evaluation=3"),
]
OFF_POLICY = ["system.warmup_steps=8", "system.total_buffer_size=256", "system.total_batch_size=8"]
PPO = ["system=ppo/ff_ppo", "network.critic_network.pre_torso.layer_sizes=[8]", "system.num_minibatches=1"]
DQN = ["system=q_learning/ff_dqn", *OFF_POLICY]
SAC = ["system=sac/ff_sac", "env=probe/continuous_policy", *OFF_POLICY]
POPULATION = ["arch.population.hyperparams={actor_lr: {log_uniform: [1e-4, 1e-2]}}", "arch.population.size=3"]
TOY = [*TOY_RUN[:-4], *TOY_RUN[-3:]]
RUNS = {
    "on-policy": [*PENDULUM, "arch.total_timesteps=256", "arch.num_evaluation=3"],
    "off-policy": [*SMALL, *DQN],
    "off-policy population": [*SMALL, *SAC, *POPULATION],
    "on-policy population": [*SMALL, *PPO, *POPULATION, "arch.population.pbt.every_evals=1"],
    "recurrent shards": [*SMALL, *PPO, "system=ppo/rec_ppo", "arch.num_devices=2", "logger.every_updates=2"],
}


@pytest.mark.parametrize("run", first(1, [*RUNS]))
def test_a_run_transfers_nothing_implicitly_and_donates_its_whole_state(run):
    loop = loop_of(*RUNS[run])
    before = loop.state
    with jax.transfer_guard("disallow"):
        loop.train()
    kept = [jax.tree_util.keystr(path) for path, leaf in jax.tree.leaves_with_path(before) if not leaf.is_deleted()]
    assert not kept
    assert loop.progress.updates == loop.setup.plan.num_updates > 1


@pytest.mark.optimized
@pytest.mark.parametrize("population", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_stopped_within_an_interval_is_bit_identical_to_an_uninterrupted_run(tmp_path, monkeypatch, population):
    size = f"arch.population.size={population}"
    whole = toy_loop(tmp_path / "whole", size)
    whole.train()
    whole.writer.close()
    with monkeypatch.context() as patched:
        # 20 updates in intervals of 5: the seventh check is after the second update of the second interval.
        interrupt_at_check(patched, 7)
        with pytest.raises(KeyboardInterrupt):
            toy_loop(tmp_path / "run", size).train()
    assert checkpoint.steps(tmp_path / "run")[-1] == 7 * 16
    resumed = restored(tmp_path / "run", size)
    assert not resumed.missing
    resumed.train()
    resumed.writer.close()
    assert without_times(resumed.history) == without_times(whole.history)
    assert_same_state(resumed.state, whole.state)
    assert checkpoint.steps(tmp_path / "run") == checkpoint.steps(tmp_path / "whole")


@pytest.mark.optimized
@pytest.mark.slow
def test_the_last_checkpoint_is_tried_once_more(tmp_path, monkeypatch, capsys):
    save, calls = checkpoint.Writer.save, itertools.count(1)

    def fail_until(number):
        def failing(writer, step, items, host_state):
            # A file where the directory should be, for the first calls.
            if next(calls) < number:
                writer.directory.touch()
            elif writer.directory.is_file():
                writer.directory.unlink()
            save(writer, step, items, host_state)

        return failing

    def train(name, *overrides):
        return stoix_like.train("ppo/ff_ppo", [*TOY_RUN, "logger=silent", *overrides], run_dir=tmp_path / name)

    # Four checkpoints, and one more attempt.
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.Writer, "save", fail_until(5))
        result = train("run")
    assert result.summary["checkpoint/env_steps"] == 320
    assert capsys.readouterr().err.count("\n") == 1
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint.Writer, "save", fail_until(100))
        with pytest.raises(TrainingError, match="no usable checkpoint was kept in .*parameters.npz"):
            train("lost")
    assert json.loads((tmp_path / "lost/summary.json").read_text())["checkpoint/env_steps"] is None
    assert read_run(tmp_path / "lost").status == FAILED
    allocate, allocations = os.posix_fallocate, itertools.count(1)

    def fill_disk(*args):
        if next(allocations) > 2:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return allocate(*args)

    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", fill_disk)
        message = "the newest checkpoint in .* is of 160 of 320 env steps: none after it .*parameters.npz"
        with pytest.raises(TrainingError, match=message):
            train("old")
    assert read_run(tmp_path / "old").status == FAILED
    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, "write_summary", lambda directory, summary: "the results were not written: full")
        with pytest.raises(TrainingError, match="^the results were not written: full: write them with: stoix-like"):
            train("unwritten")
        with pytest.raises(TrainingError, match="^the results were not written: full$"):
            train("unwritten_without_checkpoints", "checkpoint.keep=0")
    assert stoix_like.resume(tmp_path / "unwritten").summary["env_steps"] == 320
    whole = restored(tmp_path / "run")
    for rescued in ("lost", "old"):
        with np.load(tmp_path / rescued / "parameters.npz") as arrays:
            chex.assert_trees_all_equal(dict(arrays), named(whole.state.shared))


@pytest.mark.optimized
@pytest.mark.slow
def test_a_signal_with_a_failing_writer_writes_the_parameters(tmp_path, monkeypatch, capsys):
    interrupt_at_check(monkeypatch, 7)
    loop = toy_loop(tmp_path, "checkpoint.every_evals=null")
    loop.writer.directory.write_text("a file where the directory should be")
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    error = capsys.readouterr().err
    assert "cannot write a checkpoint" in error
    assert "stopped after 112 env steps, without a usable checkpoint: its parameters and stat" in error
    with np.load(tmp_path / "parameters.npz") as arrays:
        chex.assert_trees_all_equal(dict(arrays), named(loop.state.shared))


@pytest.mark.optimized
@pytest.mark.slow
def test_a_signal_during_the_absolute_metric_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    # 20 checks during training, and 7 of the 10 batches of the absolute metric.
    interrupt_at_check(monkeypatch, 27)
    loop = toy_loop(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        loop.train()
    assert checkpoint.steps(tmp_path)[-1] == 320
    assert len(loop.history) == 5


@pytest.mark.optimized
@pytest.mark.slow
def test_a_checkpoint_of_an_evaluation_replaces_an_earlier_one_at_the_same_step(tmp_path, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt_at_check(patched, 7)
        with pytest.raises(KeyboardInterrupt):
            toy_loop(tmp_path).train()
    resumed = restored(tmp_path, "arch.total_timesteps=112")
    resumed.train()
    resumed.writer.close()
    history = checkpoint.read_host_state(tmp_path, 112)["progress"]["history"]
    assert [record["env_steps"] for record in history] == [0, 80, 112]
    assert "steps_per_second" not in history[-1]  # Nothing of the interval was left to train.


class Broken(Corridor):
    """A corridor that pays NaN from the eighth step of an episode on, in the second update."""

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        return state, timestep._replace(reward=jnp.where(state[1] >= 8, jnp.nan, timestep.reward))


class Blind(Corridor):
    """A corridor that shows NaN from there on."""

    def step(self, key, state, action):
        state, timestep = super().step(key, state, action)
        view = jnp.where(state[1] >= 8, jnp.nan, timestep.observation.agent_view)
        return state, timestep._replace(observation=timestep.observation._replace(agent_view=view))


@pytest.mark.optimized
@pytest.mark.parametrize(
    ("kind", "words", "what"),
    first(
        1,
        [
            (Broken, TOY, "a reward of .*/Broken and train/reward became non-finite in update 2"),
            (Broken, [*TOY, "arch.population.size=2"], "all 2 members"),
            (
                Blind,
                [*SMALL[1:], *PPO[1:], "system.normalize_observations=true"],
                "an observation of .*/Blind and train/.* became non-finite in update",
            ),
        ],
    ),
)
def test_what_an_environment_gives_is_named_where_it_is_nan(tmp_path, kind, words, what):
    with pytest.raises(stoix_like.TrainingError, match=f"training diverged: {what}"):
        stoix_like.train("ppo/ff_ppo", [*words, "logger=silent"], env=kind(100), run_dir=tmp_path / "run")


@pytest.mark.optimized
@pytest.mark.slow
@pytest.mark.parametrize("keep", [1, 0])
def test_a_directory_that_is_deleted_while_its_run_trains_is_written_again(tmp_path, capfd, keep):
    run_dir = tmp_path / "run"

    class Deleting(stoix_like.callbacks.Callback):
        def on_evaluation(self, record, policy):
            if record["env_steps"] == 160:
                run_dir.rename(tmp_path / "elsewhere")

    words = [*TOY_RUN, f"checkpoint.keep={keep}", "logger=silent"]
    saved = f"saved; continue with: stoix-like resume {run_dir}" if keep else "nothing was saved"
    message = f"{run_dir} was deleted or moved while the run trained; stopped after 160 env steps, {saved}"
    with pytest.raises(stoix_like.TrainingError, match=f"^{re.escape(message)}$"):
        stoix_like.train("ppo/ff_ppo", words, run_dir=run_dir, callbacks=[Deleting()])
    assert capfd.readouterr().err == ""
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert [record["env_steps"] for record in records] == [0, 80, 160]
    assert (run_dir / "failure.txt").read_text().startswith("LostDirectoryError")
    result = stoix_like.resume(run_dir, trust=True, callbacks=[stoix_like.callbacks.Callback()])
    assert result.history[-1]["env_steps"] == 320


@pytest.mark.slow
def test_an_evaluation_that_failed_comes_first_under_any_schedule(tmp_path, monkeypatch):
    """An environment fails in the evaluation after update 10 of 20; what is left of the budget is trained."""
    loop, evaluate = toy_loop(tmp_path), TrainingLoop.evaluate

    def failing(self):
        if self.progress.updates == 10:
            raise HostEnvironmentError("lost")
        return evaluate(self)

    monkeypatch.setattr(TrainingLoop, "evaluate", failing)
    with pytest.raises(HostEnvironmentError, match="lost; stopped after 160 env steps, saved"):
        loop.train()
    monkeypatch.setattr(TrainingLoop, "evaluate", evaluate)
    again = restored(tmp_path, "arch.num_evaluation=1")
    again.train()
    assert [record["updates"] for record in again.history] == [0, 5, 10, 20]
    assert again.progress.updates == 20
