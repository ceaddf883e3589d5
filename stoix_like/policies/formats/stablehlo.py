"""Policies as StableHLO programs, serialised by `jax.export`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import export

from stoix_like.policies.exportable import Exportable

PLATFORMS = ("cpu", "cuda", "tpu")
# Exported policies take raw key data of this implementation.
KEY_KIND = "threefry2x32"


def encode(policy: Exportable) -> bytes:
    """Return a program of the policy, with any batch size and for all platforms."""
    (batch,) = export.symbolic_shape("b", constraints=["b >= 1"])
    inputs = [jax.ShapeDtypeStruct((batch, *leaf.shape), leaf.dtype) for leaf in policy.argument_shapes.values()]
    key_data = jax.ShapeDtypeStruct((2,), jnp.uint32)
    return bytes(export.export(jax.jit(act_of(policy)), platforms=PLATFORMS)(*inputs, key_data).serialize())


def decode(content: bytes) -> Callable[..., Any]:
    """Return the function that a file holds. Returns a function of arrays `[B, ...]` and key data `[2]`."""
    return export.deserialize(bytearray(content)).call


def act_of(policy: Exportable) -> Callable[..., Any]:
    """Return `Policy.act_on` as a function of plain arrays and key data; the trained state is a constant of it.

    Returns a function of arrays `[B, ...]` and key data `[2]`.
    """

    def act(*inputs: jax.Array) -> Any:
        *arrays, key_data = inputs
        return policy.act_on(arrays, jax.random.wrap_key_data(key_data, impl=KEY_KIND))

    return act
