import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.utils.loss import ENERGIES, info_nce_loss

GAMMA = 0.5


def chain():
    """Return p(g, (s, a)) `[4, 3]` on a chain of three states, of which actions move to the left or to the right.

    From the next state s', random actions move on: p(g | s, a) = (1 - gamma) sum_k gamma^k P^k(s', g), in closed form
    the row of s' in (1 - gamma) (I - gamma P)^-1. Pairs of state and action: left of the middle state twice, and so on.
    """
    random = np.array([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5], [0.0, 0.5, 0.5]])
    future = (1 - GAMMA) * np.linalg.inv(np.eye(3) - GAMMA * random)
    successors, pairs = [1, 0, 2, 1], np.array([0.1, 0.2, 0.3, 0.4])
    return pairs[:, None] * future[successors]


@pytest.mark.parametrize("symmetric", [False, True])
def test_the_optimal_critic_is_the_log_ratio_of_densities(symmetric):
    """Its gradient of the expected loss over all batches of two is zero; with any other critic, it is not."""
    joint = chain()
    ratio = np.log(joint / joint.sum(1, keepdims=True) / joint.sum(0))
    examples = np.array(list(itertools.product(np.ndindex(joint.shape), repeat=2)))  # [144, 2, (pair, goal)]
    weight = np.prod(joint[tuple(np.moveaxis(examples, -1, 0))], axis=1)
    assert weight.sum() == pytest.approx(1.0)

    def expected_loss(critic):
        logits = critic[examples[:, :, None, 0], examples[:, None, :, 1]]
        return jnp.sum(weight * jax.vmap(lambda f: info_nce_loss(f, symmetric))(logits))

    gradient = jax.jit(jax.grad(expected_loss))
    np.testing.assert_allclose(gradient(jnp.asarray(ratio)), 0.0, atol=1e-6)
    shifted = ratio + np.arange(4.0)[:, None]  # any function of state and action
    assert bool(jnp.abs(gradient(jnp.asarray(shifted))).max() > 1e-3) == symmetric
    assert jnp.abs(gradient(jnp.asarray(1.1 * ratio))).max() > 1e-3


def test_loss_and_penalty_match_hand_computed_values():
    """Rows (0, log 3) and (log 2, 0): sums 4 and 3, so log 4 - 0 and log 3 - 0. Columns: sums 3 and 4, the same."""
    logits, log = jnp.log(jnp.asarray([[1.0, 3.0], [2.0, 1.0]])), np.log
    rows = (log(4) + log(3)) / 2
    assert float(info_nce_loss(logits, False)) == pytest.approx(rows)
    assert float(info_nce_loss(logits, True)) == pytest.approx(2 * rows)
    penalised = rows + 0.1 * (log(4) ** 2 + log(3) ** 2) / 2
    assert float(info_nce_loss(logits, False, 0.1)) == pytest.approx(penalised)


def test_energies_match_hand_computed_values():
    """(3, 4) has distances 5 and sqrt(1 + 49) from (0, 0) and (4, -3), and products 0; with (6, 8), the cosine is 1.

    The distance of equal points is the root of 1e-6, where it has a gradient.
    """
    x, y = jnp.asarray([[3.0, 4.0]]), jnp.asarray([[0.0, 0.0], [4.0, -3.0], [6.0, 8.0], [3.0, 4.0]])
    expected = {
        "norm": [-5.0, -(50**0.5), -5.0, -1e-3],
        "l2": [-25.0, -50.0, -25.0, 0.0],
        "dot": [0.0, 0.0, 50.0, 25.0],
        "cosine": [0.0, 0.0, 1.0, 1.0],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(ENERGIES[name](x, y), [values], rtol=1e-5, atol=1e-6)
