"""Programs have other forms on accelerators, with the same results up to rounding."""

import jax
import numpy as np
import pytest
from platforms import take_accelerator_forms
from programs import train

from stoix_like.utils import platform

SMALL = ["arch.total_num_envs=8", "arch.compile_cache=false"]
RUNS = {
    "ppo": ["system=ppo/ff_ppo", "env=gymnax/cartpole", "network=mlp", "system.rollout_length=16", "system.epochs=2"],
}


@pytest.mark.parametrize("name", RUNS)
def test_two_updates_are_those_of_a_cpu(name, monkeypatch):
    overrides = [*RUNS[name], *SMALL, "arch.total_timesteps=256", "arch.num_evaluation=1"]
    _, expected = train(overrides)
    take_accelerator_forms(monkeypatch)
    _, state = train(overrides)
    assert jax.tree.structure(state) == jax.tree.structure(expected)
    compared = [state._replace(shards=state.shards._replace(key=())) for state in (state, expected)]
    for leaf, other in zip(*map(jax.tree.leaves, compared), strict=True):
        np.testing.assert_allclose(leaf, other, rtol=2e-3, atol=2e-5)


def test_the_mesh_decides_on_the_platform():
    assert platform.on_cpu()
    mesh = jax.make_mesh((1,), ("device",))
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh.update(abstract_device=None)):
        assert platform.on_cpu()
