"""Tests of DreamerV3: training in every layout, with every kind of observations and actions."""

import json
import os
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from stoix_like.architectures.types import NO_INPUTS
from stoix_like.envs import suites
from stoix_like.policies.make import make_policy
from stoix_like.storage import checkpoint
from support.programs import make_program, train
from support.tiny_dreamer import TINY
from support.untrained import untrained


@pytest.mark.slow
def test_the_initial_state_is_the_start_of_an_episode():
    """Whether the first observation is marked as such or not."""
    policy = make_policy(*untrained(*TINY, "env=gymnax/cartpole"), {})
    view = np.asarray(policy.random_observations(jax.random.key(0), 8).agent_view)
    (one, state), (other, marked) = (
        policy(view, policy.initial_state(8), is_first) for is_first in (None, np.ones(8, bool))
    )
    np.testing.assert_array_equal(one, other)
    jax.tree.map(np.testing.assert_array_equal, state, marked)


KINDS = {
    "continuous actions": ["env=gymnax/pendulum"],
    "pixels": ["env=gymnax/catch"],
    "bfloat16": ["env=gymnax/catch", "arch.compute_dtype=bfloat16"],
    "every entry a start": ["env=gymnax/cartpole", "system.latent_period=1", "system.online_sequences=0"],
    "masked pairs": ["env=gymnax", "env.env_name=masked", "env.scenario.name=masked_pair"],
    "masked parts": ["env=gymnax", "env.env_name=masked", "env.scenario.name=masked_parts"],
    "dictionaries": ["env=gymnax", "env.env_name=nested", "env.scenario.name=discrete"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_observations_and_actions_trains(monkeypatch, kind):
    """All parameters change, and stay finite in float32; the replay buffer keeps its capacity."""
    for name in ("masked", "nested"):
        monkeypatch.setitem(suites.SUITES, name, suites.Suite(f"support.{name}", "jax", ""))
    setup, program, arguments = make_program(
        [*TINY, *KINDS[kind], "system.lr_warmup_steps=1", "arch.total_timesteps=128"]
    )
    state = program.init(*arguments)
    before = jax.device_get(state.shared.params)
    state, interval = program.train(state, arguments[0], np.int32(setup.plan.num_updates), np.bool_(True), NO_INPUTS)
    assert int(interval.healthy_updates) == setup.plan.num_updates == 5
    after = jax.device_get(state.shared.params)
    assert all(np.abs(new - old).max() > 0.0 for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True))
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {np.dtype(np.float32)}
    assert state.shards.local.entries.reward.size == 256


SHORT = [*TINY, "env=gymnax/cartpole", "arch.total_timesteps=160", "system.lr_warmup_steps=1"]


@pytest.mark.slow
def test_number_of_devices_does_not_change_the_results():
    """Percentiles of returns are those of all shards. 14 steps of LaProp move parameters by 14 x 4e-5 at most."""
    _, one = train([*SHORT, "arch.num_devices=1", "arch.update_batch_size=2"])
    _, two = train([*SHORT, "arch.num_devices=2"])
    compare = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)  # noqa: E731
    jax.tree.map(compare, jax.device_get(one.shared.params), jax.device_get(two.shared.params))


@pytest.mark.slow
def test_members_have_their_own_seed_and_learning_rate():
    """Two learning rates times two seeds: the last member is the run with the second of both."""
    grid = ["arch.population.mode=grid", "arch.population.seeds=2", "arch.population.hyperparams={lr: [1e-5, 1e-3]}"]
    _, members = train([*SHORT, "arch.seed=0", *grid])
    _, alone = train([*SHORT, "arch.seed=1", "system.lr=1e-3"])
    leaves = [jax.tree.leaves(jax.device_get(state.shared.params)) for state in (members, alone)]
    distances = np.sum([np.abs(member - one).reshape(4, -1).sum(1) for member, one in zip(*leaves, strict=True)], 0)
    # LaProp makes rounding of the smallest gradients as large as its steps.
    assert distances[3] < 0.1 * distances[:3].min(), distances


@pytest.mark.slow
def test_a_killed_run_ends_like_one_that_was_not(tmp_path):
    """With pixels and bfloat16, after more entries than the replay buffer holds; every array has the same checksum."""
    given = [
        *TINY,
        *KINDS["bfloat16"],
        "arch.total_timesteps=1984",
        "arch.num_evaluation=8",
        "arch.num_eval_episodes=4",
    ]
    environment = {**os.environ, "JAX_COMPILATION_CACHE_DIR": str(tmp_path), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}

    def start(*words):
        return subprocess.Popen([sys.executable, "-m", "stoix_like", *words], env=environment)

    whole, killed = tmp_path / "whole", tmp_path / "killed"
    assert start("train", *given, f"hydra.run.dir={whole}").wait(timeout=900) == 0
    process = start("train", *given, f"hydra.run.dir={killed}")
    while not any(step > 700 for step in checkpoint.steps(killed)):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert not (killed / "summary.json").exists()
    assert start("resume", str(killed)).wait(timeout=900) == 0
    step = checkpoint.steps(whole)[-1]
    texts = [
        json.loads((run_dir / "checkpoints" / str(step) / "host_state/metadata").read_text())["text"]
        for run_dir in (whole, killed)
    ]
    one, other = (json.loads(text)["checksums"] for text in texts)
    assert one == other
    assert {"shared", "local", "rollout_state"} <= one.keys()
