"""Recurrent state-space model: the latents of a world model, with a deterministic and a random part.

Shape letters: D units of the deterministic part, G categorical variables, K classes of each.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from stoix_like.networks.utils import parse_activation_fn
from stoix_like.utils.accelerate.platform import on_cpu
from stoix_like.utils.jax_utils import prepend_dims, restore_float32

_EPSILON = 1e-4


class Latent(NamedTuple):
    """The state of a world model."""

    deterministic: Array  # `[..., D]`, of the recurrent cell
    stochastic: Array  # `[..., G, K]`, one-hot, what the last observation told beyond it

    @property
    def features(self) -> Float[Array, "*batch F"]:
        """Both parts side by side, `[..., D + G K]`, for heads and decoders."""
        flat = self.stochastic.reshape(*self.stochastic.shape[:-2], -1)
        return jnp.concatenate([self.deterministic, flat], axis=-1)


class BlockDense(nn.Module):
    """A dense layer with a block-diagonal matrix: each block of inputs is connected to the same block of outputs.

    Weights start at a deviation of one over the root of the inputs of one block; in the authors' code, of all blocks.
    """

    features: int  # width of the output of each block, in units
    dtype: Any = None  # dtype of the computation; None for the promoted dtype of inputs and parameters

    @nn.compact
    def __call__(self, x: Float[Array, "*batch blocks D"]) -> Float[Array, "*batch blocks F"]:
        """Transform `[..., blocks, D]` into `[..., blocks, features]`."""
        blocks, width = x.shape[-2:]
        init = nn.initializers.variance_scaling(1.0, "fan_in", "truncated_normal", batch_axis=(0,))
        kernel = self.param("kernel", init, (blocks, width, self.features), jnp.float32)
        bias = self.param("bias", nn.initializers.zeros, (blocks, self.features), jnp.float32)
        x, kernel, bias = nn.dtypes.promote_dtype(x, kernel, bias, dtype=self.dtype)
        if on_cpu():
            # A batched product would transpose its inputs and outputs.
            product = jnp.stack([x[..., block, :] @ kernel[block] for block in range(blocks)], axis=-2)
        else:
            product = jnp.einsum("...bi,bij->...bj", x, kernel)
        return product + prepend_dims(bias, x.ndim)


class RSSM(nn.Module):
    """A recurrent state-space model with a block-diagonal gated recurrent unit and categorical latents.

        h_t = GRU(h_{t-1}, z_{t-1}, a_{t-1}),   prior p(z_t | h_t),   posterior q(z_t | h_t, x_t)

    Source: Hafner et al. 2025, Mastering diverse control tasks through world models, arXiv:2301.04104, equation 1, and
    the block-diagonal recurrent weights of its appendix.
    """

    deterministic_size: int  # units of the deterministic part, D, a multiple of `num_blocks`
    hidden_size: int  # width of the other layers, in units
    num_classes: int  # classes of each, K
    num_latents: int = 32  # categorical variables, G
    num_blocks: int = 8  # blocks of the recurrent weights
    activation: str = "silu"  # name of the activation function
    # Dtype of the computation, such as bfloat16; parameters, latents and logits stay float32. None: the promoted dtype
    # of inputs and parameters.
    dtype: Any = None

    def __post_init__(self) -> None:
        """Check that the blocks divide the deterministic part."""
        if self.deterministic_size % self.num_blocks:
            raise ValueError(
                f"deterministic_size={self.deterministic_size} must be a multiple of num_blocks={self.num_blocks}"
            )
        super().__post_init__()

    def setup(self) -> None:
        self.from_deterministic, self.from_stochastic, self.from_action = (self._layer() for _ in range(3))
        width = self.deterministic_size // self.num_blocks
        self.from_inputs = nn.Dense(self.deterministic_size, use_bias=False, dtype=self.dtype)
        self.from_block = BlockDense(width, self.dtype)
        self.joined_norm = self._norm()
        self.gates = BlockDense(3 * width, self.dtype)
        self.prior_layers = [self._layer() for _ in range(2)]
        self.prior_out = nn.Dense(self.num_latents * self.num_classes, dtype=self.dtype)
        self.posterior_in = nn.Dense(self.hidden_size, dtype=self.dtype)
        self.posterior_tokens = nn.Dense(self.hidden_size, use_bias=False, dtype=self.dtype)
        self.posterior_norm = self._norm()
        self.posterior_out = nn.Dense(self.num_latents * self.num_classes, dtype=self.dtype)

    def _norm(self) -> nn.Module:
        return nn.RMSNorm(epsilon=_EPSILON, dtype=self.dtype)

    def _layer(self) -> nn.Module:
        return _NormedDense(self.hidden_size, self.activation, self.dtype)

    def advance(self, latent: Latent, action: Float[Array, "*batch A"]) -> Float[Array, "*batch D"]:
        """Return the deterministic part of the next latent, after an action as a vector, zeros before an episode."""
        activation = parse_activation_fn(self.activation)
        state, batch = latent.deterministic, latent.deterministic.shape[:-1]
        stochastic = latent.stochastic.reshape(*batch, -1)
        # Actions may be unbounded.
        action = action / jax.lax.stop_gradient(jnp.maximum(1.0, jnp.abs(action)))
        parts = self.from_deterministic(state), self.from_stochastic(stochastic), self.from_action(action)
        inputs = jnp.concatenate(parts, axis=-1)
        blocks = state.reshape(*batch, self.num_blocks, -1)
        # Each block sees all of the inputs and its own part of the state.
        x = self.from_inputs(inputs) + self.from_block(blocks).reshape(*batch, -1)
        x = activation(self.joined_norm(x))
        gates = restore_float32(self.gates(x.reshape(*batch, self.num_blocks, -1)), self.dtype)
        reset, candidate, update = jnp.split(gates, 3, axis=-1)
        candidate = jnp.tanh(jax.nn.sigmoid(reset) * candidate)
        # The bias of -1 lets the state persist at first.
        update = jax.nn.sigmoid(update - 1.0)
        return (update * candidate + (1.0 - update) * blocks).reshape(*batch, -1)

    def prior(self, deterministic: Float[Array, "*batch D"]) -> Float[Array, "*batch G K"]:
        """Return the logits of the random part, before the observation is known."""
        first, second = self.prior_layers
        return self._logits(self.prior_out(second(first(deterministic))))

    def embed_tokens(self, tokens: Float[Array, "*batch E"]) -> Float[Array, "*batch H"]:
        """Return what `posterior` needs of an encoded observation, for all steps at once."""
        return self.posterior_tokens(tokens)

    def posterior(
        self, deterministic: Float[Array, "*batch D"], embedding: Float[Array, "*batch H"]
    ) -> Float[Array, "*batch G K"]:
        """Return the logits of the random part, given the observation, see `embed_tokens`."""
        x = self.posterior_in(deterministic) + embedding
        x = parse_activation_fn(self.activation)(self.posterior_norm(x))
        return self._logits(self.posterior_out(x))

    def _logits(self, x: Array) -> Array:
        return restore_float32(x, self.dtype).reshape(*x.shape[:-1], self.num_latents, self.num_classes)

    @nn.nowrap
    def initial(self, batch: tuple[int, ...]) -> Latent:
        """Return the latent before the first step of an episode, zeros."""
        shapes = (*batch, self.deterministic_size), (*batch, self.num_latents, self.num_classes)
        return Latent(*(jnp.zeros(shape, jnp.float32) for shape in shapes))


class _NormedDense(nn.Module):
    """A dense layer with normalisation and activation."""

    features: int
    activation: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.Dense(self.features, dtype=self.dtype)(x)
        return parse_activation_fn(self.activation)(nn.RMSNorm(epsilon=_EPSILON, dtype=self.dtype)(x))
