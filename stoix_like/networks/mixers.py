"""Networks that mix the values of agents to a team value."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

_BIASES = nn.initializers.normal(0.1)


class MonotonicMixer(nn.Module):
    """A value of a team that grows with the value of each of its agents, with weights that depend on the state.

    `Q(s, q) = |w_2(s)| . elu(|W_1(s)| q + b_1(s)) + v(s)`

    The networks of the weights normalise their hidden layer, as PQN's do, which has no target parameters:
    otherwise values grow with the state and diverge. Its initial biases are not zero, as in the authors' code: where
    states are always zero, the weights would start at zero and get no gradient. In the paper, only `v` has that layer.

    Source: Rashid et al. 2018, "QMIX: monotonic value function factorisation for deep multi-agent reinforcement
    learning" (arXiv:1803.11485), section 4 and appendix C.
    """

    embed_dim: int = 32  # units of the mixing layer
    hyper_dim: int = 64  # hidden units of the networks that compute its weights

    @nn.compact
    def __call__(self, values: jax.Array, state: jax.Array) -> jax.Array:
        """Mix values `[..., A]` of agents by the state `[..., S]` of their game: `[...]` values of the team."""
        w_1 = jnp.abs(self._hyper(values.shape[-1] * self.embed_dim, state)).reshape(*values.shape, self.embed_dim)
        hidden = nn.elu(jnp.einsum("...a,...ae->...e", values, w_1) + self._hyper(self.embed_dim, state))
        w_2 = jnp.abs(self._hyper(self.embed_dim, state))
        return jnp.sum(hidden * w_2, axis=-1) + self._hyper(1, state)[..., 0]

    def _hyper(self, width: int, state: jax.Array) -> jax.Array:
        return nn.Dense(width)(nn.relu(nn.LayerNorm()(nn.Dense(self.hyper_dim, bias_init=_BIASES)(state))))
