import jax
import jax.nn
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.errors import ConfigError
from stoix_like.networks.recurrent import MinGRUCell
from stoix_like.networks.utils import parse_activation_fn, parse_initializer, parse_rnn_cell
from support.compiled import run

KEY = jax.random.key(0)


def test_activations_of_jax_are_known():
    not_activations = {"dot_product_attention", "get_scaled_dot_general_config", "initializers", "log1mexp"}
    not_activations |= {"logmeanexp", "logsumexp", "one_hot", "scaled_dot_general", "scaled_matmul"}
    public = {name for name in dir(jax.nn) if not name.startswith("_")} - not_activations
    for name in public:
        assert callable(parse_activation_fn(name)), name
    assert parse_activation_fn("relu") is jax.nn.relu
    assert parse_activation_fn("none")(1.5) == 1.5


def test_initialisers_are_found_by_name():
    for name in ("orthogonal", "orthogonal(1.41)", "lecun_normal", "zeros", "ones", "truncated_normal(0.1)"):
        assert run(parse_initializer(name), KEY, (3, 4), jnp.float32).shape == (3, 4)
    np.testing.assert_allclose(parse_initializer("constant(2)")(KEY, (2,), jnp.float32), 2.0)
    assert parse_initializer(jax.nn.initializers.zeros) is jax.nn.initializers.zeros


@pytest.mark.parametrize(
    ("name", "words"),
    [
        *((name, "initialiser") for name in ("orthogonl", "orthogonal(x)", "orthogonal(1")),
        ("lecun_normal(0.5)", "lecun_normal takes no numbers"),
        ("orthogonal(1, 0)", "orthogonal takes one number, its scale"),
        ("constant", "constant takes one number, its value"),
    ],
)
def test_invalid_initialisers_are_refused(name, words):
    with pytest.raises(ConfigError, match=words):
        parse_initializer(name)


def test_recurrent_cells_are_found_by_name():
    assert parse_rnn_cell("mingru") is MinGRUCell
    with pytest.raises(ConfigError, match="'gru'"):
        parse_rnn_cell("grru")
