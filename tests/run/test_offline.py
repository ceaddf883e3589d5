"""Runs that learn from data alone: their budget, what they refuse, and how they resume."""

import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import pytest

import stoix_like
from stoix_like.aot import report, targets, topology
from stoix_like.base_types import Observation
from stoix_like.callbacks import Callback
from stoix_like.config import parse_config
from stoix_like.data.dataset import DataHeader, DataSet
from stoix_like.data.files import read_data, write_data
from stoix_like.errors import CallbackError, ConfigError
from stoix_like.run.programs.compile import size_keys
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.influence import find_influence
from stoix_like.run.set_up.setup import set_up
from stoix_like.storage import checkpoint
from support.comparisons import recorded
from support.composed import compose_config

COMMAND = str(Path(sys.executable).parent / "stoix-like")
SMALL = [
    *("arch=offline", "env=gymnax/cartpole", "arch.num_eval_episodes=4", "arch.num_evaluation=8", "logger=silent"),
    *("network.actor_network.pre_torso.layer_sizes=[8]", "system.total_batch_size=32", "arch.num_devices=1"),
    *("checkpoint.every_evals=1", "checkpoint.keep=9"),
]


def write_cartpole(path, episodes=20, seed=0):
    """Write episodes of ten random steps, of which every other one terminates."""
    rng, rows = np.random.default_rng(seed), 11 * episodes
    number, row = np.divmod(np.arange(rows), 11)
    data = DataSet(
        DataHeader(environment="gymnax/CartPole-v1"),
        Observation(rng.normal(size=(rows, 4)).astype(np.float32)),
        rng.integers(0, 2, rows).astype(np.int32),
        np.where(row < 10, 1.0, 0.0).astype(np.float32),
        (row == 9) & (number % 2 == 0),
        (row == 9) & (number % 2 == 1),
        row < 10,
    )
    write_data(path, data.with_statistics())
    return f"system.data={path}"


def setup_of(*overrides):
    return set_up(parse_config(compose_config(overrides)))


REFUSED = {
    "ppo": (["system=ppo/ff_ppo"], r"arch=offline: system=ppo/ff_ppo learns from its own rollouts: use a system with"),
    "no data": (["system=q_learning/ff_dqn"], r"arch=offline learns from recorded data: set system.data=FILE"),
    "no file": (["system=q_learning/ff_dqn", "system.data=none.npz"], r"system.data=none.npz: there is no such file"),
}


@pytest.mark.parametrize(("overrides", "message"), REFUSED.values(), ids=REFUSED)
def test_runs_that_cannot_learn_are_refused(overrides, message):
    with pytest.raises(ConfigError, match=message):
        setup_of("arch=offline", "env=gymnax/cartpole", *overrides)


def test_recorded_rewards_are_scaled_and_clipped_as_those_of_training(tmp_path):
    words = ["system=q_learning/ff_dqn", *SMALL, write_cartpole(tmp_path / "data.npz")]
    data = setup_of(*words, "env.reward_scale=0.1").spec.data
    np.testing.assert_allclose(np.unique(data.reward), [0.0, 0.1], rtol=1e-6)
    data = setup_of(*words, "env.reward_scale=3", "env.reward_clip=0.5").spec.data
    np.testing.assert_array_equal(np.unique(data.reward), [0.0, 0.5])


def test_a_task_has_the_data_of_its_scenario(tmp_path, monkeypatch):
    """CartPole without velocities has a name of its own, and data of CartPole-v1; `~` is the home directory."""
    write_cartpole(tmp_path / "data.npz")
    data = read_data(tmp_path / "data.npz")
    write_data(tmp_path / "seen.npz", data._replace(observation=Observation(data.observation.agent_view[:, ::2])))
    monkeypatch.setenv("HOME", str(tmp_path))
    words = ["env=gymnax/cartpole_no_velocity", "system.data='~/seen.npz'"]
    config = parse_config(compose_config(["system=q_learning/ff_dqn", *SMALL, *words]))
    assert config.environment_name == "gymnax/CartPole-v1-no-velocity"
    assert set_up(config).spec.data.observation.agent_view.shape == (220, 2)
    # The file may also have the name of the task, as those of others do.
    seen, header = (
        read_data(tmp_path / "seen.npz"),
        dataclasses.replace(data.header, environment="CartPole-v1-no-velocity"),
    )
    write_data(tmp_path / "named.npz", seen._replace(header=header))
    words = [*words[:1], f"system.data={tmp_path / 'named.npz'}"]
    assert set_up(parse_config(compose_config(["system=q_learning/ff_dqn", *SMALL, *words]))).spec.data is not None


def test_data_of_environments_that_were_set_up_in_another_way(tmp_path):
    """Data with longer steps are refused; other differences are said."""
    write_cartpole(tmp_path / "data.npz")
    data = read_data(tmp_path / "data.npz")

    def rewrite(name, **arguments):
        header = dataclasses.replace(data.header, run="0" * 64, arguments=arguments)
        write_data(tmp_path / name, data._replace(header=header))
        return setup_of(
            "system=q_learning/ff_dqn", *SMALL, f"system.data={tmp_path / name}", "env.time_limit=20"
        ).plan.notes

    notes = rewrite("sticky.npz", sticky_actions=0.25, reward_scale=0.5, time_limit=20)
    assert [note for note in notes if "recorded with" in note] == [
        "the data were recorded with env.sticky_actions=0.25, and the run has 0.0"
    ]
    with pytest.raises(ConfigError, match=r"env.action_repeat=4, and the run has 1: use env.action_repeat=4"):
        rewrite("repeated.npz", action_repeat=4)


def test_returns_of_the_data_bound_values_of_one_discount_and_one_scale():
    words = ["arch=offline", "env=gymnax/pendulum", "system=sac/ff_sac", "system.data=none.npz", "system.cql_coef=1"]
    with pytest.raises(ConfigError, match="system.normalize_rewards=true does not fit system.calibrated=true"):
        setup_of(*words, "system.calibrated=true", "system.normalize_rewards=true")


@pytest.mark.slow
def test_members_that_evolve_keep_their_last_parameters(tmp_path):
    words = [*SMALL, write_cartpole(tmp_path / "data.npz"), "arch.total_timesteps=64", "arch.population.size=4"]
    evolving = ["arch.population.pbt.every_evals=4", "+arch.population.hyperparams.q_lr={log_uniform: [1e-4, 1e-2]}"]
    result = stoix_like.train("q_learning/ff_dqn", [*words, *evolving], run_dir=tmp_path / "run")
    assert result.summary["absolute/env_steps"] == [64] * 4
    assert stoix_like.load_policy(tmp_path / "run").selected.startswith("last of 8 evaluations")


def test_the_budget_counts_gradient_steps(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    plan = setup_of("system=q_learning/ff_dqn", *SMALL, data, "system.epochs=8", "arch.total_timesteps=85").plan
    assert (plan.num_updates, plan.steps_per_update, plan.warmup_steps) == (10, 8, 0)
    with pytest.raises(ConfigError, match=r"arch.total_timesteps=7 gradient steps are too few for one update of 8"):
        setup_of("system=q_learning/ff_dqn", *SMALL, data, "system.epochs=8", "arch.total_timesteps=7")


class Stopping(Callback):
    """Raises an error at one evaluation, and interrupts the process at another one."""

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


def test_a_report_for_other_devices_counts_gradient_steps(tmp_path, monkeypatch):
    monkeypatch.setattr(topology, "find_devices", lambda target, count: jax.local_devices())
    words = ["system=offline/bc", *SMALL, write_cartpole(tmp_path / "data.npz")]
    compiled = report.compile_for(parse_config(compose_config(words)), targets.find_target("h200"))
    text = "\n".join(compiled.lines())
    assert " per gradient step; " in text
    assert text.count("environment") == 0
    assert text.count(" gradient steps per second") == 1
    small = compiled._replace(setup=compiled.setup._replace(device_memory=1000))
    with pytest.raises(ConfigError, match="is available: use a smaller system.total_batch_size$"):
        small.check()


def test_the_sizes_of_a_run_depend_on_what_it_samples_and_whether_it_acts():
    def keys(*words):
        return size_keys(parse_config(compose_config(["system=q_learning/ff_dqn", "system.data=some.npz", *words])))

    acting = ("arch.total_num_envs", "system.rollout_length")
    assert keys() == ("system.total_buffer_size", *acting)
    assert keys("system.data_fraction=1") == ("system.total_batch_size", *acting)
    assert keys("arch=offline") == ("system.total_batch_size",)
    assert size_keys(parse_config(compose_config([]))) == acting


def test_sizes_of_the_data_are_compared_with_those_of_the_run(tmp_path):
    data = write_cartpole(tmp_path / "data.npz", episodes=1)
    short = "10 steps are fewer than the 11 of a sequence, system.burn_in_length=3 and system.sequence_length=8: record"
    sizes = ["system.sequence_length=8", "system.burn_in_length=3"]
    with pytest.raises(ConfigError, match=short):
        setup_of("system=offline/rec_bc", "arch=offline", "env=gymnax/cartpole", data, *sizes)
    with pytest.raises(ConfigError, match=r"needs .* on every device, but only 0.000191 MiB is available"):
        set_up(parse_config(compose_config(["system=offline/bc", *SMALL, data])), device_memory=200)
    with pytest.raises(ConfigError, match=r"the data have no step_count, which the run observes"):
        setup_of("system=offline/bc", "arch=offline", "env=gymnax/cartpole", data, "env.step_count=true")


def test_batches_of_data_may_be_larger_than_the_buffer_that_is_not_there(tmp_path):
    data, sizes = write_cartpole(tmp_path / "data.npz"), ["system.total_buffer_size=1", "system.n_step=3"]
    setup = setup_of("system=q_learning/ff_dqn", *SMALL, data, *sizes, "system.final_data_fraction=0.2")
    unused = "system.final_data_fraction=0.2 has no effect with arch=offline, where all is recorded"
    assert unused in setup.plan.notes
    with pytest.raises(
        ConfigError, match=r"of one prioritised sample per shard, none is of system.data=.*: use at least 2"
    ):
        setup_of(
            "system=q_learning/ff_rainbow",
            "env=gymnax/cartpole",
            data,
            "system.total_batch_size=1",
            "arch.num_devices=1",
        )


def test_exploration_has_no_effect_where_nothing_acts(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    setup = setup_of("system=q_learning/ff_dqn", *SMALL, data)
    assert find_influence(setup.parts, setup.env, ["training_epsilon", "q_lr"]).updates == {"q_lr"}


def test_a_varied_share_of_data_has_no_effect_offline(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    with pytest.raises(
        ConfigError, match=r"hyperparams.data_fraction has 1, with which a single run has no replay buffer"
    ):
        setup_of(
            "system=q_learning/ff_dqn",
            *SMALL,
            "arch=anakin",
            data,
            "arch.population.hyperparams={data_fraction:[0.5,1]}",
        )
    with pytest.raises(ConfigError, match=r"arch.population.hyperparams.data_fraction has no effect with arch=offline"):
        setup_of("system=q_learning/ff_dqn", *SMALL, data, "arch.population.hyperparams={data_fraction:[0.1,0.2]}")


@pytest.mark.slow
def test_a_killed_run_ends_with_the_same_bytes(tmp_path):
    """A real process; the data may move meanwhile, and may not change."""
    data = write_cartpole(tmp_path / "data.npz")
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "cache")}
    words = ["system=offline/bc", *SMALL, data, "arch.total_timesteps=64000"]

    def run(*command):
        return subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True, text=True)

    run(COMMAND, "train", *words, f"hydra.run.dir={tmp_path}/whole")
    killed = tmp_path / "killed"
    with subprocess.Popen([COMMAND, "train", *words, f"hydra.run.dir={killed}"], env=environment) as process:
        end = time.monotonic() + 200
        while not any(step > 0 for step in checkpoint.steps(killed)):
            assert process.poll() is None
            assert time.monotonic() < end
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    moved = tmp_path / "moved.npz"
    shutil.move(tmp_path / "data.npz", moved)
    other = write_cartpole(tmp_path / "other.npz", seed=1)
    refused = subprocess.run(
        [COMMAND, "resume", str(killed), other], env=environment, capture_output=True, text=True, timeout=300
    )
    assert refused.returncode == 2
    assert "is not what the run has learned from so far: use the same content" in refused.stderr
    run(COMMAND, "resume", str(killed), f"system.data={moved}")
    assert recorded(killed) == recorded(tmp_path / "whole")
    one, two = (json.loads((path / "summary.json").read_text()) for path in (killed, tmp_path / "whole"))
    assert one["absolute/episode_return_mean"] == two["absolute/episode_return_mean"]
    assert one["absolute/env_steps"] == one["env_steps"] == 64000


@pytest.mark.slow
def test_members_are_the_same_on_two_devices(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    small = [override for override in SMALL if "num_devices" not in override]
    words = [*small, data, "arch.population.size=2", "arch.total_timesteps=800", "system.reset_every=96"]
    one, two = (
        stoix_like.train("q_learning/ff_dqn", [*words, f"arch.num_devices={number}"], run_dir=tmp_path / str(number))
        for number in (1, 2)
    )
    # Two members of one device are one batch, which rounds otherwise than two batches of one.
    np.testing.assert_allclose(one.history[1]["train/q_loss"], two.history[1]["train/q_loss"], rtol=1e-4)


@pytest.mark.slow
def test_an_offline_run_goes_on_online_with_its_data(tmp_path):
    data = write_cartpole(tmp_path / "data.npz")
    offline = stoix_like.train(
        "q_learning/ff_dqn", [*SMALL, data, "arch.total_timesteps=800"], run_dir=tmp_path / "one"
    )
    online = [override for override in SMALL if override != "arch=offline"]
    words = [*online, data, f"arch.init_from={offline.run_dir}", "arch.total_timesteps=4000"]
    result = stoix_like.train("q_learning/ff_dqn", words, run_dir=tmp_path / "two")
    first = result.history[0]["env_steps"]
    assert (first, result.history[-1]["env_steps"]) == (1024, 3968)


def test_actions_and_returns_of_the_data_are_those_that_the_agent_learns(tmp_path):
    """Torques are rescaled; with gamma = 1/2: 3 (1 + 2/2 + 4/4), 3 (2 + 4/2) and 3 * 4; none where it was truncated."""
    rows = np.arange(7)
    data = DataSet(
        DataHeader(environment="gymnax/Pendulum-v1"),
        Observation(np.zeros((7, 3), np.float32)),
        np.array([2, -1, 0, 0, 1, -2, 0], np.float32)[:, None],
        np.array([1, 2, 4, 0, 8, 16, 0], np.float32),
        rows == 2,
        rows == 5,
        ~np.isin(rows, (3, 6)),
    )
    write_data(tmp_path / "data.npz", data.with_statistics())
    words = ["arch=offline", "arch.num_devices=1", "env=gymnax/pendulum", "system=sac/ff_sac", "system.gamma=0.5"]
    calibrated = ["system.cql_coef=1", "system.calibrated=true", "env.reward_scale=3"]
    found = setup_of(*words, *calibrated, f"system.data={tmp_path}/data.npz").spec.data
    np.testing.assert_array_equal(found.action[:, 0], [1, -0.5, 0, 0, 0.5, -1, 0])
    np.testing.assert_array_equal(found.returns, [9, 12, 12, *[-np.inf] * 4])
    online = setup_of(*words[1:], *calibrated, f"system.data={tmp_path}/data.npz")
    assert any("bounds values only on recorded steps" in note for note in online.plan.notes)
