import pytest

from stoix_like.errors import ConfigError
from stoix_like.lab.aot import targets


@pytest.mark.parametrize(
    ("name", "topology", "devices"),
    [
        ("v5e-1", "v5e:2x2", 1),
        ("v5e-4", "v5e:2x2", 4),
        ("v5e-8", "v5e:2x4", 8),
        ("v6e-256", "v6e:16x16", 256),
        # Named by their cores.
        ("v5p-8", "v5p:2x2x1", 4),
        ("v5p-16", "v5p:2x2x2", 8),
        ("v5p-128", "v5p:4x4x4", 64),
    ],
)
def test_a_slice_of_tpus_has_the_layout_of_its_size(name, topology, devices):
    target = targets.find_target(name)
    assert (target.platform, target.topology, target.num_devices) == ("tpu", topology, devices)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("h20", r"--for h20 names no GPU, .*: did you mean 'h200'"),
        ("gpu", r"--for gpu: which one\? Use b200, h200,.* or rtx3090$"),
        ("tpu", r"--for tpu: which one\? Use v5e-4, v5p-8 or v6e-4; the number is the size of the slice"),
        ("v5e-512", "--for v5e-512: there is no slice of this size; use v5e-4, v5e-8, v5e-16, … or v5e-256"),
        ("v5e-3", "--for v5e-3: there is no slice of this size; use v5e-4, v5e-8"),
        ("v5p-3", "--for v5p-3: there is no slice of this size; use v5p-8, v5p-16"),
    ],
)
def test_an_unknown_target_is_refused(name, message):
    with pytest.raises(ConfigError, match=message):
        targets.find_target(name)


def test_a_gpu_is_described_by_a_file(tmp_path):
    file = tmp_path / "small.txtpb"
    known = targets.find_target("rtx3090")
    file.write_text(known.topology.replace(str(known.memory), "1000000").replace(known.title, "Small"))
    found = targets.find_target(str(file))
    assert (found.title, found.platform, found.memory, found.num_devices) == ("Small", "cuda", 1_000_000, 1)
    # Several fields in a line, and no description in words.
    flat = " ".join(known.topology.split("device_description_str")[0].split())
    file.write_text(flat)
    assert targets.find_target(str(file))[1:] == ("small", "cuda", flat, known.memory, 1)
    # The compiler would divide by zero.
    file.write_text(flat.replace("threads_per_warp: 32", ""))
    with pytest.raises(ConfigError, match=r"not a description of a GPU, .* it has no threads_per_warp$"):
        targets.find_target(str(file))
    file.write_text("cores: 3")
    with pytest.raises(ConfigError, match="not a description of a GPU"):
        targets.find_target(str(file))


def test_a_run_gets_the_part_of_a_gpu_that_jax_reserves(monkeypatch):
    for name in ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        monkeypatch.delenv(name, raising=False)
    target = targets.find_target("h200")._replace(memory=1000)
    assert target.usable == 750
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", ".9")
    assert target.usable == 900
    assert targets.find_target("v5e-4")._replace(memory=1000).usable == 1000


def test_the_rates_of_a_gpu_follow_from_its_description(tmp_path):
    """132 cores at 1.98 GHz with 2048 operations of TF32 per clock; an A100 has 108, 1.41 and 1024, and minor 0."""
    assert targets.find_target("h200").rates.flops == pytest.approx(0.37 * 132 * 1.98e3 * 2048)
    assert targets.find_target("h200").rates.exact_flops == pytest.approx(0.37 * 132 * 1.98e3 * 256)
    a100 = targets.find_target("a100")
    file = tmp_path / "a100.txtpb"
    file.write_text(a100.topology.replace("{ major: 8 minor: 0 }", "{ major: 8 }"))
    assert targets.find_target(str(file)).rates == a100.rates
    assert a100.rates.flops == pytest.approx(0.37 * 108 * 1.41e3 * 1024)
    assert targets.find_target("v5e-4").rates is None
