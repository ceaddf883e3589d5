"""Recurrent cells: gated recurrent units in few operations per step, and linear recurrences in parallel over time."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from stoix_like.utils.jax_utils import restore_float32

State = Inexact[Array, "*batch H"]


# Steps per iteration of a loop over time: an accelerator then launches half as many kernels per step.
_STEPS_PER_ITERATION = 4


def gru_gates(state: Array, from_input: Array, from_state: Array) -> Array:
    """Compute the next state of a gated recurrent unit from products with its matrices, for its gates r, z and n.

        r, z = sigmoid(i_r + s_r), sigmoid(i_z + s_z),   n = tanh(i_n + r s_n),   h' = (1 - z) n + z h

    Source: Cho et al. 2014, arXiv:1406.1078, section 2.3, with r after the product, as in flax.

    Args:
        state: `[..., H]`, h.
        from_input: `[..., 3H]`, i.
        from_state: `[..., 3H]`, s.

    Returns:
        `[..., H]`, h'.
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

    Args:
        cell: the cell, initialised.
        state: `[..., H]`, before the first step.
        x: `[T, ..., D]`, inputs.
        keep: `[T, ..., 1]` bool: False where an episode starts, which replaces the state before a step by zeros.

    Returns:
        `[T, ..., H]`, the states after each step.
    """
    return _unroll_gru(_affine(x, *_gru_layer(cell, "i")), *_gru_layer(cell, "h"), state, keep)


@jax.custom_vjp
def _unroll_gru(from_inputs: Array, kernel: Array, bias: Array, state: Array, keep: Array) -> Array:
    def step(before: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        from_input, keep_after = inputs
        after = gru_gates(before, from_input, _affine(before, kernel, bias))
        return jnp.where(keep_after, after, 0.0), after

    keep_after = jnp.concatenate([keep[1:], jnp.ones_like(keep[:1])])
    inputs = (from_inputs, keep_after)
    return jax.lax.scan(step, jnp.where(keep[0], state, 0.0), inputs, unroll=_STEPS_PER_ITERATION)[1]


def _unroll_gru_forward(*args: Array) -> tuple[Array, tuple[Array, ...]]:
    states = _unroll_gru(*args)
    return states, (*args, states)


def _unroll_gru_backward(residuals: tuple[Array, ...], d_states: Array) -> tuple[Array | None, ...]:
    from_inputs, kernel, bias, state, keep, states = residuals
    before = jnp.where(keep, jnp.concatenate([state[None], states[:-1]]), 0.0)
    _, pull_back = jax.vjp(gru_gates, before, from_inputs, _affine(before, kernel, bias))
    # A unit of the next state depends on the same unit of each argument alone: the gates' Jacobians are diagonal.
    by_state, by_input, by_product = pull_back(jnp.ones_like(states))
    inputs = (d_states, keep * by_state, keep.astype(kernel.dtype) * by_product)

    def step(d_after: Array, inputs: tuple[Array, ...]) -> tuple[Array, Array]:
        d_state, by_state, by_product = inputs
        d_state = d_state + d_after
        return by_state * d_state + (by_product * _for_gates(d_state)) @ kernel.T, d_state

    zero = jnp.zeros_like(state)
    d_first, d_states = jax.lax.scan(step, zero, inputs, reverse=True, unroll=_STEPS_PER_ITERATION)
    d_products = by_product * _for_gates(d_states)
    d_kernel = jnp.einsum("...i,...j->ij", before, d_products)
    return by_input * _for_gates(d_states), d_kernel, d_products.reshape(-1, len(bias)).sum(0), d_first, None


def _for_gates(x: Array) -> Array:
    return jnp.concatenate([x, x, x], axis=-1)


_unroll_gru.defvjp(_unroll_gru_forward, _unroll_gru_backward)


def linear_recurrence(
    decay: Inexact[Array, "T *batch H"], inputs: Inexact[Array, "T *batch H"], initial: State
) -> Inexact[Array, "T *batch H"]:
    """Compute the states of a linear recurrence in O(log T) parallel steps.

        h_t = a_t h_{t-1} + b_t

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4.

    Args:
        decay: `[T, ..., H]`, a_t; zero resets the state.
        inputs: `[T, ..., H]`, b_t.
        initial: `[..., H]`, the state before the first step.

    Returns:
        `[T, ..., H]`, h_t.
    """

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    inputs = inputs.at[0].add(decay[0] * initial)
    return jax.lax.associative_scan(combine, (decay, inputs))[1]


class LinearCell(nn.Module):
    """A cell `h_t = a(x_t) h_{t-1} + b(x_t)`; a and b do not depend on the state.

    Attributes:
        features: width of the output, in units.
        dtype: dtype of the products of matrices; None for that of the inputs. Decays and states do not depend on it.
    """

    features: int
    dtype: Any = dataclasses.field(default=None, kw_only=True)

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Array, Array]:
        """Return decay a and input b, `[..., H]` each, for inputs `[..., D]`."""
        raise NotImplementedError

    def read(self, state: State, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the output, `[..., features]`, for states `[..., H]`."""
        raise NotImplementedError

    def __call__(self, state: State, x: Float[Array, "*batch D"]) -> tuple[State, Float[Array, "*batch F"]]:
        """Return the next state and the output."""
        decay, inputs = self.terms(x)
        state = decay * state + inputs
        return state, self.read(state, x)

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> State:
        """Return the state at the start of an episode, zero, for inputs of `input_shape`."""
        return jnp.zeros((*input_shape[:-1], self.features))


class MinGRUCell(LinearCell):
    """A gated recurrent unit whose gate depends on the input alone.

        z_t = sigmoid(W_z x_t),   h_t = (1 - z_t) h_{t-1} + z_t W_h x_t

    Source: Feng et al., Were RNNs All We Needed? (2024), section 3.1.
    """

    def setup(self) -> None:
        """Create the layers."""
        self.gate_and_candidate = nn.Dense(2 * self.features, dtype=self.dtype)

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Array, Array]:
        """Return decay a and input b, `[..., H]` each, for inputs `[..., D]`."""
        gate, candidate = jnp.split(restore_float32(self.gate_and_candidate(x), self.dtype), 2, axis=-1)
        gate = jax.nn.sigmoid(gate)
        return 1.0 - gate, gate * candidate

    def read(self, state: State, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the state."""
        return state


class LRUCell(LinearCell):
    """A diagonal complex linear recurrence with a stable parametrisation, a simplified S5.

        h_t = lambda h_{t-1} + gamma B x_t,   y_t = gelu(Re(C h_t) + D x_t),
        lambda = exp(-exp(nu) + i exp(theta)),   gamma = sqrt(1 - |lambda|^2)

    Source: Orvieto et al., Resurrecting Recurrent Neural Networks for Long Sequences (2023), section 3; Smith et
    al., Simplified State Space Layers for Sequence Modeling (2023).

    Attributes:
        min_radius: smallest initial |lambda|.
        max_radius: largest initial |lambda|.
        max_phase: largest initial angle of lambda, in radians per step.
    """

    min_radius: float = 0.9
    max_radius: float = 0.999
    max_phase: float = math.pi / 10.0

    def setup(self) -> None:
        """Create the parameters and layers."""
        self.nu = self.param("nu", self._init_nu, (self.features,))
        self.theta = self.param("theta", self._init_theta, (self.features,))
        self.encode = nn.Dense(2 * self.features, use_bias=False, dtype=self.dtype)
        self.decode = nn.Dense(self.features, use_bias=False, dtype=self.dtype)
        self.skip = nn.Dense(self.features, dtype=self.dtype)

    def _init_nu(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw |lambda|^2 uniformly between the squared radii."""
        squared = jax.random.uniform(key, shape, minval=self.min_radius**2, maxval=self.max_radius**2)
        return jnp.log(-0.5 * jnp.log(squared))

    def _init_theta(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jnp.log(jax.random.uniform(key, shape, minval=1e-3 * self.max_phase, maxval=self.max_phase))

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Complex[Array, "*batch H"], Complex[Array, "*batch H"]]:
        """Return decay a and input b, `[..., H]` each, for inputs `[..., D]`."""
        log_radius = -jnp.exp(self.nu)
        decay = jnp.exp(jax.lax.complex(log_radius, jnp.exp(self.theta)))
        gain = jnp.sqrt(-jnp.expm1(2.0 * log_radius))
        real, imaginary = jnp.split(restore_float32(self.encode(x), self.dtype), 2, axis=-1)
        inputs = jax.lax.complex(real, imaginary)
        wide = (1,) * (inputs.ndim - 1) + gain.shape
        return jnp.broadcast_to(decay, inputs.shape), gain.reshape(wide) * inputs

    def read(self, state: State, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the output, `[..., features]`, for states `[..., H]`."""
        parts = jnp.concatenate([state.real, -state.imag], axis=-1)
        return jax.nn.gelu(self.decode(parts) + self.skip(x))

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> State:
        """Return the state at the start of an episode, zero, for inputs of `input_shape`."""
        return jnp.zeros((*input_shape[:-1], self.features), jnp.complex64)
