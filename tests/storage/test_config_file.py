import json
import os

import pytest
from omegaconf import OmegaConf

from stoix_like.config import GROUPS, LAYOUT
from stoix_like.errors import ConfigError
from stoix_like.storage import config_file
from stoix_like.storage.run_files import LAYOUT_NUMBER

CONFIG = f"{LAYOUT}: {LAYOUT_NUMBER}\n" + "".join(f"{group}: {{a: 1}}\n" for group in GROUPS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: &a [*a]\n", "it contains aliases"),
        ("a: " + "x" * 2**21, "has more than 2,097,152 bytes"),
        ("arch: ${a.b}\n", "cannot read|it must have the groups"),
        ("a: 1\n", "it must have the groups"),
        ("a: b: c\n", "cannot read"),
    ],
)
def test_what_is_no_configuration_is_refused_in_one_line(tmp_path, text, message):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message) as error:
        config_file.plain_config(tmp_path)
    assert "\n" not in str(error.value)


def test_scalars_are_read_as_omegaconf_reads_them(tmp_path):
    scalars = ("1e3", "2020-01-01", ".5", "1_000", "off", "0x1f", "-.inf", "1.e-3", "12:30:00", "190:20:30.15")
    scalars += ("1e-05", "+1.5", "null", "~", "010", "'1'", "y")
    text = "".join(f"  k{number}: {value}\n" for number, value in enumerate(scalars))
    (tmp_path / "config.yaml").write_text(CONFIG.replace("{a: 1}", f"\n{text}", 1))
    expected = OmegaConf.to_container(OmegaConf.load(tmp_path / "config.yaml"))
    del expected[LAYOUT]
    found = config_file.plain_config(tmp_path)
    assert found == expected
    assert list(map(type, found[GROUPS[0]].values())) == list(map(type, expected[GROUPS[0]].values()))


def test_a_configuration_that_is_no_regular_file_is_refused(tmp_path):
    path = tmp_path / "config.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigError, match="is not a regular file"):
        config_file.plain_config(tmp_path)
    path.unlink()
    (tmp_path / "elsewhere").write_text(CONFIG)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is not a regular file"):
        config_file.plain_config(tmp_path)


@pytest.mark.parametrize(
    ("layout", "summary", "writer"),
    [
        ("", {"versions": {"stoix_like": "0.2.0"}}, "stoix_like 0.2.0"),
        ("layout: 99\n", {}, "another version of stoix_like"),
    ],
)
def test_runs_of_another_layout_are_refused_in_a_sentence_that_names_the_version(tmp_path, layout, summary, writer):
    (tmp_path / "config.yaml").write_text(layout + CONFIG.partition("\n")[2])
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    for read in (config_file.plain_config, config_file.read_config):
        with pytest.raises(ConfigError, match=f"was written by {writer}, in a layout that stoix_like .* does not read"):
            read(tmp_path)
