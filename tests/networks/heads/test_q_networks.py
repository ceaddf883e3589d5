import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import heads
from support.compiled import run
from support.every_head import GREEDY, HEADS, KEY, parts_of
from support.selections import select


@pytest.mark.parametrize("name", select(GREEDY, quick=("q", "rainbow", "iqn")))
def test_epsilon_argument_overrides_attribute(name):
    head, _ = HEADS[name]
    x = jax.random.normal(KEY, (4, 3, 6))

    @jax.jit
    def probs(x, epsilon):
        params = jax.jit(head.init)(KEY, x)
        each, usual, one = (run(head.apply, params, x, epsilon=e) for e in (epsilon, None, 0.25))
        return [parts_of(policy)[0].probs for policy in (each, usual, one)]

    each, usual, one = probs(x, jnp.asarray([0.0, 0.5, 1.0]))
    # The best of three actions has probability 1 - 2/3 epsilon.
    np.testing.assert_allclose(each.max(-1), [[1.0, 2 / 3, 1 / 3]] * 4, rtol=1e-5)
    np.testing.assert_allclose(usual.max(-1), 1 - 0.2 / 3, rtol=1e-5)
    np.testing.assert_allclose(one.max(-1), 1 - 0.5 / 3, rtol=1e-5)


class TestDueling:
    def test_mean_action_value_equals_state_value(self):
        # q = v + a - mean a, whose mean over actions is v.
        head = heads.DuelingQNetwork(3, 0.0, (4,))
        x = jax.random.normal(KEY, (5, 6))
        params = jax.jit(head.init)(KEY, x)
        q = run(head.apply, params, x).preferences
        value = params["params"]["Dense_0"], params["params"]["MLPTorso_0"]["Dense_0"]
        hidden = jax.nn.relu(x @ value[1]["kernel"])
        np.testing.assert_allclose(q.mean(-1), (hidden @ value[0]["kernel"])[:, 0], rtol=1e-4, atol=1e-5)
