"""Gated transformer-XL: attention to the last steps of an episode."""

from __future__ import annotations

import functools
from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jax.nn import initializers
from jaxtyping import Array, Bool, Float

from stoix_like.networks.recurrent.parallel import ParallelCell, Unrolled, match_width, product
from stoix_like.schema import at_least, between
from stoix_like.utils.jax_utils import prepend_dims, restore_float32

# The longest wavelength of the encodings of distances, in steps / 2 pi.
_LONGEST = 10_000.0


def encode_distances(num_distances: int, width: int) -> np.ndarray:
    """Return the sinusoidal encodings of distances between steps.

        R_d = (sin(d w_0), ..., sin(d w_{H/2}), cos(d w_0), ..., cos(d w_{H/2})),   w_j = 10000^(-2j / H)

    Source: Dai et al. 2019, arXiv:1901.02860, section 3.3; Vaswani et al. 2017, arXiv:1706.03762, section 3.5.

    `num_distances`: from 0 on, in steps. Returns `[num_distances, width]`, H = `width`.
    """
    frequencies = _LONGEST ** (-np.arange(0, width, 2) / width)
    angles = np.arange(num_distances)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], -1)[:, :width].astype(np.float32)


def skew(x: Float[Array, "*batch T M"]) -> Float[Array, "*batch T K"]:
    """Shift each row by one more entry than the row before: entry `[t, j]` of the result is entry `[t, j - t]`.

    Source: Dai et al. 2019, arXiv:1901.02860, appendix B, with rows of one length.

    Returns `[..., T, T + M - 1]`; entries outside of the rows are zero.
    """
    *batch, length, width = x.shape
    padded = jnp.pad(x, [(0, 0)] * (len(batch) + 1) + [(0, length)])
    return padded.reshape(*batch, -1)[..., :-length].reshape(*batch, length, length + width - 1)


class GRUGate(nn.Module):
    """A gate between the input of a submodule and its output.

        r = sigmoid(W_r y + U_r x),   z = sigmoid(W_z y + U_z x - b),   g = (1 - z) x + z tanh(W_g y + U_g (r x))

    Source: Parisotto et al. 2019, arXiv:1910.06764, section 3.2.
    """

    bias: float  # initial b; a large one starts from the identity g = x
    dtype: Any = None  # dtype of the products of matrices; None for the inputs' dtype

    @nn.compact
    def __call__(self, x: Float[Array, "*batch H"], y: Float[Array, "*batch H"]) -> Float[Array, "*batch H"]:
        """Return the gated output g."""
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        width = x.shape[-1]
        y_r, y_z, y_g = jnp.split(restore_float32(dense(3 * width, name="from_output")(y), self.dtype), 3, axis=-1)
        x_r, x_z = jnp.split(restore_float32(dense(2 * width, name="from_input")(x), self.dtype), 2, axis=-1)
        bias = self.param("bias", initializers.constant(self.bias), (width,), jnp.float32)
        z = jax.nn.sigmoid(y_z + x_z - prepend_dims(bias, x.ndim))
        candidate = restore_float32(dense(width, name="from_reset_input")(jax.nn.sigmoid(y_r + x_r) * x), self.dtype)
        return (1.0 - z) * x + z * jnp.tanh(y_g + candidate)


class _Sequence(NamedTuple):
    """Steps which attend to themselves and to keys."""

    query: Array  # `[T, ..., heads, d]`
    own: Array  # `[T, ..., 2, heads, d]`, the keys and values of the steps themselves
    episode: Array  # `[T, ...]`, the number of the episode of each step
    keys: Array  # `[T + M - 1, ..., 2, heads, d]`, keys and values; step t attends to those from t to t + M - 1
    episodes: Array  # `[T + M - 1, ...]`, the number of the episode of each key


class GTrXLCell(ParallelCell):
    """A layer of a gated transformer-XL, which attends to itself and to the last M steps of its episode.

        Y_t = gate(E_t, relu(attention(norm(E_{t-M}), ..., norm(E_t)))),   output = gate(Y_t, relu(mlp(norm(Y_t)))),
        score of query t for key s: ((q_t + u)^T k_s + (q_t + v)^T W R_{t-s}) / sqrt(d)

    The state holds the inputs E of the last M steps; the last entry of a row is one if the row holds a step, and zero
    before the episode. No gradient flows through the state before a sequence. A dense layer maps inputs of another
    width to the output width.

    Source: Parisotto et al. 2019, arXiv:1910.06764, section 3; scores from Dai et al. 2019, arXiv:1901.02860, section
    3.3.
    """

    # M, number of earlier steps that a step attends to; n layers remember n M steps.
    window: Annotated[int, between(1, 2**14)] = 32
    num_heads: Annotated[int, between(1, 2**10)] = 4  # number of heads, a divisor of `features`
    mlp_factor: Annotated[int, between(1, 64)] = 4  # width of the hidden layer, in multiples of `features`
    # Initial bias b of the gates; above zero, a layer starts close to the identity.
    gate_bias: Annotated[float, at_least(0.0)] = 2.0

    def setup(self) -> None:
        dense = functools.partial(nn.Dense, use_bias=False, dtype=self.dtype)
        self.norms = [nn.LayerNorm(), nn.LayerNorm()]
        self.embed, self.query, self.position, self.out = (dense(self.features) for _ in range(4))
        self.key_value = dense(2 * self.features)
        self.biases = self.param("attention_biases", initializers.zeros, (2, *self._heads), jnp.float32)
        self.mlp = [nn.Dense(width, dtype=self.dtype) for width in (self.mlp_factor * self.features, self.features)]
        self.gates = [GRUGate(self.gate_bias, self.dtype) for _ in range(2)]

    def unroll(
        self,
        state: Float[Array, "*batch M W"],
        inputs: Float[Array, "T *batch D"],
        resets: Bool[Array, "T *batch"],
        every: int = 1,
        next_inputs: Float[Array, "T *batch D"] | None = None,
    ) -> Unrolled:
        # Steps one after the other are one sequence.
        state = state if len(inputs) == 1 else jax.lax.stop_gradient(state)
        before = jnp.moveaxis(state, -2, 0)
        x = self._embed(inputs)
        rows = jnp.concatenate([before, jnp.concatenate([x, jnp.ones((*x.shape[:-1], 1), x.dtype)], -1)])
        # A single step, as in a rollout and in an exported policy, needs no sum.
        episode = resets.astype(jnp.int32) if len(inputs) == 1 else jnp.cumsum(resets, axis=0)
        # Rows without a step belong to no episode.
        episodes = jnp.concatenate([jnp.where(before[..., -1] > 0.5, 0, -1), episode])
        normed = self.norms[0](rows[..., :-1])
        keys = self._keys(normed)
        outputs = self._output(x, normed[self.window :], keys[self.window :], episode, keys[:-1], episodes[:-1])
        states = self._states(rows, episodes, np.arange(every - 1, len(inputs), every))
        if next_inputs is None:
            return Unrolled(states, outputs, None)
        next_x = self._embed(next_inputs)
        next_normed = self.norms[0](next_x)
        successors = self._output(next_x, next_normed, self._keys(next_normed), episode, keys[1:], episodes[1:])
        return Unrolled(states, outputs, successors)

    @property
    def _heads(self) -> tuple[int, int]:
        return self.num_heads, self.features // self.num_heads

    def _keys(self, normed: Array) -> Array:
        return self.key_value(normed).reshape(*normed.shape[:-1], 2, *self._heads)

    def _embed(self, x: Array) -> Array:
        return restore_float32(match_width(self.embed, x), self.dtype)

    def _states(self, rows: Array, episodes: Array, steps: np.ndarray) -> Array:
        """Return the states after steps, from the rows `[M + T, ..., H + 1]` of the state before and of all steps."""
        if len(steps) == 1:
            (step,) = steps.tolist()
            windows, owners = (x[None, step + 1 : step + 1 + self.window] for x in (rows, episodes))
        else:
            index = steps[:, None] + 1 + np.arange(self.window)
            windows, owners = rows[index], episodes[index]
        is_own = owners == episodes[steps + self.window][:, None]
        return jnp.moveaxis(jnp.where(is_own[..., None], windows, 0.0), 1, -2)

    def _output(
        self, x: Array, normed: Array, own: Array, episode: Array, keys: Array, episodes: Array
    ) -> Float[Array, "T *batch H"]:
        """Return the outputs for inputs `[T, ..., H]`, their norms, and the other parts of a `_Sequence`."""
        num_steps, window = len(x), self.window
        positions = self.position(jnp.asarray(encode_distances(window + 1, self.features))).reshape(-1, *self._heads)
        sequence = _Sequence(self.query(normed).reshape(*normed.shape[:-1], *self._heads), own, episode, keys, episodes)
        attended = _attend(_in_blocks(sequence, window) if num_steps > window else sequence, positions, self.biases)
        if num_steps > window:
            attended = jnp.swapaxes(attended, 0, 1).reshape(-1, *attended.shape[2:])[:num_steps]
        y = self.gates[0](x, jax.nn.relu(restore_float32(self.out(attended.reshape(x.shape)), self.dtype)))
        hidden = self.mlp[1](jax.nn.relu(self.mlp[0](self.norms[1](y))))
        return self.gates[1](y, jax.nn.relu(restore_float32(hidden, self.dtype)))

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> Array:
        return jnp.zeros((*input_shape[:-1], self.window, self.features + 1), jnp.float32)


def _in_blocks(sequence: _Sequence, window: int) -> _Sequence:
    """Return blocks of M queries with their 2 M - 1 keys, `[M, blocks, ...]`, which attend as sequences of their own.

    Without blocks, the scores would grow with the square of the length of a sequence.
    """
    padding = -len(sequence.query) % window

    def split(x: Array, padding: int, filler: int = 0) -> Array:
        x = jnp.pad(x, [(0, padding)] + [(0, 0)] * (x.ndim - 1), constant_values=filler)
        return jnp.swapaxes(x.reshape(-1, window, *x.shape[1:]), 0, 1)

    def overlapping(x: Array, filler: int = 0) -> Array:
        # One more, so that blocks are whole.
        blocks = split(x, padding + 1, filler)
        return jnp.concatenate([blocks[:, :-1], blocks[:, 1:]])[:-1]

    query, own, episode = (split(x, padding) for x in sequence[:3])
    return _Sequence(query, own, episode, overlapping(sequence.keys), overlapping(sequence.episodes, -1))


def _attend(sequence: _Sequence, positions: Array, biases: Array) -> Float[Array, "T *batch heads d"]:
    """Return what queries find in their own steps and in the M steps before, by encoded distances and both biases."""
    query, own, episode, keys, episodes = sequence
    num_steps, window, dtype = len(query), len(positions) - 1, query.dtype
    biases = biases.astype(dtype).reshape(2, *(1,) * (query.ndim - 2), *biases.shape[1:])
    for_keys, for_positions = query + biases[0], query + biases[1]
    # Keys lie in the order of time: the first of a row is the farthest.
    at_distance = product("t...hd,mhd->...htm", for_positions, positions[::-1])
    scores = product("t...hd,s...hd->...hts", for_keys, keys[..., 0, :, :]) + skew(at_distance[..., :-1])
    own_score = jnp.moveaxis(jnp.sum(for_keys * own[..., 0, :, :], -1, dtype=jnp.float32), 0, -1) + at_distance[..., -1]
    later = np.arange(len(keys)) - np.arange(num_steps)[:, None]
    in_window = (later >= 0) & (later < window)
    same = jnp.moveaxis(episode, 0, -1)[..., None] == jnp.moveaxis(episodes, 0, -1)[..., None, :]
    seen = (same & prepend_dims(in_window, same.ndim))[..., None, :, :]
    scores = jnp.concatenate([jnp.where(seen, scores, -jnp.inf), own_score[..., None]], -1)
    weights = jax.nn.softmax(scores / np.sqrt(query.shape[-1]), -1).astype(dtype)
    found = product("...hts,s...hd->t...hd", weights[..., :-1], keys[..., 1, :, :])
    return found + jnp.moveaxis(weights[..., -1], -1, 0)[..., None] * own[..., 1, :, :]
