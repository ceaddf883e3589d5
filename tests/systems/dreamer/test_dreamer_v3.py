"""Tests of DreamerV3: its sizes, and training in every layout, with every kind of observations and actions."""

import jax
import numpy as np
import pytest
from programs import make_program
from tiny_dreamer import TINY

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import suites
from stoix_like.errors import ConfigError


def config(*overrides):
    return parse_config(compose_config([*TINY, "env=gymnax/cartpole", *overrides])).system


def test_the_train_ratio_determines_the_gradient_steps():
    """4 environments of 2 shards, 4 steps: 32 steps of 4 replayed ones each, in batches of 4 x 8."""
    assert config().gradient_steps(4, 2) == 4
    with pytest.raises(ConfigError, match=r"train_ratio=3 makes 48 replayed .* no multiple of 32 .*train_ratio=4"):
        config("system.train_ratio=3").check(4, 1)
    with pytest.raises(ConfigError, match=r"return_percentile_low=95.0 must be less than"):
        config("system.return_percentile_low=95").check(4, 1)


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
        monkeypatch.setitem(suites.SUITES, name, suites.Suite(name, "jax", ""))
    setup, program, arguments = make_program(
        [*TINY, *KINDS[kind], "system.lr_warmup_steps=1", "arch.total_timesteps=128"]
    )
    state = program.init(*arguments)
    before = jax.device_get(state.shared.params)
    state, interval = program.train(state, arguments[0], np.int32(setup.plan.num_updates), np.bool_(True))
    assert int(interval.healthy_updates) == setup.plan.num_updates == 5
    after = jax.device_get(state.shared.params)
    assert all(np.abs(new - old).max() > 0.0 for old, new in zip(*map(jax.tree.leaves, (before, after)), strict=True))
    assert {leaf.dtype for leaf in jax.tree.leaves(after)} == {np.dtype(np.float32)}
    assert state.shards.local.entries.reward.size == 256
