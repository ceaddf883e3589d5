"""Simplified state space layers (S5)."""

from __future__ import annotations

import functools
from typing import Annotated, Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array, Complex, Float

from stoix_like.networks.recurrent.linear import LinearCell, State
from stoix_like.networks.recurrent.parallel import match_width
from stoix_like.schema import above, between
from stoix_like.utils.jax_utils import prepend_dims, restore_float32

# The largest real part of an eigenvalue, so that states decay.
_MAX_REAL = -1e-4
# Beyond, the initialisation takes minutes, and the gigabytes of the eigenvectors.
MAX_STATES = 2**12
# Of Newton's method, which takes 2 log2(P) steps to the largest eigenvalue and a few more to all its digits.
_NEWTON_STEPS = 40


@functools.lru_cache(maxsize=4)
def hippo_eigenvalues(size: int) -> np.ndarray:
    """Compute the eigenvalues of the normal part of the HiPPO-LegS matrix.

        A^N = A + p p^T,   p_n = sqrt(n + 1/2),
        A_nk = -sqrt((2n + 1)(2k + 1)) for n > k,   -(n + 1) for n = k,   0 otherwise

    The matrix is -1/2 on the diagonal and -+r_n r_k / 2 below and above, r_n^2 = 2n + 1. So differences of successive
    rows of (A^N + 1/2) v = i m v are a recurrence in v_n, see `hippo_eigenvectors`; its two ends fit together where

        sum_n atan(2m / r_n^2) = (k + 1/2) pi,   k = 0, 1, ...

    The sum is Im log Gamma(P + 1/2 + i m) - Im log Gamma(1/2 + i m), concave for m > 0: Newton's method converges
    from 0. In matrices, it would be a computation of the order of P^3.

    Source: Smith et al. 2023, arXiv:2208.04933, appendix B.1.1.

    `size`: P, an even number of rows.
    Returns `[P / 2]`, the eigenvalues -1/2 + i m with m > 0, ascending; the others are their complex conjugates.
    """
    from scipy import special  # takes a while, which other networks save

    targets, imaginary = np.pi * (np.arange(size // 2) + 0.5), np.zeros(size // 2)
    for _ in range(_NEWTON_STEPS):
        low = 0.5 + 1j * imaginary
        angles, slopes = (function(low + size) - function(low) for function in (special.loggamma, special.digamma))
        imaginary = imaginary - (angles.imag - targets) / slopes.real
    return -0.5 + 1j * imaginary


@functools.lru_cache(maxsize=4)
def hippo_eigenvectors(size: int) -> np.ndarray:
    """Compute the eigenvectors that belong to `hippo_eigenvalues`.

        v_n = (-1)^n exp(-2i sum_{j < n} atan(2m / r_j^2)) / (r_n (1/2 + i m / r_n^2))   but for their length

    `size`: P, an even number of rows. Returns `[P, P / 2]`, columns of length one.
    """
    squares = (2.0 * np.arange(size) + 1.0)[:, None]
    ratio = hippo_eigenvalues(size).imag / squares
    angle = np.arctan(2.0 * ratio)
    vectors = np.exp(1j * (np.pi * np.arange(size)[:, None] - 2.0 * (np.cumsum(angle, 0) - angle)))
    vectors /= np.sqrt(squares) * (0.5 + 1j * ratio)
    return vectors / np.linalg.norm(vectors, axis=0)


class S5Cell(LinearCell):
    """A state space layer with diagonal complex states, a gated unit, layer normalisation and a residual connection.

        h_t = exp(Lambda Delta) h_{t-1} + Lambda^{-1} (exp(Lambda Delta) - 1) B u_t,   y_t = 2 Re(C h_t) + D u_t,
        u_t = norm(x_t),   g_t = gelu(y_t),   output = x_t + g_t sigmoid(W g_t)

    One state of each conjugate pair is kept, hence the factor 2. Lambda, B and C start from the eigenvalues and
    eigenvectors of the HiPPO-N matrix. A dense layer maps inputs of another width to the output width.

    Source: Smith et al. 2023, arXiv:2208.04933, sections 2.3 and 3, appendices B.1 and G.1; resets as in Lu et al.
    2023, arXiv:2303.03982, section 3.2.
    """

    # Number of complex states; None: half of `features`, rounded up, which must be in the range, too.
    states: Annotated[int, between(1, MAX_STATES)] | None = None
    # Shortest initial time step Delta, in units of the time scale of Lambda.
    dt_min: Annotated[float, above(0.0)] = 1e-3
    dt_max: Annotated[float, above(0.0)] = 1e-1  # longest initial time step
    prenorm: bool = True  # whether to normalise the inputs; otherwise, the sum of the residual connection is normalised

    @property
    def num_states(self) -> int:
        """Number of complex states, P."""
        return self.states or (self.features + 1) // 2

    def setup(self) -> None:
        eigenvalues = hippo_eigenvalues(2 * self.num_states)
        for name, values in (("real", eigenvalues.real), ("imaginary", eigenvalues.imag)):
            setattr(self, name, self.param(name, lambda _, values=values: jnp.asarray(values, jnp.float32)))
        low, high = np.log(self.dt_min), np.log(self.dt_max)
        self.log_step = self.param("log_step", jax.random.uniform, (self.num_states,), jnp.float32, low, high)
        self.skip = self.param("skip", initializers.normal(1.0), (self.features,), jnp.float32)
        kwargs: dict[str, Any] = {"use_bias": False, "dtype": self.dtype}
        self.embed = nn.Dense(self.features, **kwargs)
        self.encode = nn.Dense(2 * self.num_states, kernel_init=self._init_encoder, **kwargs)
        self.decode = nn.Dense(self.features, kernel_init=self._init_decoder, **kwargs)
        self.gate = nn.Dense(self.features, dtype=self.dtype)
        self.norm = nn.LayerNorm()

    def _init_encoder(self, key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
        """Draw B in the coordinates of the eigenvectors; real and imaginary parts side by side."""
        vectors = hippo_eigenvectors(2 * self.num_states)
        inputs = initializers.lecun_normal()(key, (shape[0], len(vectors)), dtype) @ vectors.conj()
        return jnp.concatenate([inputs.real, inputs.imag], -1).astype(dtype)

    def _init_decoder(self, key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
        """Draw 2 C in the coordinates of the eigenvectors, for real parts above negative imaginary parts."""
        vectors = hippo_eigenvectors(2 * self.num_states)
        drawn = initializers.lecun_normal()(key, (len(vectors), 2 * shape[1]), dtype)
        real, imaginary = drawn.T.reshape(2, shape[1], -1)
        outputs = 2.0 * (real + 1j * imaginary) @ vectors
        return jnp.concatenate([outputs.real, outputs.imag], -1).T.astype(dtype)

    def _inputs(self, x: Array) -> tuple[Array, Array]:
        """Return the inputs as wide as the output, and as the state space takes them."""
        x = restore_float32(match_width(self.embed, x), self.dtype)
        return x, self.norm(x) if self.prenorm else x

    def terms(self, x: Float[Array, "*batch D"]) -> tuple[Complex[Array, "*batch P"], Complex[Array, "*batch P"]]:
        """Return decay a and input b, `[..., P]` each, for inputs `[..., D]`."""
        eigenvalues = jax.lax.complex(jnp.minimum(self.real, _MAX_REAL), self.imaginary)
        decay = jnp.exp(eigenvalues * jnp.exp(self.log_step))
        gain = (decay - 1.0) / eigenvalues
        real, imaginary = jnp.split(restore_float32(self.encode(self._inputs(x)[1]), self.dtype), 2, axis=-1)
        inputs = jax.lax.complex(real, imaginary)
        return jnp.broadcast_to(decay, inputs.shape), prepend_dims(gain, inputs.ndim) * inputs

    def read(self, state: State, x: Float[Array, "*batch D"]) -> Float[Array, "*batch F"]:
        """Return the output, `[..., H]`, for states `[..., P]`."""
        x, inputs = self._inputs(x)
        parts = jnp.concatenate([state.real, -state.imag], axis=-1)
        skip = prepend_dims(self.skip, x.ndim)
        y = jax.nn.gelu(restore_float32(self.decode(parts), self.dtype) + skip * inputs)
        output = x + y * jax.nn.sigmoid(restore_float32(self.gate(y), self.dtype))
        return output if self.prenorm else self.norm(output)

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> State:
        return jnp.zeros((*input_shape[:-1], self.num_states), jnp.complex64)
