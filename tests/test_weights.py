import numpy as np
import pytest

from stoix_like import weights
from stoix_like.errors import ConfigError
from support import disco


def test_the_sizes_are_those_of_the_publication():
    assert len(weights.SHAPES) == 42
    assert sum(int(np.prod(shape)) for shape in weights.SHAPES.values()) == 754_778


def test_published_weights_are_loaded():
    if not disco.PUBLISHED.exists():
        pytest.skip("the published weights are not here")
    arrays = weights.load(str(disco.PUBLISHED), weights.SHA256)
    assert {name: array.shape for name, array in arrays.items()} == weights.SHAPES


def test_a_file_is_loaded_once_it_changed(tmp_path):
    path, arrays = tmp_path / "weights.npz", disco.synthetic()
    disco.save(path)
    np.testing.assert_array_equal(weights.load(str(path), disco.digest(path))["lstm/linear/b"], arrays["lstm/linear/b"])
    arrays["lstm/linear/b"] = arrays["lstm/linear/b"] + 1.0
    disco.save(path, arrays)
    np.testing.assert_array_equal(weights.load(str(path), disco.digest(path))["lstm/linear/b"], arrays["lstm/linear/b"])


def test_no_path_stands_for_the_directory_of_the_user(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"^system.weights=null: the file .* does not exist: `stoix-like fetch disco1"
    ):
        weights.load(None, weights.SHA256)
    (tmp_path / "stoix_like").mkdir()
    path = tmp_path / "stoix_like/disco_103.npz"
    disco.save(path)
    assert set(weights.load(None, disco.digest(path))) == set(weights.SHAPES)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda arrays: arrays.pop("lstm/linear/b"), "no array lstm/linear/b"),
        (lambda arrays: arrays.update({"lstm/linear/b": np.zeros(3, np.float32)}), r"is float32 \(3,\), not"),
        (lambda arrays: arrays.update({"lstm/linear/b": np.asarray([{}])}), "allow_pickle"),
    ],
)
def test_other_arrays_are_refused(change, reason, tmp_path):
    path, arrays = tmp_path / "weights.npz", disco.synthetic()
    change(arrays)
    disco.save(path, arrays)
    with pytest.raises(ConfigError, match=rf"does not hold the arrays of Disco103 \(.*{reason}.*: `stoix-like fetch"):
        weights.load(str(path), disco.digest(path))


def test_another_file_is_refused(tmp_path):
    path = tmp_path / "weights.npz"
    path.write_text("something else")
    with pytest.raises(
        ConfigError, match=rf"^system.weights={path}: the sha256 of .* is \w+, not system.weights_sha256="
    ):
        weights.load(str(path), weights.SHA256)
    with pytest.raises(ConfigError, match="does not hold the arrays"):
        weights.load(str(path), disco.digest(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        weights.load(str(tmp_path), weights.SHA256)


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_is_told_what_to_set(monkeypatch):
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    with pytest.raises(ConfigError, match=r"^system.weights=null: .* home directory\. Set HOME or XDG_DATA_HOME\.$"):
        weights.load(None, weights.SHA256)
