"""Policy heads for discrete actions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from every_head import HEADS, KEY


def test_multi_discrete_head_masks_illegal_choices():
    head, _ = HEADS["multi_discrete"]
    x, mask = jnp.ones((1, 6)), jnp.asarray([[False, True, True, False, True]])

    @jax.jit
    def sample(x):
        return head.apply(head.init(KEY, x), x, action_mask=mask).sample(seed=KEY, sample_shape=100)

    samples = sample(x)
    assert (samples[..., 0] == 1).all()
    assert (samples[..., 1] != 1).all()


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
