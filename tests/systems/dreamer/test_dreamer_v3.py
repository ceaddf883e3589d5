import jax
import numpy as np
import pytest

from stoix_like.architectures.types import NO_INPUTS
from stoix_like.envs import suites
from stoix_like.policies.make import make_policy
from support.programs import make_program
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
