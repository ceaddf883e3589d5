import io
import pickle
import zipfile

import numpy as np
import pytest

from stoix_like.data.files import content_hash, open_data, read_data, write_data
from stoix_like.errors import ConfigError
from support.recorded_data import make_data


@pytest.fixture
def path(tmp_path):
    write_data(tmp_path / "data.npz", make_data())
    return tmp_path / "data.npz"


def rewrite(path, **changes):
    """Write arrays of a file again, some of them changed; None leaves one out."""
    with np.load(path) as file:
        arrays = {**file, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("compress", [True, False])
def test_what_was_written_is_read(tmp_path, compress):
    data, path = make_data(), tmp_path / "data.npz"
    write_data(path, data, compress)
    found = read_data(path)
    assert found.header.to_json() == data.header.to_json()
    assert open_data(path).header == found.header
    assert found.header.path == str(path)
    arrays, shapes = found.arrays(), open_data(path).shapes
    assert arrays.keys() == data.arrays().keys() == shapes.keys()
    for name, array in data.arrays().items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype == shapes[name].dtype
        assert array.shape == shapes[name].shape
    # Only arrays that are not compressed can be mapped.
    assert isinstance(found.reward, np.memmap) == (not compress)


def test_mapped_arrays_of_fortran_order_keep_their_values(path):
    action = np.asfortranarray(np.arange(14, dtype=np.float32).reshape(7, 2))
    rewrite(path, actions=action)
    np.testing.assert_array_equal(read_data(path).action, action)


def test_equal_data_are_equal_bytes(path, tmp_path):
    write_data(tmp_path / "again.npz", make_data())
    other = make_data()
    other.reward[0] = 2.0
    write_data(tmp_path / "other.npz", other)
    assert content_hash(tmp_path / "again.npz") == content_hash(path) != content_hash(tmp_path / "other.npz")


def test_a_file_is_never_overwritten(path):
    before = path.read_bytes()
    with pytest.raises(ConfigError, match=r"^out=.*data.npz exists, and data sets are never overwritten"):
        write_data(path, make_data())
    assert path.read_bytes() == before
    with pytest.raises(ConfigError, match="there is no directory .*missing: create it"):
        write_data(path.parent / "missing" / "data.npz", make_data())
    assert [each.name for each in path.parent.iterdir()] == ["data.npz"]


class Opened:
    """An object that shows when it is unpickled."""

    def __reduce__(self):
        return (pytest.fail, ("it was unpickled",))


def flip_a_byte(path):
    with zipfile.ZipFile(path) as file:
        position = file.infolist()[2].header_offset - 1
    content = bytearray(path.read_bytes())
    content[position] ^= 255
    path.write_bytes(content)


def flip_a_mapped_byte(path):
    """Far behind what is read with the shape of the array."""
    rewrite(path, **{"observations/joint/pos": np.zeros((7, 2000), np.float32)})
    flip_a_byte(path)


def write_later_format(path):
    text = make_data().header.to_json().replace('"format": 1', '"format": 2')
    rewrite(path, header=np.frombuffer(text.encode(), np.uint8))


def claim_more_rows(path):
    """Let arrays that are mapped into memory claim more rows than the file has."""
    array = io.BytesIO()
    np.lib.format.write_array(array, np.zeros(2, np.float32))
    with zipfile.ZipFile(path, "w") as file:
        for name in ("observations", "actions", "terminals"):
            file.writestr(f"{name}.npy", array.getvalue().replace(b"(2,), }", b"(9,), }"))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "there is no such file: use an .npz file"),
        (lambda path: path.write_text("x" * 100), "it holds no observations: use an .npz"),
        (lambda path: path.write_bytes(b""), "it holds no observations"),
        (lambda path: path.write_bytes(pickle.dumps(Opened())), "it holds no observations"),
        (lambda path: np.savez(path, observations=np.zeros(3)), "it holds no actions"),
        (
            lambda path: np.savez(path, observations=np.array([Opened()]), actions=np.zeros(1), terminals=np.ones(1)),
            "observations is pickled, and reading it could run any code: save plain arrays",
        ),
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged, or of another layout"),
        (flip_a_byte, "damaged, or of another layout"),
        (flip_a_mapped_byte, r"damaged, or of another layout \(BadZipFile: Bad CRC-32 for file '.*pos.npy'\)"),
        (
            lambda path: rewrite(path, header=np.frombuffer(b"{}", np.uint8)),
            r"damaged, or of another layout \(the header has no format\)",
        ),
        (write_later_format, "it has the format 2, and this version reads 1: record it again"),
        (claim_more_rows, r"damaged, or of another layout \(observations has 8 bytes instead of 36\)"),
        (lambda path: rewrite(path, rewards=np.zeros(6)), r"damaged.* \(rewards has 6 rows, and .* has 7\)"),
        (lambda path: rewrite(path, rewards=None), r"damaged, or of another layout \(KeyError: 'rewards'\)"),
    ],
)
def test_other_files_are_refused_by_name(path, spoil, message):
    spoil(path)
    with pytest.raises(ConfigError, match=rf"^system\.data=.*data\.npz: {message}"):
        read_data(path)
    with pytest.raises(ConfigError, match=r"^teacher\.data=.*data\.npz: "):
        read_data(path, "teacher.data")
    with pytest.raises(ConfigError, match="there is no such file"):
        open_data(path.parent)
