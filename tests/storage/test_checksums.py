import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stoix_like.storage import checksums as sums

SHAPES = [(), (0,), (7,), (3, 5), (2, 3, 11), (1, 2, 5, 9)]
VALUES = np.random.default_rng(0)


def an_array(shape, dtype):
    return (VALUES.random(shape) * 100 - (0 if dtype in ("uint8", "bool") else 50)).astype(dtype)


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int32", "float16", "float32"])
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_the_same_on_the_host_and_in_blocks_on_the_device(monkeypatch, shape, dtype):
    """By hand: the sum of (2 i + 1) times the i-th word. Blocks of 6 words cut every larger array somewhere."""
    array = an_array(shape, dtype)
    words = np.frombuffer(array.tobytes(), f"uint{8 * array.dtype.itemsize}")
    expected = sum((2 * i + 1) * int(word) for i, word in enumerate(words)) % 2**32
    monkeypatch.setattr(sums, "WORDS_PER_BLOCK", 6)
    assert int(sums._sum_on_host(array)) == expected
    if array.size:
        # Not through the cache of programs, in which blocks are of another size.
        assert int(sums._sum_on_device.__wrapped__(jnp.asarray(array))) == expected


@pytest.mark.parametrize("place", [0, 12_345, 3 * 2**20 - 1])
def test_one_bit_more_is_another_sum(place):
    array = np.zeros((3, 2**20), np.uint8)
    before = sums.checksums({"local": {"x": jnp.asarray(array)}})
    array.reshape(-1)[place] ^= 4
    assert sums.checksums({"local": {"x": jnp.asarray(array)}}) != before


@pytest.mark.parametrize("dtype", [jnp.uint8, jnp.float32])
def test_the_sum_takes_no_memory_of_the_size_of_a_replay(dtype):
    replay = jax.ShapeDtypeStruct((1, 1, 10_000, 84, 84), dtype)
    analysis = sums._sum_on_device.lower(replay).compile().memory_analysis()
    assert analysis.temp_size_in_bytes <= 0.15 * replay.size * replay.dtype.itemsize
