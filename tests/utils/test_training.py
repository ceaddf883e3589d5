from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from stoix_like.utils.accelerate import packing
from stoix_like.utils.training import (
    clip_by_global_norm,
    clip_by_parameter_norm,
    laprop,
    make_learning_rate,
    make_learning_rate_schedule,
)
from support.platforms import take_accelerator_forms


# By hand, 4 updates of 2 epochs x 3 minibatches: steps 0-5 at 1, 6-11 at 3/4, 12-17 at 1/2, 18-23 at 1/4, then 0.
def test_the_learning_rate_decays_linearly_per_update():
    schedule = make_learning_rate_schedule(1.0, 4, 2, 3)
    steps = np.array([0, 5, 6, 12, 23, 24, 1000])
    expected = [1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    np.testing.assert_allclose([schedule(int(step)) for step in steps], expected)
    np.testing.assert_allclose(jax.jit(jax.vmap(schedule))(jnp.asarray(steps)), expected)


def test_the_learning_rate_decays_to_a_share_of_itself():
    """To a half, by an eighth in each of the 4 updates."""
    schedule = make_learning_rate_schedule(1.0, 4, 2, 3, final=0.5)
    np.testing.assert_allclose([schedule(step) for step in (0, 6, 12, 24, 1000)], [1.0, 0.875, 0.75, 0.5, 0.5])


def test_the_initial_learning_rate_may_be_traced():
    members = jax.jit(jax.vmap(lambda lr: make_learning_rate_schedule(lr, 4, 2, 3)(6)))(np.float32([1.0, 2.0]))
    np.testing.assert_allclose(members, [0.75, 1.5])


@pytest.mark.parametrize("name", ["num_updates", "num_epochs", "num_minibatches"])
def test_counts_below_one_raise(name):
    counts = {"num_updates": 4, "num_epochs": 2, "num_minibatches": 3, name: 0}
    with pytest.raises(ValueError, match=f"{name}=0 must be at least 1"):
        make_learning_rate_schedule(1.0, **counts)


def _configs(decay):
    grouped = {"system": {"decay_learning_rates": decay}, "arch": {"num_updates": 4}}
    return [
        SimpleNamespace(decay_learning_rates=decay, num_updates=4),
        SimpleNamespace(**{key: SimpleNamespace(**group) for key, group in grouped.items()}),
        OmegaConf.create(grouped),
        OmegaConf.create({"decay_learning_rates": decay, "num_updates": 4}),
    ]


@pytest.mark.parametrize("layout", range(4))
def test_the_config_may_be_flat_or_grouped(layout):
    assert make_learning_rate(0.5, _configs(False)[layout], 2, 3) == 0.5
    config = _configs(True)[layout]
    np.testing.assert_allclose(make_learning_rate(0.5, config, 2, 3)(6), 0.375)
    np.testing.assert_allclose(make_learning_rate(0.5, config, 2)(6), 0.125)
    share = _configs(0.5)[layout]
    np.testing.assert_allclose([make_learning_rate(0.5, share, 2, 3)(step) for step in (6, 24)], [0.4375, 0.25])
    with pytest.raises(ValueError, match="decay_learning_rates=1 must be true, false or a share below 1"):
        make_learning_rate(0.5, _configs(1)[layout], 2, 3)
    with pytest.raises(ValueError, match="num_minibatches"):
        make_learning_rate(0.5, config, 2, 0)


# The norm of (3, 4, 12) is 13.
@pytest.mark.parametrize(("max_norm", "scale"), [(6.5, 0.5), (13.0, 1.0), (20.0, 1.0)])
def test_clipping_scales_all_gradients_by_their_global_norm(max_norm, scale):
    gradients = {"a": np.float32([3.0, -4.0]), "b": np.float32(12.0)}
    optims = clip_by_global_norm(max_norm), optax.clip_by_global_norm(max_norm)
    clipped, expected = jax.jit(lambda x: [optim.update(x, optax.EmptyState())[0] for optim in optims])(gradients)
    for name, gradient in gradients.items():
        np.testing.assert_allclose(clipped[name], scale * gradient, rtol=1e-6)
        np.testing.assert_allclose(clipped[name], expected[name], rtol=1e-6)


def test_clipping_keeps_zero_and_propagates_nan():
    update = jax.jit(clip_by_global_norm(1.0).update)
    np.testing.assert_array_equal(update(np.zeros(2, np.float32), optax.EmptyState())[0], 0.0)
    # A non-finite gradient must stay visible.
    assert np.isnan(update(np.float32([1.0, np.nan]), optax.EmptyState())[0]).all()


# By hand, clip 0.5: the norm of (3, 4) is 5, the largest norm of its gradient 2.5, and that of (6, 8) is 10: scale 1/4.
# Zero parameters have the norm 1e-3: gradients of at most 5e-4. A gradient of 0 stays 0.
@pytest.mark.parametrize("packed", [False, True])
def test_gradients_are_clipped_by_the_norm_of_their_parameters(packed, monkeypatch):
    if packed:
        take_accelerator_forms(monkeypatch)
    params = {"w": np.array([[3.0, 4.0]]), "b": np.zeros(2), "c": np.ones(2), "d": np.zeros(1)}
    grads = {"w": np.array([[6.0, -8.0]]), "b": np.array([0.0, 1.0]), "c": np.array([0.1, 0.2]), "d": np.zeros(1)}
    optim, pack = clip_by_parameter_norm(0.5), packing.pack_params
    update = jax.jit(lambda grads, params: optim.update(pack(grads), optim.init(params), pack(params)))
    clipped, _ = update(*jax.device_put((grads, params)))
    assert packing.is_packed(clipped) == packed
    clipped = jax.jit(packing.unpack)(clipped)
    np.testing.assert_allclose(clipped["w"], [[1.5, -2.0]], rtol=1e-6)
    np.testing.assert_allclose(clipped["b"], [0.0, 5e-4], rtol=1e-6)
    np.testing.assert_array_equal(clipped["c"], np.float32(grads["c"]))
    np.testing.assert_array_equal(clipped["d"], 0.0)


def test_laprop_matches_numpy_for_each_member_of_a_population():
    gradients = np.random.default_rng(0).normal(size=(4, 3)).astype(np.float32)

    def train(rate, b1):
        optim = laprop(rate, b1, 0.99, 1e-20)
        state, params = optim.init({"w": jnp.zeros(3)}), {"w": jnp.zeros(3)}
        for gradient in gradients:
            updates, state = optim.update({"w": jnp.asarray(gradient)}, state, params)
            params = optax.apply_updates(params, updates)
        return params["w"]

    found = np.asarray(jax.jit(jax.vmap(train))(*np.float32([[0.1, 0.2], [0.9, 0.5]])))
    for row, (rate, b1) in zip(found, [(0.1, 0.9), (0.2, 0.5)], strict=True):
        params, mu, nu = np.zeros(3), np.zeros(3), np.zeros(3)
        for t, g in enumerate(gradients, 1):
            nu = 0.99 * nu + 0.01 * g**2
            mu = b1 * mu + (1 - b1) * g / (np.sqrt(nu / (1 - 0.99**t)) + 1e-20)
            params = params - rate * mu / (1 - b1**t)
        np.testing.assert_allclose(row, params, rtol=1e-5)
    # The first step has the size of the rate, however small the gradient; a gradient of 0 takes none.
    optim = laprop(lambda count: 0.5 + count, 0.9, 0.99, 1e-20)
    update, _ = jax.jit(lambda x: optim.update(x, optim.init(x)))(np.float32([1e-8, -1e8, 0.0]))
    np.testing.assert_allclose(update, [-0.5, 0.5, 0.0], rtol=1e-5)


def test_laprop_counts_no_further_than_its_integers():
    """After so many steps the means are unbiased: mu = (1 - b1) g / |g| / sqrt(1 - b2)."""
    optim = laprop(1.0, 0.9, 0.99, 1e-20)
    state, step = jax.jit(optim.init)(np.zeros(1, np.float32)), jax.jit(optim.update)
    state = jax.tree.map(lambda x: np.full_like(x, 2**31 - 1) if x.dtype == jnp.int32 else x, state)
    for _ in range(2):
        update, _ = step(np.float32([3.0]), state)
        np.testing.assert_allclose(update, [-0.1 / np.sqrt(0.01)], rtol=1e-5)
        _, state = step(np.float32([0.0]), state)
