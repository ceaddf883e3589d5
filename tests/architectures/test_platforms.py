"""Programs have other forms on accelerators, with the same results up to rounding."""

import jax
import numpy as np
import pytest
from platforms import take_accelerator_forms
from programs import train

from stoix_like.utils import platform

SMALL = ["arch.total_num_envs=8", "arch.compile_cache=false"]
REPLAY = ["system.warmup_steps=16", "system.rollout_length=8", "system.epochs=2", "system.total_batch_size=32"]
RUNS = {
    "ppo": ["system=ppo/ff_ppo", "env=gymnax/cartpole", "network=mlp", "system.rollout_length=16", "system.epochs=2"],
    "pqn": ["system=q_learning/ff_pqn", "env=gymnax/cartpole", "system.rollout_length=16", "system.epochs=2"],
    "rec_ppo": ["system=ppo/rec_ppo", "env=gymnax/cartpole", "system.rollout_length=16", "system.epochs=2"],
    "dqn": ["system=q_learning/ff_dqn", "env=gymnax/cartpole", *REPLAY],
    "sac": ["system=sac/ff_sac", "env=gymnax/pendulum", *REPLAY],
    "crossq": ["system=sac/ff_crossq", "env=gymnax/pendulum", *REPLAY],
    "td3": ["system=ddpg/ff_td3", "env=gymnax/pendulum", *REPLAY],
    "awr": ["system=awr/ff_awr", "env=gymnax/cartpole", "network=mlp_shared", *REPLAY],
}


@pytest.mark.parametrize("name", ["ppo", *(pytest.param(name, marks=pytest.mark.slow) for name in list(RUNS)[1:])])
def test_two_updates_are_those_of_a_cpu(name, monkeypatch):
    overrides = [*RUNS[name], *SMALL, "arch.total_timesteps=256", "arch.num_evaluation=1"]
    _, expected = train(overrides)
    take_accelerator_forms(monkeypatch)
    _, state = train(overrides)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    for leaf, other in zip(*map(jax.tree.leaves, (state, expected)), strict=True):
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            continue
        np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=2e-5)


def test_the_mesh_decides_on_the_platform():
    assert platform.on_cpu()
    mesh = jax.make_mesh((1,), ("device",))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(abstract_device=None)):
        assert platform.on_cpu()
