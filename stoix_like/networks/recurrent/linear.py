"""Recurrent cells that are linear in their state, computed in parallel over time."""

from __future__ import annotations

import dataclasses
import math
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Complex, Float, Inexact

from stoix_like.schema import Range, between
from stoix_like.utils.jax_utils import prepend_dims, restore_float32

State = Inexact[Array, "*batch H"]

_RADIUS = between(0.0, 1.0)
# The logarithms of a radius of 0 or 1 are infinite.
_MIN_SQUARED, _MAX_SQUARED = 1e-6, 1.0 - 1e-6


def linear_recurrence(
    decay: Inexact[Array, "T *batch H"], inputs: Inexact[Array, "T *batch H"], initial: State
) -> Inexact[Array, "T *batch H"]:
    """Compute the states of a linear recurrence in O(log T) parallel steps.

        h_t = a_t h_{t-1} + b_t

    Source: Blelloch, Prefix Sums and Their Applications (1990), section 1.4.

    `decay`: a; zero resets the state.
    `inputs`: b.
    `initial`: h before the first step.
    """

    def combine(left: tuple[Array, Array], right: tuple[Array, Array]) -> tuple[Array, Array]:
        return left[0] * right[0], right[0] * left[1] + right[1]

    dtype = jnp.result_type(decay, inputs, initial)
    decay, inputs = decay.astype(dtype), inputs.astype(dtype)
    inputs = inputs.at[0].add(decay[0] * initial)
    return jax.lax.associative_scan(combine, (decay, inputs))[1]


class LinearCell(nn.Module):
    """A cell `h_t = a(x_t) h_{t-1} + b(x_t)`; a and b do not depend on the state."""

    features: int  # width of the output, in units
    # Dtype of the products of matrices; None for the inputs' dtype. Decays and states do not depend on it.
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
        return jnp.zeros((*input_shape[:-1], self.features), jnp.float32)


class MinGRUCell(LinearCell):
    """A gated recurrent unit with a gate that depends only on the input.

        z_t = sigmoid(W_z x_t),   h_t = (1 - z_t) h_{t-1} + z_t W_h x_t

    Source: Feng et al., Were RNNs All We Needed? (2024), section 3.1.
    """

    def setup(self) -> None:
        self.gate_and_candidate = nn.Dense(2 * self.features, dtype=self.dtype)

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Array, Array]:
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
    """

    min_radius: Annotated[float, _RADIUS] = 0.9  # smallest initial |lambda|
    max_radius: Annotated[float, _RADIUS] = 0.999  # largest initial |lambda|
    # Largest initial angle of lambda, in radians per step.
    max_phase: Annotated[float, Range(0.0, 2.0 * math.pi, without_low=True)] = math.pi / 10.0

    def setup(self) -> None:
        self.nu = self.param("nu", self._init_nu, (self.features,))
        self.theta = self.param("theta", self._init_theta, (self.features,))
        self.encode = nn.Dense(2 * self.features, use_bias=False, dtype=self.dtype)
        self.decode = nn.Dense(self.features, use_bias=False, dtype=self.dtype)
        self.skip = nn.Dense(self.features, dtype=self.dtype)

    def _init_nu(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Draw |lambda|^2 uniformly between the squared radii."""
        squared = jax.random.uniform(key, shape, jnp.float32, self.min_radius**2, self.max_radius**2)
        return jnp.log(-0.5 * jnp.log(jnp.clip(squared, _MIN_SQUARED, _MAX_SQUARED)))

    def _init_theta(self, key: Array, shape: tuple[int, ...]) -> Array:
        return jnp.log(jax.random.uniform(key, shape, jnp.float32, 1e-3 * self.max_phase, self.max_phase))

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Complex[Array, "*batch H"], Complex[Array, "*batch H"]]:
        log_radius = -jnp.exp(self.nu)
        decay = jnp.exp(jax.lax.complex(log_radius, jnp.exp(self.theta)))
        gain = jnp.sqrt(-jnp.expm1(2.0 * log_radius))
        real, imaginary = jnp.split(restore_float32(self.encode(x), self.dtype), 2, axis=-1)
        inputs = jax.lax.complex(real, imaginary)
        return jnp.broadcast_to(decay, inputs.shape), prepend_dims(gain, inputs.ndim) * inputs

    def read(self, state: State, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        parts = jnp.concatenate([state.real, -state.imag], axis=-1)
        decoded, skipped = (restore_float32(y, self.dtype) for y in (self.decode(parts), self.skip(x)))
        return jax.nn.gelu(decoded + skipped)

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> State:
        return jnp.zeros((*input_shape[:-1], self.features), jnp.complex64)
