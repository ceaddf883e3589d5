"""Gated recurrent units in few operations per step."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array

from stoix_like.utils.collectives import vary_alike

# Steps per iteration of a loop over time: an accelerator then launches half as many kernels per step.
_STEPS_PER_ITERATION = 4


def gru_gates(state: Array, from_input: Array, from_state: Array) -> Array:
    """Compute the next state of a gated recurrent unit from products with its matrices, for its gates r, z and n.

        r, z = sigmoid(i_r + s_r), sigmoid(i_z + s_z),   n = tanh(i_n + r s_n),   h' = (1 - z) n + z h

    Source: Cho et al. 2014, arXiv:1406.1078, section 2.3, with r after the product, as in flax.

    `state`: `[..., H]`, h.
    `from_input`, `from_state`: `[..., 3H]` each, i and s.
    """
    (i_r, i_z, i_n), (s_r, s_z, s_n) = jnp.split(from_input, 3, axis=-1), jnp.split(from_state, 3, axis=-1)
    r, z = jax.nn.sigmoid(i_r + s_r), jax.nn.sigmoid(i_z + s_z)
    return ((1.0 - z) * jnp.tanh(i_n + r * s_n) + z * state).astype(state.dtype)


def _gru_layer(cell: nn.GRUCell, prefix: str) -> tuple[Array, Array]:
    """Return the kernel `[..., 3H]` and the bias `[3H]` of all gates, for inputs ("i") or for states ("h")."""
    layers = [cell.variables["params"][prefix + gate] for gate in "rzn"]
    kernel = jnp.concatenate([layer["kernel"] for layer in layers], axis=-1)
    bias = jnp.concatenate([layer.get("bias", jnp.zeros(cell.features)) for layer in layers])
    dtype = cell.dtype or kernel.dtype
    return kernel.astype(dtype), bias.astype(dtype)


def _affine(x: Array, kernel: Array, bias: Array) -> Array:
    return x.astype(kernel.dtype) @ kernel + jax.lax.broadcast(bias, x.shape[:-1])


def step_gru(cell: nn.GRUCell, state: Array, x: Array) -> Array:
    """Compute the next state `[..., H]` of a gated recurrent unit in two products, for inputs `[..., D]`."""
    return gru_gates(state, _affine(x, *_gru_layer(cell, "i")), _affine(state, *_gru_layer(cell, "h")))


def unroll_gru(cell: nn.GRUCell, state: Array, x: Array, keep: Array) -> Array:
    """Compute the states of a gated recurrent unit over sequences, in one product per step, forwards and backwards.

    The products with all inputs, and the gradients of the parameters, are computed outside of the loop over time.

    `state`: `[..., H]`, before the first step.
    `x`: `[T, ..., D]`.
    `keep`: `[T, ..., 1]` bool: False where an episode starts, which replaces the state before a step by zeros.
    Returns `[T, ..., H]`, the states after each step.
    """
    return _unroll_gru(*vary_alike(_affine(x, *_gru_layer(cell, "i")), *_gru_layer(cell, "h"), state, keep))


@jax.custom_vjp
def _unroll_gru(from_inputs: Array, kernel: Array, bias: Array, state: Array, keep: Array) -> Array:
    def step(before: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        from_input, keep_after = inputs
        after = gru_gates(before, from_input, _affine(before, kernel, bias))
        return jnp.where(keep_after, after, 0.0), after

    keep_after = jnp.concatenate([keep[1:], jnp.ones_like(keep[:1])])
    first = jnp.where(keep[0], state, 0.0)
    return jax.lax.scan(step, first, (from_inputs, keep_after), unroll=_STEPS_PER_ITERATION)[1]


def _unroll_gru_forward(*args: Array) -> tuple[Array, tuple[Array, ...]]:
    states = _unroll_gru(*args)
    return states, (*args, states)


def _unroll_gru_backward(residuals: tuple[Array, ...], d_states: Array) -> tuple[Array | None, ...]:
    from_inputs, kernel, bias, state, keep, states = residuals
    before = jnp.where(keep, jnp.concatenate([state[None], states[:-1]]), 0.0)
    _, pull_back = jax.vjp(gru_gates, before, from_inputs, _affine(before, kernel, bias))
    # A unit of the next state depends only on the same unit of each argument: the gates' Jacobians are diagonal.
    by_state, by_input, by_product = pull_back(jnp.ones_like(states))
    inputs = (d_states, keep * by_state, keep.astype(kernel.dtype) * by_product)

    def step(d_after: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        d_state, by_state, by_product = inputs
        d_state = d_state + d_after
        d_before = by_state * d_state + (by_product * _for_gates(d_state)).astype(kernel.dtype) @ kernel.T
        return d_before.astype(d_after.dtype), d_state

    d_first, d_states = jax.lax.scan(step, jnp.zeros_like(state), inputs, reverse=True, unroll=_STEPS_PER_ITERATION)
    d_products = (by_product * _for_gates(d_states)).astype(kernel.dtype)
    d_kernel = jnp.einsum("...i,...j->ij", before.astype(kernel.dtype), d_products)
    d_inputs = (by_input * _for_gates(d_states)).astype(from_inputs.dtype)
    return d_inputs, d_kernel, d_products.reshape(-1, len(bias)).sum(0), d_first, None


def _for_gates(x: Array) -> Array:
    return jnp.concatenate([x, x, x], axis=-1)


_unroll_gru.defvjp(_unroll_gru_forward, _unroll_gru_backward)
