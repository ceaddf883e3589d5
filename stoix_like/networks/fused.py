"""Torsos in one kernel of a GPU, with the dense layers of the heads that read them; see `utils.accelerate.fused`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from stoix_like.networks import heads, units
from stoix_like.utils.accelerate.fused.form import Layer, find_form
from stoix_like.utils.accelerate.fused.perceptron import perceptron
from stoix_like.utils.accelerate.platform import on_gpu
from stoix_like.utils.jax_utils import as_floats

# Heads that read an embedding in one dense layer, and nowhere else.
_ONE_DENSE = {
    heads.BetaDistributionHead,
    heads.BoundedNormalHead,
    heads.CategoricalHead,
    heads.DeterministicHead,
    heads.DiscreteQNetworkHead,
    heads.MultiDiscreteHead,
    heads.MultivariateNormalDiagHead,
    heads.NormalAffineTanhDistributionHead,
    heads.ScalarCriticHead,
}
_DENSE = "Dense_0"
INTERPRET = "interpret"
"""The value of `fused` that runs kernels on all platforms, as operations of jax."""


class Part(NamedTuple):
    """A network, or the part of it that is fused."""

    torso: Any  # the torso
    heads: Mapping[str, nn.Module]  # the heads that read it, by name
    params: Mapping[str, Any]  # the parameters of both, by name


def can_fuse(torso: Any, network_heads: Iterable[nn.Module]) -> bool:
    """Return whether the modules of a network can be fused here."""
    plain = torso.layer_sizes and torso.activate_final and not torso.dropout_rate and not units.is_recording()
    platform = torso.fused == INTERPRET or on_gpu()
    return bool(plain and platform) and all(type(head) in _ONE_DENSE for head in network_heads)


def fused_heads(parts: Sequence[Part], x: jax.Array) -> tuple[jax.Array, AbstractContextManager[None]] | None:
    """Compute networks up to the dense layers of their heads, networks of the same sizes in the same kernel.

    `x`: inputs of the torsos, `[..., D]`.
    Returns an embedding of the right shape that is not a number, because no head reads it within the context; None
    where the kernel does not fit.
    """
    torso = parts[0].torso
    sizes = [[part.params[name][_DENSE]["bias"].shape[-1] for name in part.heads] for part in parts]
    layers = [_layers(part, max(map(sum, sizes))) for part in parts]
    form = find_form(layers[0], torso.activation, torso.dtype or "float32", torso.fused == INTERPRET)
    if form is None:
        return None
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *layers)
    outputs = jax.vmap(partial(perceptron, form), (0, None))(stacked, as_floats(x))
    answers: dict[str, jax.Array] = {}
    for part, y, size in zip(parts, outputs, sizes, strict=True):
        # What is behind the last one pads the outputs of this network.
        answers |= dict(zip(part.heads, jnp.split(y, np.cumsum(size), axis=-1), strict=False))
    return jnp.full((*x.shape[:-1], torso.layer_sizes[-1]), jnp.nan), _answering(answers)


def _layers(part: Part, outputs: int) -> list[Layer]:
    """Return the layers of a network, with the dense layers of its heads as one, padded to a number of outputs."""
    torso, layers = part.params["torso"], []
    for index in range(len(part.torso.layer_sizes)):
        norm = torso[f"LayerNorm_{index}"] if part.torso.use_layer_norm else {}
        dense = torso[f"Dense_{index}"]
        layers.append(Layer(dense["kernel"], dense["bias"], norm.get("scale"), norm.get("bias")))
    kernel, bias = (
        jnp.concatenate([part.params[name][_DENSE][leaf] for name in part.heads], -1) for leaf in ("kernel", "bias")
    )
    padding = outputs - len(bias)
    return [*layers, Layer(jnp.pad(kernel, ((0, 0), (0, padding))), jnp.pad(bias, (0, padding)))]


@contextmanager
def _answering(outputs: Mapping[str, jax.Array]) -> Iterator[None]:
    """Let the dense layers of heads return what was computed."""

    def answer(call: Callable[..., Any], args: Any, kwargs: Any, context: nn.module.InterceptorContext) -> Any:
        head, layer = ("", "", *map(str, context.module.path))[-2:]
        return outputs[head] if layer == _DENSE and head in outputs else call(*args, **kwargs)

    with nn.intercept_methods(answer):
        yield
