import dataclasses

import jax.numpy as jnp
import pytest

from stoix_like.utils.accelerate.fused.form import ROWS, Layer, find_form


def form_of(inputs, widths, outputs, activation="tanh", norm=False):
    sides = [*widths, outputs]
    layers = [Layer(jnp.zeros((d, f)), jnp.zeros(f)) for d, f in zip([inputs, *widths], sides, strict=True)]
    norms = [layer._replace(scale=layer.bias, offset=layer.bias) for layer in layers[:-1]] if norm else layers[:-1]
    return find_form([*norms, layers[-1]], activation)


@pytest.mark.parametrize(
    ("inputs", "widths", "outputs", "activation", "norm"),
    [
        (4, (64, 64, 64), 2, "tanh", False),
        (4, (), 2, "tanh", False),
        (4, (512,), 2, "tanh", False),
        (200, (64,), 2, "tanh", False),
        (40, (256, 256), 2, "tanh", False),
        (4, (64,), 65, "tanh", False),
        (4, (64,), 2, "gelu", False),
        (4, (128, 128), 2, "tanh", True),
        (4, (60, 60), 2, "tanh", True),
    ],
)
def test_what_does_not_fit_on_the_chip_has_no_form(inputs, widths, outputs, activation, norm):
    assert form_of(inputs, widths, outputs, activation, norm) is None


def test_blocks_share_a_batch_without_a_remainder():
    form = form_of(4, (256, 256), 2)
    for batch in (1, ROWS, ROWS + 1, 1000, 32768):
        assert (
            form.groups(batch) * form.blocks(batch) * ROWS
            >= batch
            > (form.blocks(batch) - 1) * form.groups(batch) * ROWS
        )
    # 2 x 32 operations for each of 16 x 256 weights of the first layer, a tile of 256 x 64, and 16 x 64 of the outputs.
    assert form.cost(32, 64) == (2 * 32 * (16 * 256 + 256 * 64 + 16 * 64), 4 * (16 * 256 + 256 * 64 + 16 * 64))
    assert form.cost(32, 64, (2, 3, 2)).flops == 2 * 32 * (2 * 16 * 256 + 3 * 256 * 64 + 2 * 16 * 64)
    assert dataclasses.replace(form, hidden=1).starts == (0, 17, 34)
