import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.networks import torso as torsos
from support.selections import select
from support.torsos import assert_any_leading_axes, assert_pixels_are_scaled

KEY = jax.random.key(0)
TORSOS = {
    "mlp": torsos.MLPTorso((8, 4)),
    "mlp_norm": torsos.MLPTorso((8, 4), "silu", True, "lecun_normal", False),
    "noisy": torsos.NoisyMLPTorso((8, 4)),
    "batch_renorm": torsos.BatchRenormMLPTorso((8, 4)),
    "xqc": torsos.XQCTorso((8, 4)),
    "simnorm": torsos.SimNormTorso((8, 4), group_size=2),
    "resnet": torsos.ResNetTorso(4, 1),
    "simba": torsos.SimBaTorso(4, 1),
    "simba_v2": torsos.SimBaV2Torso(4, 1),
    "bro": torsos.BroTorso(4, 1),
    "deep_resnet": torsos.DeepResNetTorso(4, 4),
}


@pytest.mark.slow
@pytest.mark.parametrize("torso", TORSOS.values(), ids=TORSOS)
def test_torsos_of_vectors_accept_any_number_of_leading_axes(torso):
    assert_any_leading_axes(torso, jax.random.normal(KEY, (2, 3, 5)))


@pytest.mark.parametrize("torso", select(TORSOS, quick=("mlp", "batch_renorm", "resnet")))
def test_pixels_reach_dense_layers_scaled_and_floats_unchanged(torso):
    assert_pixels_are_scaled(TORSOS[torso])


def test_mlp_matches_hand_computed_output():
    torso = torsos.MLPTorso((2, 1), "relu", kernel_init="ones", activate_final=False)
    x = jnp.asarray([[1.0, 2.0], [-4.0, 1.0]])
    # The rows sum to 3 and -3, relu gives 3 and 0, and the two units sum to 6 and 0.
    np.testing.assert_allclose(jax.jit(torso.init_with_output)(KEY, x)[0], [[6.0], [0.0]])


def test_dropout_needs_its_rng_and_precedes_layer_normalisation():
    """A unit is dropped with probability 1/2 and doubled otherwise; normalisation hides the doubling, not the zeros."""
    torso, normalised = (torsos.MLPTorso((64,), use_layer_norm=norm, dropout_rate=0.5) for norm in (False, True))

    @jax.jit
    def outputs(x):
        params, rngs = torso.init(KEY, x), {"dropout": jax.random.key(1)}
        of_normalised = normalised.apply(normalised.init(KEY, x), x, rngs=rngs)
        return torso.apply(params, x), torso.apply(params, x, rngs=rngs), of_normalised

    plain, dropped, y = map(np.asarray, outputs(np.ones((200, 3), np.float32)))
    kept = dropped[:, plain[0] > 0] != 0
    # About 32 positive units × 200 rows: a standard error of 0.5 / sqrt(6400) = 0.006.
    assert float(kept.mean()) == pytest.approx(0.5, abs=0.03)
    np.testing.assert_allclose(dropped, np.where(dropped != 0, 2.0 * plain, 0.0), rtol=1e-5)
    # Dropped units are 0 before normalisation, hence equal within a row afterwards.
    smallest = [np.unique(row, return_counts=True)[1].max() for row in y[:20]]
    assert min(smallest) > 10


def test_only_the_first_layers_drop_units_if_configured():
    """Units of the second layer are sums of the dropped units of the first; of the third none is zero."""
    torso = torsos.MLPTorso((64, 8), "identity", kernel_init="ones", dropout_rate=0.9, dropout_layers=1)
    outputs = jax.jit(lambda x: torso.init_with_output({"params": KEY, "dropout": KEY}, x)[0])(jnp.ones((1, 1)))
    # Some of 64 units are kept, ten times as large.
    assert np.all(outputs > 0.0)
    np.testing.assert_allclose(outputs % 10.0, 0.0, atol=1e-3)


def test_final_activation_is_optional():
    x = jax.random.normal(KEY, (64, 5))
    for activate_final in (True, False):
        torso = torsos.MLPTorso((8,), "relu", activate_final=activate_final)
        assert bool((jax.jit(torso.init_with_output)(KEY, x)[0] >= 0).all()) is activate_final
