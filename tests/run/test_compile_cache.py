import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from stoix_like.run.host.devices import set_compile_cache
from support.trained_runs import SMALL

ROOT = Path(__file__).parents[2]
RUN = [
    *(word for word in SMALL if "compile_cache" not in word and "torso" not in word),
    *("system=ppo/ff_ppo", "arch.total_timesteps=128", "arch.num_evaluation=1"),
]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keys = ("jax_compilation_cache_dir", "jax_persistent_cache_min_compile_time_secs")
    before = {key: jax.config.values[key] for key in keys}
    jax.config.update("jax_compilation_cache_dir", None)
    yield tmp_path / "stoix_like" / "compiled"
    compilation_cache.reset_cache()
    for key, value in before.items():
        jax.config.update(key, value)


def place_of_cache(enabled=True):
    set_compile_cache(enabled)
    return jax.config.values["jax_compilation_cache_dir"]


def test_programs_are_cached_in_a_directory_of_the_user(cache):
    assert place_of_cache() == str(cache)
    assert all(path.stat().st_mode & 0o077 == 0 for path in (cache, cache.parent))
    (cache / "entry").write_bytes(b"")
    jax.config.update("jax_compilation_cache_dir", None)
    assert place_of_cache(False) is None
    assert place_of_cache() == str(cache)
    # That of an earlier call is not that of the user.
    assert place_of_cache(False) is None
    jax.config.update("jax_compilation_cache_dir", str(cache.parent))
    assert place_of_cache(False) == str(cache.parent)


def test_an_entry_that_cannot_be_read_is_reported(cache):
    """jax replaces none, so every start compiles that program; one that cannot be written is tried again."""

    def compile_again():
        compilation_cache.reset_cache()
        return jax.jit(lambda value: 3.0 * value).lower(1.0).compile()

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        set_compile_cache(True)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
        compile_again()
        (entry,) = cache.glob("*-cache")
        os.truncate(entry, entry.stat().st_size // 2)
        compile_again()
        warnings.warn("Error writing persistent compilation cache entry for 'x'", stacklevel=1)
    assert len(warned) == 1
    assert str(warned[0].message).startswith("Error reading persistent compilation cache entry")


@pytest.mark.parametrize("name", [".", "entry", "folder/entry", ".."])
@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_programs_that_others_can_have_written_are_not_read(name, mode, cache):
    (cache / "folder").mkdir(parents=True)
    for directory in (cache.parent, cache, cache / "folder"):
        directory.chmod(0o755)  # whatever the umask is
    for entry in ("entry", "folder/entry"):
        (cache / entry).touch(0o600)
    (cache / name).chmod(mode)
    with pytest.warns(UserWarning, match=f"not cached: other users can write {(cache / name).resolve()}, or"):
        assert place_of_cache() is None


def test_what_others_cannot_reach_is_read(cache, monkeypatch):
    """A private directory, behind a link, with entries of every mode, one of which another process deletes."""
    place = cache.parents[1] / "elsewhere"
    place.mkdir(mode=0o700)
    (place / "entry").touch()
    (place / "entry").chmod(0o666)
    cache.parent.mkdir()
    cache.symlink_to(place)
    walk = os.walk
    monkeypatch.setattr(os, "walk", lambda top: [*walk(top), (str(top), [], ["deleted"])])
    assert place_of_cache() == str(place)
    # Others can write into the parent, but not rename the directory.
    place.parent.chmod(0o1777)
    jax.config.update("jax_compilation_cache_dir", None)
    assert place_of_cache() == str(place)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("name", ["", "entry"])
def test_programs_of_another_owner_are_not_read(name, cache):
    cache.mkdir(parents=True, mode=0o700)
    (cache / "entry").touch(0o600)
    os.chown(cache / name, 12345, -1)
    with pytest.warns(UserWarning, match="not cached"):
        assert place_of_cache() is None


def results(run_dir):
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["wall_seconds"], line["steps_per_second"]
    last = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    state = json.loads(json.loads((last / "host_state" / "metadata").read_text())["text"])
    return lines, state["checksums"]


def checkout(place):
    """Copy the package, with another weight of PPO's value loss."""
    for part in ("stoix_like", "configs", "hydra_plugins"):
        shutil.copytree(ROOT / part, place / part, ignore=shutil.ignore_patterns("__pycache__"))
    losses = place / "stoix_like" / "utils" / "loss" / "value_learning.py"
    text = losses.read_text()
    assert text.count("return 0.5 * ") == 2
    losses.write_text(text.replace("return 0.5 * ", "return 0.25 * "))
    return {"PYTHONPATH": str(place)}


def patched(place):
    """Longer poles for every interpreter that finds this directory first: a `sitecustomize`."""
    place.mkdir()
    (place / "sitecustomize.py").write_text(
        "from gymnax.environments.classic_control.cartpole import CartPole, EnvParams\n"
        "CartPole.default_params = property(lambda self: EnvParams(length=1.0, polemass_length=0.1))\n"
    )
    return {"PYTHONPATH": os.pathsep.join([str(place), str(ROOT)])}


def sprites(place, height=16):
    directory = place / "jaxtari" / "sprites" / "pong"
    directory.mkdir(parents=True)
    digits = (f"{side}_score_{digit}" for side in ("player", "enemy") for digit in range(10))
    sizes = {"background": (210, 160), "player": (height, 4), "enemy": (height, 4), "ball": (4, 2)}
    for name, size in {**sizes, **dict.fromkeys(digits, (20, 12))}.items():
        np.save(directory / f"{name}.npy", np.full((*size, 4), 255 if name != "background" else 90, np.uint8))
    return {"XDG_DATA_HOME": str(place)}


VECTORS = [word for word in SMALL if "torso" in word]
PIXELS = [
    *("env=jaxtari/pong_pixels", "network=cnn_large_shared", "network.actor_network.pre_torso.channel_sizes=[2,2,2]"),
    *("network.actor_network.pre_torso.hidden_sizes=[8]", "+env.params.max_frames_per_episode=40"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "words"), [(checkout, VECTORS), (patched, VECTORS), (sprites, PIXELS)], ids=["checkout", "patch", "data"]
)
def test_a_run_of_changed_code_or_data_is_its_own(change, words, tmp_path):
    """With the cache of an unchanged run, the results are those without a cache, and not those of the unchanged run."""
    variables = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    variables |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "PYTHONPATH": str(ROOT)}
    variables |= sprites(tmp_path / "unchanged", height=8)

    def train(name, changed, *overrides):
        given = [*RUN, *words, *overrides, f"hydra.run.dir={tmp_path / name}"]
        command = [sys.executable, "-m", "stoix_like", "train", *given]
        subprocess.run(command, env=variables | changed, cwd=tmp_path, check=True)
        return results(tmp_path / name)

    before = train("before", {})
    changed = change(tmp_path / "changed_files")
    after = train("after", changed)
    assert after != before
    assert after == train("uncached", changed, "arch.compile_cache=false")
    assert train("again", {}) == before
