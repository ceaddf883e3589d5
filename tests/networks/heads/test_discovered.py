import jax
import jax.numpy as jnp
import numpy as np
import pytest

from support.compiled import run
from support.every_head import HEADS, KEY


@pytest.mark.slow
def test_predictions_about_actions_are_those_of_an_lstm_cell():
    """The cell takes the action from the state that the embedding determines."""
    head = HEADS["discovered"][0]
    x = jax.random.normal(KEY, (2, 6))
    params = head.init(KEY, x)
    found = run(head.apply, params, x).q
    weights = params["params"]
    # All biases are initially zero.
    cell = x @ weights["root"]["kernel"]
    kernel = jnp.concatenate([weights["action"]["kernel"], weights["state"]["kernel"]])
    for action in range(3):
        inputs = jnp.concatenate([jnp.eye(3)[jnp.asarray([action, action])], jnp.tanh(cell)], -1)
        take, new, keep, show = jnp.split(inputs @ kernel, 4, -1)
        state = jax.nn.sigmoid(keep + 1.0) * cell + jax.nn.sigmoid(take) * jnp.tanh(new)
        hidden = jax.nn.sigmoid(show) * jnp.tanh(state)
        hidden = jax.nn.relu(hidden @ weights["q_torso"]["Dense_0"]["kernel"])
        np.testing.assert_allclose(found[:, action], hidden @ weights["q"]["kernel"], rtol=1e-4, atol=1e-6)
