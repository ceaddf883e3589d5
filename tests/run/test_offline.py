import os
import shutil
import signal

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.callbacks import Callback
from stoix_like.errors import CallbackError, ConfigError
from stoix_like.lab.aot import report, targets, topology
from stoix_like.run.programs.compile import size_keys
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.influence import effective
from support.comparisons import recorded
from support.offline_runs import SMALL, setup_of, write_cartpole
from support.set_ups import config_of


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["system=ppo/ff_ppo"], "arch=offline: system=ppo/ff_ppo learns from its own rollouts: use a system with"),
        (["system=q_learning/ff_dqn"], "arch=offline learns from recorded data: set system.data=FILE"),
        (["system=q_learning/ff_dqn", "system.data=none.npz"], "system.data=none.npz: there is no such file"),
    ],
)
def test_runs_that_cannot_learn_are_refused(overrides, words):
    with pytest.raises(ConfigError, match=words):
        setup_of("arch=offline", "env=gymnax/cartpole", *overrides)


@pytest.mark.slow
def test_members_that_evolve_keep_their_last_parameters(tmp_path):
    words = [*SMALL, write_cartpole(tmp_path / "data.npz"), "arch.total_timesteps=64", "arch.population.size=4"]
    evolving = ["arch.population.pbt.every_evals=4", "+arch.population.hyperparams.q_lr={log_uniform: [1e-4, 1e-2]}"]
    result = stoix_like.train("q_learning/ff_dqn", [*words, *evolving], run_dir=tmp_path / "run")
    assert result.summary["absolute/env_steps"] == [64] * 4
    assert stoix_like.load_policy(tmp_path / "run").selected.startswith("last of 8 evaluations")


def test_the_budget_counts_gradient_steps(tmp_path):
    words = ["system=q_learning/ff_dqn", *SMALL, write_cartpole(tmp_path / "data.npz"), "system.epochs=8"]
    setup = setup_of(*words, "arch.total_timesteps=85")
    assert (setup.plan.num_updates, setup.plan.steps_per_update, setup.plan.warmup_steps) == (10, 8, 0)
    # Exploration has no effect where nothing acts.
    assert effective(setup.parts, setup.env, ["training_epsilon", "q_lr"]) == {"q_lr"}
    with pytest.raises(ConfigError, match=r"arch.total_timesteps=7 gradient steps are too few for one update of 8"):
        setup_of(*words, "arch.total_timesteps=7")


class Stopping(Callback):
    def __init__(self, **at):
        self.at = at

    def on_evaluation(self, record, policy):
        if record["env_steps"] == self.at.get("error"):
            raise KeyError("lost")
        if record["env_steps"] == self.at.get("signal"):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
def test_messages_name_gradient_steps(tmp_path, capsys):
    words = [*SMALL, write_cartpole(tmp_path / "data.npz"), "arch.total_timesteps=64", "system.epochs=8"]
    with pytest.raises(CallbackError, match="stopped after 16 gradient steps, saved"):
        stoix_like.train("q_learning/ff_dqn", words, run_dir=tmp_path / "run", callbacks=[Stopping(error=16)])
    with pytest.raises(KeyboardInterrupt):
        stoix_like.resume(tmp_path / "run", callbacks=[Stopping(signal=32)])
    assert "stopped after 32 gradient steps, saved" in capsys.readouterr().err
    result = stoix_like.resume(tmp_path / "run", ["logger.console.enabled=true"])
    assert "resuming after 32 gradient steps" in capsys.readouterr().out
    assert " after 64 gradient steps, 9 evaluations, " in repr(result)
    assert ", after 64 gradient steps; seed 0" in stoix_like.collect(result.run_dir, 8).header.notes[0]
    online = [word for word in words if word != "arch=offline"] + ["arch.total_timesteps=4000"]
    source = warm_start.find(setup_of("system=q_learning/ff_dqn", *online, f"arch.init_from={result.run_dir}"))
    assert source.note.endswith(" parameters, trained for 64 gradient steps")


@pytest.mark.slow
def test_a_report_for_other_devices_counts_gradient_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(topology, "find_devices", lambda target, count: jax.local_devices())
    words = ["system=offline/bc", *SMALL, write_cartpole(tmp_path / "data.npz")]
    compiled = report.compile_for(config_of(*words), targets.find_target("h200"))
    text = "\n".join(compiled.lines())
    assert " per gradient step; " in text
    assert text.count("environment") == 0
    assert text.count(" gradient steps per second") == 1
    small = compiled._replace(setup=compiled.setup._replace(device_memory=1000))
    with pytest.raises(ConfigError, match="is available: use a smaller system.total_batch_size$"):
        small.check()


def test_the_sizes_of_a_run_depend_on_what_it_samples_and_whether_it_acts():
    def keys(*words):
        return size_keys(config_of("system=q_learning/ff_dqn", "system.data=some.npz", *words))

    acting = ("arch.total_num_envs", "system.rollout_length")
    assert keys() == ("system.total_buffer_size", *acting)
    assert keys("system.data_fraction=1") == ("system.total_batch_size", *acting)
    assert keys("arch=offline") == ("system.total_batch_size",)
    assert size_keys(config_of()) == acting


def test_batches_of_data_may_be_larger_than_the_buffer_that_is_not_there(tmp_path):
    data, sizes = write_cartpole(tmp_path / "data.npz"), ["system.total_buffer_size=1", "system.n_step=3"]
    setup = setup_of("system=q_learning/ff_dqn", *SMALL, data, *sizes, "system.final_data_fraction=0.2")
    unused = "system.final_data_fraction=0.2 has no effect with arch=offline, where all is recorded"
    assert unused in setup.plan.notes
    sizes = ["system.total_batch_size=1", "arch.num_devices=1"]
    with pytest.raises(ConfigError, match=r"of one prioritised sample per shard, .*: use at least 2"):
        setup_of("system=q_learning/ff_rainbow", "env=gymnax/cartpole", data, *sizes)


@pytest.mark.slow
def test_a_stopped_run_ends_with_the_same_bytes(tmp_path):
    """The data may move meanwhile, and may not change."""
    words = [*SMALL, write_cartpole(tmp_path / "data.npz"), "arch.total_timesteps=640"]
    whole = stoix_like.train("offline/bc", words, run_dir=tmp_path / "whole")
    stopped, moved = tmp_path / "stopped", tmp_path / "moved.npz"
    with pytest.raises(CallbackError, match="saved"):
        stoix_like.train("offline/bc", words, run_dir=stopped, callbacks=[Stopping(error=240)])
    shutil.move(tmp_path / "data.npz", moved)
    with pytest.raises(ConfigError, match="is not what the run has learned from so far: use the same content"):
        stoix_like.resume(stopped, [write_cartpole(tmp_path / "other.npz", seed=1)])
    summary = stoix_like.resume(stopped, [f"system.data={moved}"]).summary
    assert recorded(stopped) == recorded(whole.run_dir)
    assert summary["absolute/episode_return_mean"] == whole.summary["absolute/episode_return_mean"]
    assert summary["absolute/env_steps"] == summary["env_steps"] == 640


@pytest.mark.slow
def test_members_are_the_same_on_two_devices(tmp_path):
    sizes = ["arch.population.size=2", "arch.total_timesteps=800", "system.reset_every=96"]
    words = [*SMALL, write_cartpole(tmp_path / "data.npz"), *sizes]
    one, two = (
        stoix_like.train("q_learning/ff_dqn", [*words, f"arch.num_devices={number}"], run_dir=tmp_path / str(number))
        for number in (1, 2)
    )
    # Two members of one device are one batch, which rounds otherwise than two batches of one.
    np.testing.assert_allclose(one.history[1]["train/q_loss"], two.history[1]["train/q_loss"], rtol=1e-4)


@pytest.mark.slow
def test_an_offline_run_goes_on_online_with_its_data(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    words = [*SMALL, data, "arch.total_timesteps=800"]
    offline = stoix_like.train("q_learning/ff_dqn", words, run_dir=tmp_path / "one")
    words = [*SMALL[1:], data, f"arch.init_from={offline.run_dir}", "arch.total_timesteps=4000"]
    result = stoix_like.train("q_learning/ff_dqn", words, run_dir=tmp_path / "two")
    first = result.history[0]["env_steps"]
    assert (first, result.history[-1]["env_steps"]) == (1024, 3968)
