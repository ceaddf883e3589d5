import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import distributions, heads
from support.every_head import HEADS, KEY


def test_multi_discrete_head_refuses_empty_masks_or_ignores_traced_ones():
    head, _ = HEADS["multi_discrete"]
    x = jnp.ones((1, 6))
    params = jax.jit(head.init)(KEY, x)
    # None of the two choices of the first sub-action is legal, and only the last of the second one.
    mask = jnp.asarray([[False, False, False, False, True]])
    with pytest.raises(ValueError, match="without a legal action"):
        head.apply(params, x, action_mask=mask)
    samples = jax.jit(lambda mask: head.apply(params, x, action_mask=mask).sample(seed=KEY, sample_shape=200))(mask)
    assert set(np.asarray(samples[..., 0]).ravel()) == {0, 1}
    assert (samples[..., 1] == 2).all()


# By hand, with zero weights and a bias b: softmax(0, ln 3) = (1/4, 3/4), mixed with 20 % of (1/2, 1/2): (0.3, 0.7).
# With the second of three actions illegal, softmax(0, -, ln 3) and 20 % of (1/2, 0, 1/2): (0.3, 0, 0.7).
def test_a_uniform_policy_over_legal_actions_is_mixed_in():
    def probs(head, bias, mask):
        params = {"params": {"Dense_0": {"kernel": np.zeros((6, len(bias))), "bias": np.log(bias)}}}

        @jax.jit
        def apply(params):
            pi = head.apply(params, jnp.zeros((1, 6)), action_mask=None if mask is None else jnp.asarray([mask]))
            return pi.probs if isinstance(pi, distributions.Categorical) else pi.distribution.probs

        return apply(params)

    masked = probs(heads.CategoricalHead(3, uniform_mix=0.2), [1.0, 9.0, 3.0], [True, False, True])
    np.testing.assert_allclose(masked, [[0.3, 0.0, 0.7]], rtol=1e-5)
    head = heads.MultiDiscreteHead(2, (2, 3), uniform_mix=0.2)
    parts = probs(head, [1.0, 3.0, 1.0, 9.0, 3.0], [True, True, True, False, True])
    np.testing.assert_allclose(parts, [[[0.3, 0.7, 0.0], [0.3, 0.0, 0.7]]], rtol=1e-5, atol=1e-7)
    parts = probs(head, [1.0, 3.0, 1.0, 1.0, 1.0], None)
    np.testing.assert_allclose(parts, [[[0.3, 0.7, 0.0], [1 / 3] * 3]], rtol=1e-5, atol=1e-7)


def test_numbers_of_sub_actions_and_shares_of_random_actions_that_are_none_are_refused():
    assert heads.MultiDiscreteHead(4, (2, 2)).action_dim == 4  # of all choices, as in Stoix
    with pytest.raises(ValueError, match=r"action_dim=3 is not the number of sub-actions: .*\(2, 2\) has 2"):
        heads.MultiDiscreteHead(3, (2, 2))
    with pytest.raises(ValueError, match="uniform_mix=1.5 must be a probability in"):
        heads.CategoricalHead(3, uniform_mix=1.5)
