import jax
import jax.numpy as jnp
import numpy as np
import onnxruntime
import pytest

from stoix_like.errors import ConfigError
from stoix_like.policies import contract
from stoix_like.policies.make import make_policy
from support.tiny_dreamer import TINY
from support.untrained import untrained

RNN = "network.actor_network.rnn_layer"


def cell(cell_type, num_layers):
    return ["system=ppo/rec_ppo", f"{RNN}.cell_type={cell_type}", f"{RNN}.num_layers={num_layers}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides",
    # Three layers are a loop.
    [*(["system=ppo/rec_ppo"], ["system=q_learning/ff_dqn"], ["system=q_learning/rec_r2d2"], TINY), cell("gtrxl", 2)],
    ids=lambda each: each[1] if len(each) == 3 else each[0],
)
def test_onnx_graph_acts_as_the_policy(overrides, tmp_path):
    """Export itself compares the graph with the policy; this checks the names and the batch axis."""
    policy = make_policy(*untrained(*overrides, "env=gymnax/cartpole"), {}, greedy=True)
    session = onnxruntime.InferenceSession(policy.export(tmp_path / "policy.onnx"))
    # Conversion leaves jax as it was.
    assert jnp.cumsum(jnp.ones(3), 0).shape == (3,)
    assert [entry.name for entry in session.get_inputs()] == list(policy.argument_shapes)
    described = {entry["name"]: entry["shape"] for entry in contract.read(tmp_path / "policy.onnx")["inputs"]}
    assert described == {entry.name: entry.shape for entry in session.get_inputs()}
    assert [entry.name for entry in session.get_outputs()] == policy.result_names
    arrays = policy.random_arguments(jax.random.key(9), 5)
    found = session.run(None, dict(zip(policy.argument_shapes, map(np.asarray, arrays), strict=True)))
    for one, other in zip(found, jax.tree.leaves(policy.act_on(arrays, jax.random.key(0))), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_what_cannot_be_converted_is_refused_in_a_sentence(tmp_path):
    policy = make_policy(*untrained(*cell("mlstm", 1), "env=gymnax/cartpole"), {}, greedy=True)
    with pytest.raises(ConfigError, match=r"^format=onnx: jax2onnx cannot convert ppo/rec_ppo on .*: use stablehlo$"):
        policy.export(tmp_path / "policy.onnx")
    assert not (tmp_path / "policy.onnx").exists()
