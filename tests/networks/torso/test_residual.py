import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks.torso import BroTorso, DeepResNetTorso, SimBaTorso, SimBaV2Torso
from support.compiled import run

KEY = jax.random.key(0)


def test_simba_matches_hand_computed_output():
    """Of two units, normalisation keeps the signs of their differences from the mean; the first layer is the identity.

    x = (3, 2) is normalised to (1, -1), whose sum is 0. The bias gives (1, 0), and the block adds (0, 1/2): (3, 2.5) is
    normalised to (1, -1), plus 5. Without the residual, (0, 1/2) would be normalised to (-1, 1). Without the first
    normalisation, the block would add (0, 6/2 + 5 * 3), and the result would be (-1, 1), too.
    """
    torso = SimBaTorso(2, 1, 1, kernel_init="ones", block_kernel_init="ones")
    params = jax.jit(torso.init)(KEY, np.ones(2))["params"]
    params["Dense_0"]["kernel"] = np.eye(2, dtype=np.float32)
    params["Dense_1"]["bias"] = jnp.asarray([1.0, 0.0])
    params["Dense_2"]["kernel"] = jnp.asarray([[0.0, 0.5], [0.0, 3.0]])
    params["LayerNorm_1"]["bias"] = jnp.asarray([5.0, 5.0])
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([3.0, 2.0])), [6.0, 4.0], atol=1e-4)


def test_bro_matches_hand_computed_output():
    """Of two units, normalisation keeps the signs of their differences from the mean; the first layer is the identity.

    (3, 2) is normalised to (1, -1), and relu gives (1, 0). In the block, W_1 swaps the units: (0, 1) is normalised to
    (-1, 1), relu gives (0, 1), and W_2 = I, normalised, adds (-1, 1).
    """
    torso = BroTorso(2, 1)
    params = jax.jit(torso.init)(KEY, np.ones(2))["params"]
    for i, kernel in enumerate((np.eye(2), np.eye(2)[::-1], np.eye(2))):
        params[f"Dense_{i}"]["kernel"] = jax.device_put(kernel)
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([3.0, 2.0])), [0.0, 1.0], atol=1e-4)


def test_deep_resnet_matches_hand_computed_output():
    """As in BRO, the first layer gives (1, 0). Each of four layers swaps the units and normalises: (0, 1), (1, 0), and
    so on, so the block ends with (1, 0) and adds it. The second one starts with the same signs, and adds it again.
    """
    torso = DeepResNetTorso(2, 8, "relu")
    params = jax.jit(torso.init)(KEY, np.ones(2))["params"]
    params["Sequential_0"]["layers_0"]["kernel"] = jax.device_put(np.eye(2))
    for layer in params["Scan_Block_0"].values():
        layer["layers_0"]["kernel"] = jax.device_put(np.stack([np.eye(2)[::-1]] * 2))
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([3.0, 2.0])), [3.0, 0.0], atol=1e-4)
    with pytest.raises(ValueError, match=r"depth=6 must be a multiple of 4"):
        DeepResNetTorso(2, 6)


def test_torso_matches_hand_computed_output():
    """An observation of 4 with shift 3 becomes (0.8, 0.6), which W = I keeps at any scale.

    The block: W_1 = I, all units active, and W_2 swaps the units: (0.6, 0.8). With one block, the step is a half of the
    way, (0.7, 0.7), which has the direction (1, 1) / sqrt(2).
    """
    torso = SimBaV2Torso(2, 1, 1)
    params = jax.jit(torso.init)(KEY, np.ones(1))["params"]
    # Learned with the scale 1 / sqrt(2), whose initial effect is 1 / 2.
    np.testing.assert_allclose(params["Scaler_2"]["scale"], [0.5**0.5] * 2, rtol=1e-6)
    for i, kernel in enumerate(([[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]])):
        params[f"UnitDense_{i}"]["unit_kernel"] = jnp.asarray(kernel)
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([4.0])), [0.5**0.5] * 2, rtol=1e-5)
    params["UnitDense_2"]["unit_kernel"] = np.eye(2, dtype=np.float32)
    np.testing.assert_allclose(run(torso.apply, {"params": params}, jnp.asarray([4.0])), [0.8, 0.6], rtol=1e-5)
