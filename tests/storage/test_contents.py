import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage.contents import parse_json, read_json, reading


def test_texts_that_are_nested_too_deeply_are_no_json(tmp_path):
    for text in ("[" * 100_000, '{"a": ' * 100_000, "{", ""):
        with pytest.raises(ValueError, match="."):
            parse_json(text)
    (tmp_path / "file.json").write_text("[1]")
    assert read_json(tmp_path / "file.json", 100, [int]) == [1]
    with pytest.raises(ValueError, match="file.json is"):
        read_json(tmp_path / "file.json", 100, {})


def test_what_malformed_contents_raise_is_refused_and_refusals_pass():
    refused = r"^runs/1 cannot be read as a run of this version \(.*\): omit it$"
    for error in (KeyError("a"), TypeError("b"), ZeroDivisionError("c"), RecursionError("d")):
        with pytest.raises(ConfigError, match=refused), reading("runs/1", "omit it"):
            raise error
    with pytest.raises(ConfigError, match="^mine$"), reading("runs/1"):
        raise ConfigError("mine")
