"""Long short-term memory with a matrix as memory (mLSTM), in parallel over chunks of a sequence."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from stoix_like.networks.recurrent.parallel import ParallelCell, Unrolled, match_width, product
from stoix_like.schema import between, one_of
from stoix_like.utils.jax_utils import restore_float32


class MatrixMemory(NamedTuple):
    """The state of an mLSTM: `C exp(m)` and `n exp(m)` are C and n of the equations."""

    matrix: Array  # `[..., heads, d, d]`, C: values by keys
    normalizer: Array  # `[..., heads, d]`, n
    stabilizer: Array  # `[..., heads]`, m, a logarithm


class _Steps(NamedTuple):
    """Steps of sequences, with time before the last axis of vectors: `[..., heads, T, d]` or `[..., heads, T]`."""

    log_forget: Array  # logarithm of the forget gate
    log_input: Array  # logarithm of the input gate
    key: Array  # k
    value: Array  # v
    queries: Array  # q `[Q, ..., heads, T, d]`; Q is two with the queries of the steps that follow
    reset: Array  # bool, whether a step is the first of its episode


class _Read(NamedTuple):
    """Results of queries to the memory."""

    value: Array  # C q, `[..., T, d]`
    weight: Array  # n^T q, `[..., T]`
    stabilizer: Array  # `[..., T]`, m


class _Weights(NamedTuple):
    """Weights of steps in the memory after each step."""

    steps: Array  # `[..., R, T]`, the weight of each step in the memory after step r
    start: Array  # `[..., R]`, the weight of the memory before the first step
    stabilizer: Array  # `[..., R]`, m after step r


def _weights(start: MatrixMemory, steps: _Steps, rows: Array) -> _Weights:
    """Compute what the memory after steps consists of.

        weight_rs = exp(F_r - F_s + log i_s - m_r),   F_r = sum_{j <= r} log f_j,
        m_r = max(max_s (F_r - F_s + log i_s), F_r + m_0)

    for steps s <= r of the same episode, where sums start. A reset sets m to zero, which enters its step's maximum.

    `rows`: `[R]` integers, the steps r.
    """
    episode = jnp.cumsum(steps.reset, axis=-1)
    past = jnp.tril(episode[..., None] == episode[..., None, :])
    # A difference of sums over all steps would lose digits, and gradients would pass, to earlier episodes.
    decay = jnp.sum(jnp.where(past, steps.log_forget[..., None, :], 0.0), axis=-1)
    seen, decay_after, episode_of = jnp.take(past, rows, -2), jnp.take(decay, rows, -1), jnp.take(episode, rows, -1)
    between_steps = jnp.where(seen, decay_after[..., None] - decay[..., None, :], -jnp.inf)
    largest = jnp.where(steps.reset, jnp.maximum(steps.log_input, steps.log_forget), steps.log_input)
    from_start = jnp.where(episode_of == 0, decay_after + start.stabilizer[..., None], -jnp.inf)
    # The outputs do not depend on m.
    stabilizer = jax.lax.stop_gradient(jnp.maximum(jnp.max(between_steps + largest[..., None, :], -1), from_start))
    weights = jnp.exp(between_steps + steps.log_input[..., None, :] - stabilizer[..., None])
    return _Weights(weights, jnp.exp(from_start - stabilizer), stabilizer)


def _memory_after(start: MatrixMemory, steps: _Steps, row: Array) -> MatrixMemory:
    """Return the memory after one step."""
    weights = _weights(start, steps, row[None])
    kept, dtype = weights.start[..., 0], steps.key.dtype
    keys = jnp.swapaxes(weights.steps, -1, -2) * steps.key
    matrix = product("...td,...te->...de", steps.value, keys.astype(dtype)) + kept[..., None, None] * start.matrix
    normalizer = jnp.sum(keys, -2) + kept[..., None] * start.normalizer
    return MatrixMemory(matrix, normalizer, weights.stabilizer[..., 0])


def _read(start: MatrixMemory, steps: _Steps) -> _Read:
    """Return what the queries find in the memory after each step."""
    weights, dtype = _weights(start, steps, jnp.arange(steps.log_forget.shape[-1])), steps.key.dtype
    scores = product("q...td,...sd->q...ts", steps.queries, steps.key) * weights.steps[None]
    value = product("q...ts,...sd->q...td", scores.astype(dtype), steps.value)
    before = product("q...te,...de->q...td", steps.queries, start.matrix.astype(dtype))
    weight_before = product("q...te,...e->q...t", steps.queries, start.normalizer.astype(dtype))
    value = value + weights.start[None, ..., None] * before
    return _Read(value, jnp.sum(scores, -1) + weights.start[None] * weight_before, weights.stabilizer)


def _read_successors(read: _Read, steps: _Steps) -> _Read:
    """Return what queries find after one further step each, from what they find before it."""
    stabilizer = jax.lax.stop_gradient(jnp.maximum(steps.log_forget + read.stabilizer, steps.log_input))
    kept = jnp.exp(steps.log_forget + read.stabilizer - stabilizer)
    weight = jnp.exp(steps.log_input - stabilizer) * jnp.sum(steps.key * steps.queries[0], -1, dtype=jnp.float32)
    value = kept[..., None] * read.value + weight[..., None] * steps.value
    return _Read(value, kept * read.weight + weight, stabilizer)


class MLSTMCell(ParallelCell):
    """A long short-term memory with a matrix as memory, layer normalisation and a residual connection.

        C_t = f_t C_{t-1} + i_t v_t k_t^T,   n_t = f_t n_{t-1} + i_t k_t,
        h_t = C_t q_t / max(|n_t^T q_t|, 1),   output = x_t + W (o_t norm(h_t)),
        i_t = exp(w_i u_t + b_i),   f_t = sigmoid(w_f u_t + b_f),   o_t = sigmoid(W_o u_t + b_o),   u_t = norm(x_t)

    for each head, with queries, keys and values linear in u. Time is split into chunks, one after the other in a loop;
    the steps of a chunk attend to each other in parallel. A dense layer maps inputs of another width to the output
    width.

    Source: Beck et al. 2024, arXiv:2405.04517, equations 19-27, and appendix A.3 for the parallel form; the initial
    biases of the forget gates follow the authors' code, where the norm of each head also subtracts the mean.
    """

    # Number of heads, a divisor of `features`; each has a matrix of `(features / num_heads)^2` entries.
    num_heads: Annotated[int, between(1, 2**10)] = 4
    # `sigmoid` or `exp`, the function of the forget gate.
    forget_gate: Annotated[str, one_of("sigmoid", "exp")] = "sigmoid"
    # Steps that attend to each other in parallel; the cost of a step grows with it, and the number of iterations of the
    # loop over chunks shrinks.
    chunk_size: Annotated[int, between(1, 2**12)] = 64

    def setup(self) -> None:
        self.embed = nn.Dense(self.features, use_bias=False, dtype=self.dtype)
        self.norm = nn.LayerNorm()
        self.query_key_value = nn.Dense(3 * self.features, dtype=self.dtype)
        self.gates = nn.Dense(2 * self.num_heads, dtype=self.dtype, bias_init=self._init_gates)
        self.output_gate = nn.Dense(self.features, dtype=self.dtype)
        self.head_norm = nn.RMSNorm(reduction_axes=-1, feature_axes=(-2, -1))
        self.out = nn.Dense(self.features, use_bias=False, dtype=self.dtype)

    def _init_gates(self, key: Array, shape: tuple[int, ...], dtype: Any = float) -> Array:
        """Return zero for the input gates, and 3 to 6 for the forget gates, which start almost open."""
        return jnp.concatenate([jnp.zeros(self.num_heads), jnp.linspace(3.0, 6.0, self.num_heads)]).astype(dtype)

    def _project(self, x: Array) -> tuple[Array, Array, _Steps]:
        """Return inputs as wide as the output, their norm, and their steps; `[T, ..., D]`."""
        x = restore_float32(match_width(self.embed, x), self.dtype)
        normed = self.norm(x)
        width = self.features // self.num_heads
        vectors = self.query_key_value(normed).reshape(*x.shape[:-1], 3, self.num_heads, width)
        query, key, value = (jnp.moveaxis(vectors[..., i, :, :], 0, -2) for i in range(3))
        gates = jnp.moveaxis(restore_float32(self.gates(normed), self.dtype), 0, -1)
        log_input, forget = jnp.split(gates, 2, axis=-2)
        log_forget = jax.nn.log_sigmoid(forget) if self.forget_gate == "sigmoid" else forget
        reset = jnp.zeros((*gates.shape[:-2], 1, len(x)), bool)
        key = key / np.sqrt(width).astype(key.dtype)
        return x, normed, _Steps(log_forget, log_input, key, value, query[None], reset)

    def _output(self, read: _Read, x: Array, normed: Array) -> Array:
        """Return the outputs `[T, ..., H]` from what queries find."""
        hidden = read.value / jnp.maximum(jnp.abs(read.weight), jnp.exp(-read.stabilizer))[..., None]
        hidden = self.head_norm(jnp.moveaxis(hidden, -2, 0)).reshape(x.shape)
        gate = jax.nn.sigmoid(restore_float32(self.output_gate(normed), self.dtype))
        return x + restore_float32(self.out(gate * hidden), self.dtype)

    def unroll(
        self,
        state: MatrixMemory,
        inputs: Float[Array, "T *batch D"],
        resets: Bool[Array, "T *batch"],
        every: int = 1,
        next_inputs: Float[Array, "T *batch D"] | None = None,
    ) -> Unrolled:
        x, normed, steps = self._project(inputs)
        steps = steps._replace(reset=jnp.moveaxis(resets, 0, -1)[..., None, :])
        following = None if next_inputs is None else self._project(next_inputs)
        if following is not None:
            steps = steps._replace(queries=jnp.concatenate([steps.queries, following[2].queries]))
        length, num_steps = min(len(inputs), self.chunk_size), len(inputs)
        chunks = _split(steps, length, -num_steps % length)

        def process(memory: MatrixMemory, chunk: _Steps) -> tuple[MatrixMemory, tuple[MatrixMemory, _Read]]:
            return _memory_after(memory, chunk, jnp.asarray(length - 1)), (memory, _read(memory, chunk))

        _, (starts, found) = jax.lax.scan(process, state, chunks)
        rows = np.arange(every - 1, num_steps, every)
        before, around = jax.tree.map(lambda x: x[rows // length], (starts, chunks))
        states = jax.vmap(_memory_after)(before, around, jnp.asarray(rows % length))
        value, weight, stabilizer = (
            _join(x, axis)[..., :num_steps, :] if axis == -2 else _join(x, axis)[..., :num_steps]
            for x, axis in zip(found, (-2, -1, -1), strict=True)
        )
        outputs = self._output(_Read(value[0], weight[0], stabilizer), x, normed)
        if following is None:
            return Unrolled(states, outputs, None)
        next_x, next_normed, next_steps = following
        read = _read_successors(_Read(value[1], weight[1], stabilizer), next_steps)
        return Unrolled(states, outputs, self._output(read, next_x, next_normed))

    @nn.nowrap
    def initialize_carry(self, rng: Array, input_shape: tuple[Any, ...]) -> MatrixMemory:
        heads, width = (*input_shape[:-1], self.num_heads), self.features // self.num_heads
        shapes = (*heads, width, width), (*heads, width), heads
        return MatrixMemory(*(jnp.zeros(shape, jnp.float32) for shape in shapes))


def _split(steps: _Steps, length: int, padding: int) -> _Steps:
    """Return steps in chunks, `[chunks, ..., heads, length, d]`, padded by steps that change no memory."""

    def split(x: Array, axis: int, filler: float | bool = 0.0) -> Array:
        pad = [(0, 0)] * x.ndim
        pad[axis] = (0, padding)
        x = jnp.pad(x, pad, constant_values=filler)
        axis += x.ndim
        return jnp.moveaxis(x.reshape(*x.shape[:axis], -1, length, *x.shape[axis + 1 :]), axis, 0)

    return _Steps(
        split(steps.log_forget, -1),
        split(steps.log_input, -1, -jnp.inf),
        split(steps.key, -2),
        split(steps.value, -2),
        split(steps.queries, -2),
        split(steps.reset, -1, False),
    )


def _join(x: Array, axis: int) -> Array:
    """Undo the split of the time axis of an array."""
    x = jnp.moveaxis(x, 0, axis - 1)
    return x.reshape(*x.shape[: axis - 1], -1, *x.shape[x.ndim + axis + 1 :])
