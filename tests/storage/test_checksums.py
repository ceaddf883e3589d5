import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.storage import checksums as sums
from support.compiled import run

SHAPES = [(), (0,), (7,), (3, 5), (2, 3, 11), (1, 2, 5, 9), (1, 1, 7, 3), (1, 1, 4, 3, 2), (2, 1, 5, 1, 2)]
VALUES = np.random.default_rng(0)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32"])
def test_host_and_device_compute_the_same_checksums(monkeypatch, dtype):
    """Both equal sum_i (2 i + 1) word_i; blocks of 6 words split every larger array."""
    lowest = 0 if dtype in ("uint8", "bool") else -50
    arrays = [(VALUES.random(shape) * 100 + lowest).astype(dtype) for shape in SHAPES]
    words = [np.frombuffer(array.tobytes(), f"uint{8 * array.dtype.itemsize}") for array in arrays]
    expected = [sum((2 * i + 1) * int(word) for i, word in enumerate(row)) % 2**32 for row in words]
    monkeypatch.setattr(sums, "WORDS_PER_BLOCK", 6)
    assert [int(sums._sum_on_host(array)) for array in arrays] == expected
    # Not the jitted function, whose cached programs have another block size; an empty array has no words.
    filled = jax.device_put([array for array in arrays if array.size])
    on_device = run(lambda arrays: [sums._sum_on_device.__wrapped__(array) for array in arrays], filled)
    assert [int(checksum) for checksum in on_device] == [x for x, row in zip(expected, words, strict=True) if len(row)]


@pytest.mark.parametrize("place", [0, 12_345, 3 * 2**20 - 1])
def test_a_flipped_bit_changes_the_checksum(place):
    array = np.zeros((3, 2**20), np.uint8)
    before = sums.checksums({"local": {"x": jnp.asarray(array)}})
    array.reshape(-1)[place] ^= 4
    assert sums.checksums({"local": {"x": jnp.asarray(array)}}) != before


def test_arrays_with_more_words_than_32_bits_count_have_a_checksum():
    """Compiling needs none of their 2.5 GB."""
    sums._sum_on_device.lower(jax.ShapeDtypeStruct((1, 1, 50_000, 128, 128, 3), jnp.uint8)).compile()


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.float32])
def test_the_checksum_of_a_replay_buffer_needs_little_memory(dtype):
    replay = jax.ShapeDtypeStruct((1, 1, 10_000, 84, 84), dtype)
    analysis = sums._sum_on_device.lower(replay).compile().memory_analysis()
    assert analysis.temp_size_in_bytes <= 0.15 * replay.size * replay.dtype.itemsize
