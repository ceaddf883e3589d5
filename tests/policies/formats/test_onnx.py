"""Policies as ONNX graphs."""

import jax
import numpy as np
import onnxruntime
import pytest
from tiny_dreamer import TINY
from untrained import untrained

from stoix_like.policies.make import make_policy


@pytest.mark.slow
@pytest.mark.parametrize("overrides", [["system=ppo/rec_ppo"], ["system=q_learning/ff_dqn"], TINY])
def test_onnx_graph_acts_as_the_policy(overrides, tmp_path):
    """Export itself compares the graph with the policy; this checks the names and the batch axis."""
    policy = make_policy(*untrained(*overrides, "env=gymnax/cartpole"), {}, greedy=True)
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "policy.onnx"))
    assert [entry.name for entry in session.get_inputs()] == list(policy.argument_shapes)
    assert [entry.name for entry in session.get_outputs()] == policy.result_names
    arrays = policy.random_arguments(jax.random.key(9), 5)
    found = session.run(None, dict(zip(policy.argument_shapes, map(np.asarray, arrays), strict=True)))
    for one, other in zip(found, jax.tree.leaves(policy.act_on(arrays, jax.random.key(0))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
