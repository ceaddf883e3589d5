"""Position-weighted checksums of arrays, which any single flipped bit changes."""

from __future__ import annotations

import math
from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

WORDS_PER_BLOCK = 2**20


def checksums(items: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, dict[str, int]]:
    """Compute the position-weighted sum of the words of each array, modulo 2**32.

    sum_i (2 i + 1) word_i
    """

    def add(leaf: jax.Array) -> int:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            leaf = jax.random.key_data(leaf)
        # Compiling a program for every shape would take longer than fetching most arrays.
        on_host = leaf.size <= WORDS_PER_BLOCK and (leaf.is_fully_addressable or leaf.is_fully_replicated)
        return int(_sum_on_host(np.asarray(leaf)) if on_host else _sum_on_device(leaf))

    return jax.tree.map(add, items)


def _sum_on_host(leaf: np.ndarray) -> np.uint32:
    words = leaf.reshape(-1).view(np.dtype(f"uint{8 * min(leaf.dtype.itemsize, 4)}"))
    words = words.reshape(leaf.size, max(1, leaf.dtype.itemsize // 4)).sum(-1, dtype=np.uint32)
    return np.sum(words * (2 * np.arange(words.size, dtype=np.uint32) + 1), dtype=np.uint32)


@jax.jit
def _sum_on_device(leaf: jax.Array) -> jax.Array:
    """Sum block by block: all words at once would take several times the memory of a uint8 replay buffer."""
    # Arrays are sharded along their first two axes only.
    lead = leaf.shape[:2]
    count, length = math.prod(lead), math.prod(leaf.shape[2:])
    # Blocks are counted in entries, such as observations: more words than 32 bits can count may follow each other.
    width = 1
    for size in reversed(leaf.shape[2:]):
        if width * size > max(1, WORDS_PER_BLOCK // count):
            break
        width *= size
    rows = leaf.reshape(*lead, length // width, width)
    block = min(length // width, max(1, WORDS_PER_BLOCK // (count * width)))
    row = jnp.arange(count, dtype=jnp.uint32).reshape(*lead, 1, 1)
    within = jnp.arange(width, dtype=jnp.uint32).reshape(*(1 for _ in lead), 1, width)

    def add(index: jax.Array, total: jax.Array) -> jax.Array:
        # The last block overlaps the one before it, so that all blocks have the same length.
        start = jnp.minimum(index * block, length // width - block)
        words = jax.lax.dynamic_slice_in_dim(rows, start, block, axis=-2)
        if words.dtype != jnp.bool_:
            words = jax.lax.bitcast_convert_type(words, jnp.dtype(f"uint{min(8 * words.dtype.itemsize, 32)}"))
        words = words.reshape(*lead, block, width, -1).sum(-1, dtype=jnp.uint32)
        entry = start + jnp.arange(block).reshape(*(1 for _ in lead), block, 1)
        position = entry.astype(jnp.uint32) * np.uint32(width) + within
        odd = 2 * (row * np.uint32(length % 2**32) + position) + 1
        return total + jnp.sum(jnp.where(entry >= index * block, words * odd, 0), dtype=jnp.uint32)

    return jax.lax.fori_loop(0, -(-(length // width) // block), add, jnp.zeros((), jnp.uint32))
