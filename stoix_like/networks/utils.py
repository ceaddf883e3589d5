"""Activations, initialisers and recurrent cells by name."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax.nn import initializers
from jaxtyping import Array

from stoix_like.errors import ConfigError, nearest
from stoix_like.networks.recurrent import GTrXLCell, LRUCell, MinGRUCell, MLSTMCell, S5Cell
from stoix_like.utils.accelerate.stored import tanh

Activation = Callable[[Array], Array]
"""A function from arrays to arrays."""
Initializer = Callable[..., Array]
"""A function `(key, shape, dtype) -> array`."""

# An explicit list, since `jax.nn` also has reductions, attention and encodings.
_ACTIVATIONS: Mapping[str, Activation] = {
    function.__name__: function
    for function in (
        *(jax.nn.celu, jax.nn.elu, jax.nn.gelu, jax.nn.glu, jax.nn.hard_sigmoid, jax.nn.hard_silu, jax.nn.hard_tanh),
        *(jax.nn.leaky_relu, jax.nn.log_sigmoid, jax.nn.log_softmax, jax.nn.mish, jax.nn.relu, jax.nn.relu6),
        *(jax.nn.selu, jax.nn.sigmoid, jax.nn.silu, jax.nn.soft_sign, jax.nn.softmax, jax.nn.softplus),
        *(jax.nn.sparse_plus, jax.nn.sparse_sigmoid, jax.nn.squareplus, jax.nn.standardize, tanh, jnp.sin),
    )
} | {
    "hard_swish": jax.nn.hard_swish,
    "swish": jax.nn.swish,
    "identity": jax.nn.identity,
    "none": jax.nn.identity,
    "normalise": jax.nn.standardize,
    "normalize": jax.nn.standardize,
}

_INITIALIZERS: dict[str, Callable[..., Initializer]] = {
    function.__name__: function
    for function in (
        *(initializers.constant, initializers.delta_orthogonal, initializers.normal, initializers.orthogonal),
        *(initializers.glorot_normal, initializers.glorot_uniform, initializers.he_normal, initializers.he_uniform),
        *(initializers.lecun_normal, initializers.lecun_uniform, initializers.truncated_normal, initializers.uniform),
    )
} | {
    "kaiming_normal": initializers.kaiming_normal,
    "kaiming_uniform": initializers.kaiming_uniform,
    "ones": lambda: initializers.ones,
    "xavier_normal": initializers.xavier_normal,
    "xavier_uniform": initializers.xavier_uniform,
    "zeros": lambda: initializers.zeros,
}

_SCALES = ("scale", "stddev", "value")

RNN_CELLS: dict[str, type[nn.Module]] = {
    "lstm": nn.LSTMCell,
    "optimised_lstm": nn.OptimizedLSTMCell,
    "gru": nn.GRUCell,
    "mgu": nn.MGUCell,
    "simple": nn.SimpleCell,
    "mingru": MinGRUCell,
    "lru": LRUCell,
    "s5": S5Cell,
    "mlstm": MLSTMCell,
    "gtrxl": GTrXLCell,
}
"""Recurrent cells by `cell_type`."""


def parse_activation_fn(activation_fn_name: str) -> Activation:
    """Return an activation function by name.

    Args:
        activation_fn_name: the name of an activation function in `jax.nn`, `sin`, or `none` for the identity.

    Returns:
        A function from arrays to arrays.

    Raises:
        ConfigError: the name is unknown.
    """
    if activation_fn_name not in _ACTIVATIONS:
        hint = nearest(str(activation_fn_name), _ACTIVATIONS)
        raise ConfigError(f"'{activation_fn_name}' is not a known activation: {hint}")
    return _ACTIVATIONS[activation_fn_name]


def parse_initializer(initializer: str | Initializer) -> Initializer:
    """Return an initialiser by name."""
    if not isinstance(initializer, str):
        return initializer
    match = re.fullmatch(r"(\w+)(?:\((.*)\))?", initializer.strip())
    name, arguments = (match[1], match[2] or "") if match else (initializer, "")
    if name not in _INITIALIZERS:
        raise ConfigError(f"'{name}' is not a known initialiser: {nearest(name, _INITIALIZERS)}")
    scales = [scale for scale in inspect.signature(_INITIALIZERS[name]).parameters if scale in _SCALES]
    try:
        numbers = [float(number) for number in arguments.split(",") if number.strip()]
        return _INITIALIZERS[name](**dict(zip(scales[: len(numbers)], numbers, strict=True)))
    except (TypeError, ValueError):
        hint = f"one number, its {scales[0]}" if scales else "no numbers"
        raise ConfigError(f"'{initializer}' is not a valid initialiser: {name} takes {hint}") from None


def parse_rnn_cell(rnn_cell_name: str) -> type[nn.Module]:
    """Return a recurrent cell by name.

    Args:
        rnn_cell_name: `lstm`, `optimised_lstm`, `gru`, `mgu`, `simple`; or one that is computed in parallel over a
            sequence: the linear recurrences `mingru`, `lru` and `s5`, `mlstm` and `gtrxl`.

    Returns:
        The class of the cell, to be constructed with `features`.

    Raises:
        ConfigError: the name is unknown.
    """
    if rnn_cell_name not in RNN_CELLS:
        raise ConfigError(f"'{rnn_cell_name}' is not a known recurrent cell: {nearest(str(rnn_cell_name), RNN_CELLS)}")
    return RNN_CELLS[rnn_cell_name]
