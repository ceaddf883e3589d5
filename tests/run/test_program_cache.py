"""The cache of compiled programs: what it finds again, and what it must not find."""

import dataclasses
import json
import os
import secrets
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from trained_runs import SMALL

from stoix_like.composition import compose_config
from stoix_like.config import parse_config
from stoix_like.envs import factory
from stoix_like.run import program_cache
from stoix_like.run.devices import find_devices, make_mesh
from stoix_like.run.program_cache import ProgramCache, open_cache

# Programs of this process alone, which jax's own cache does not have.
UNIQUE = secrets.randbelow(2**20)


def cache_in(directory, run=None):
    return ProgramCache(directory, "settings", run, (jax.devices()[0],), started=1e12)


class One(NamedTuple):
    y: jax.Array


class Other(NamedTuple):
    y: jax.Array


def lowered(function):
    return jax.jit(function).lower(jnp.zeros(3))


def parsed(*overrides):
    return parse_config(compose_config(["system=ppo/ff_ppo", "env=gymnax/cartpole", *overrides]))


def test_an_executable_is_found_by_its_lowered_program(tmp_path):
    first = cache_in(tmp_path).compile("f", lowered(lambda x: One(jnp.tanh(x) + UNIQUE)))(jnp.ones(3))
    (file,) = tmp_path.iterdir()
    written = file.stat().st_ino
    # The structures of arguments and results are those of this program, which its text does not show.
    again = cache_in(tmp_path).compile("f", lowered(lambda x: Other(jnp.tanh(x) + UNIQUE)))(jnp.ones(3))
    np.testing.assert_array_equal(again.y, first.y)
    assert (type(first), type(again)) == (One, Other)
    assert [path.stat().st_ino for path in tmp_path.iterdir()] == [written]
    assert file.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("others", [("b",), ("b", "c")])
def test_programs_of_one_text_that_take_other_arguments_are_told_apart(others, tmp_path):
    def result(used, values):
        program = jax.jit(lambda x, values: x + UNIQUE * values[used]).lower(0.0, values)
        return float(cache_in(tmp_path).compile("f", program)(0.0, values))

    first = {"a": 1.0, "b": 2.0}
    assert result("b", first) == 2.0 * UNIQUE
    assert result("a", {"a": 1.0} | dict.fromkeys(others, 2.0)) == UNIQUE


def test_an_entry_has_the_programs_of_a_run_while_its_sources_stay(tmp_path, monkeypatch):
    source, shapes, state = tmp_path / "source.py", (jax.ShapeDtypeStruct((2,), jnp.int32),), {"w": jnp.zeros(4)}
    source.write_text("old")
    monkeypatch.setattr(program_cache, "_sources", lambda: {str(source): program_cache._changed(str(source))})
    directory = tmp_path / "programs"
    directory.mkdir()
    cache = cache_in(directory, "run")
    cache.shapes(lambda: shapes)
    compiled = {"f": cache.compile("f", lowered(lambda x: x * UNIQUE))}
    cache.write(["f", "g"], state)
    assert cache_in(directory, "run").load() == ({}, None)  # not all programs are stored
    cache.write(list(compiled), state)

    found = cache_in(directory, "run")
    assert found.shapes(pytest.fail) == shapes
    loads, found_state = found.load()
    np.testing.assert_array_equal(loads["f"]()(jnp.ones(3)), UNIQUE * jnp.ones(3))
    found.start_loading()
    np.testing.assert_array_equal(found.load()[0]["f"]()(jnp.ones(3)), UNIQUE * jnp.ones(3))
    assert found_state == {"w": jax.ShapeDtypeStruct((4,), jnp.float32)}
    assert cache_in(directory, "other").load() == ({}, None)
    (directory / "other").write_bytes((directory / "run").read_bytes())
    assert cache_in(directory, "other").load() == ({}, None)
    source.write_text("new")
    assert cache_in(directory, "run").load() == ({}, None)


def test_sources_that_changed_after_the_start_are_not_recorded(tmp_path, monkeypatch):
    source = tmp_path / "source.py"
    source.write_text("new")
    monkeypatch.setattr(program_cache, "_sources", lambda: {str(source): program_cache._changed(str(source))})
    cache = ProgramCache(tmp_path, "settings", "run", (jax.devices()[0],), source.stat().st_mtime - 1.0)
    cache.shapes(tuple)
    cache.write([], {})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("damage", [lambda content: content[:-1], lambda content: b"\x00" + content[1:], lambda _: b""])
def test_of_damaged_files_nothing_is_read(tmp_path, damage):
    program = lowered(lambda x: x - UNIQUE)
    cache_in(tmp_path).compile("f", program)
    program_cache._write(tmp_path / "run", b"content")
    for file in tmp_path.iterdir():
        file.write_bytes(damage(file.read_bytes()))
    assert cache_in(tmp_path, "run").load() == ({}, None)
    assert float(cache_in(tmp_path).compile("f", program)(jnp.zeros(3))[0]) == -UNIQUE


def test_an_executable_that_jax_read_from_its_cache_is_never_stored(tmp_path):
    """Not even if a second run compiles the same lowered program, whose executable jax keeps."""
    place = jax.config.values["jax_compilation_cache_dir"]
    assert place is not None

    def program(x):
        return jnp.tanh(x) - UNIQUE

    lowered(program).compile()
    jax.clear_caches()
    for name in ("first", "second"):
        directory = tmp_path / name
        directory.mkdir()
        compiled = cache_in(directory).compile("f", lowered(program))
        np.testing.assert_allclose(compiled(jnp.zeros(3)), -UNIQUE)
        assert not list(directory.iterdir())


def test_programs_that_call_the_host_and_full_disks_are_compiled_as_ever(tmp_path, monkeypatch):
    def calls_host(x):
        return jax.pure_callback(lambda x: np.asarray(x) + 1, x, x)

    assert float(cache_in(tmp_path).compile("f", lowered(calls_host))(jnp.zeros(3))[0]) == 1.0
    assert list(tmp_path.iterdir()) == []

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(program_cache, "_write", full)
    assert float(cache_in(tmp_path).compile("f", lowered(lambda x: x + 2))(jnp.zeros(3))[0]) == 2.0


def test_the_oldest_files_are_deleted(tmp_path, monkeypatch):
    monkeypatch.setattr(program_cache, "_MAX_BYTES", 250)
    for number in range(4):
        program_cache._write(tmp_path / str(number), bytes(50))
        os.utime(tmp_path / str(number), (number, number))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1", "2", "3"]


def test_what_programs_do_not_depend_on_is_not_in_the_digest():
    config = parsed()

    def digest(**changed):
        resolved = {group: {**values, **changed.get(group, {})} for group, values in config.resolved.items() if values}
        return program_cache._digest_of_run(config._replace(resolved=resolved), "settings")

    same = [{"arch": {"seed": 7, "resume_from": "elsewhere"}}, {"checkpoint": {"keep": 1}}, {"logger": {"console": {}}}]
    assert {digest(**changed) for changed in same} == {digest()}
    others = [{"system": {"gamma": 0.9}}, {"arch": {"total_timesteps": 4096}}, {"env": {"reward_scale": 2.0}}]
    assert len({digest(), *(digest(**changed) for changed in others)}) == 1 + len(others)
    population = dataclasses.replace(config.arch.population, hyperparams={"gamma": [0.9]})
    config = config._replace(arch=dataclasses.replace(config.arch, population=population))
    # A seed may draw the hyperparameters, which are constants of the program of a lone member.
    assert digest(arch={"seed": 1}) != digest(arch={"seed": 2})


def test_members_share_programs_with_others_of_other_hyperparameters():
    def digest(hyperparams, *overrides):
        varied = f"arch.population.hyperparams={{{hyperparams}}}"
        config = parsed(varied, "arch.population.mode=zip", *overrides)
        return program_cache._digest_of_run(config, "settings")

    given = digest("gamma:[0.9,0.8]")
    assert digest("gamma:[0.7,0.6]", "arch.seed=7") == given
    others = ["gamma:[0.9,0.8,0.7]", "actor_lr:[0.9,0.8]", "gamma:[0.9,0.8],actor_lr:[0.1,0.2]", "gamma:[0.9]"]
    assert len({given, *map(digest, others)}) == 1 + len(others)
    assert digest("gamma:[0.9]") != digest("gamma:[0.8]")


def test_the_settings_tell_how_many_devices_there_are_and_not_how_they_were_asked_for(monkeypatch):
    mesh, values = make_mesh(find_devices(1)), dict(jax.config.values)

    def settings(**changed):
        monkeypatch.setattr(type(jax.config), "values", values | changed)
        return program_cache._settings(mesh)

    assert settings() == settings(jax_num_cpu_devices=7)
    assert settings() != settings(jax_enable_x64="other")
    before = settings()
    monkeypatch.setattr(jax, "devices", lambda: [None] * 7)
    assert settings() != before


def test_only_installed_code_and_own_directories_are_cached(tmp_path):
    config, mesh = parsed(), make_mesh(find_devices(1))
    env = factory.make(config.env)
    assert program_cache._sources() is None  # a test is none of it
    before = jax.config.values["jax_compilation_cache_dir"]
    try:
        jax.config.update("jax_compilation_cache_dir", str(tmp_path))
        open_cache(config, env, mesh, 1, 0.0)
        assert (tmp_path / "programs").stat().st_mode & 0o077 == 0
        (tmp_path / "programs").chmod(0o777)
        assert program_cache._make_directory() is None
        jax.config.update("jax_compilation_cache_dir", "gs://bucket/cache")
        assert program_cache._make_directory() is None
    finally:
        jax.config.update("jax_compilation_cache_dir", before)


def results(run_dir):
    """Read what a run computed: its metrics without times, and the checksums of its last arrays."""
    lines = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        del line["wall_seconds"], line["steps_per_second"]
    last = max((run_dir / "checkpoints").iterdir(), key=lambda path: int(path.name))
    state = json.loads(json.loads((last / "host_state" / "metadata").read_text())["text"])
    return lines, state["checksums"], json.loads((run_dir / "summary.json").read_text())["notes"]


@pytest.mark.slow
@pytest.mark.optimized
@pytest.mark.parametrize(
    ("system", "devices"),
    [("ppo/ff_ppo", []), ("sac/ff_sac", ["arch.num_devices=2", "arch.population.size=2"])],
    ids=["ppo", "sac on two devices"],
)
def test_a_run_of_the_command_line_traces_once_and_is_bit_identical(tmp_path, system, devices):
    cached = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    environment = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"} | cached
    small = [override for override in SMALL if "compile_cache" not in override and "critic" not in override]
    if system != "ppo/ff_ppo":
        small = [override for override in small if "minibatches" not in override]
        small += [
            "env=gymnax/pendulum",
            "system.total_batch_size=32",
            "system.warmup_steps=32",
            "system.total_buffer_size=1024",
        ]
    given = [f"system={system}", *small, *devices, "arch.total_timesteps=512", "arch.num_evaluation=2"]

    def run(command, *overrides):
        program = Path(sys.executable).parent / "stoix-like"
        subprocess.run([program, command, *given, *overrides], env=environment, cwd=tmp_path, check=True)

    def train(name, *overrides):
        run_dir = tmp_path / name
        run("train", f"hydra.run.dir={run_dir}", *overrides)
        programs = json.loads((run_dir / "summary.json").read_text())["programs"]
        return results(run_dir), sum(seconds["trace"] for seconds in programs.values())

    traced, seconds = train("traced", "arch.seed=1")
    assert seconds > 0.0
    assert train("other", "arch.seed=2")[1] == 0.0
    assert train("again", "arch.seed=1") == (traced, 0.0)
    assert train("without", "arch.seed=1", "arch.compile_cache=false")[0] == traced
    run("compile", "system.gamma=0.9")
    assert train("compiled", "system.gamma=0.9")[1] == 0.0
    for file in (tmp_path / "cache/stoix_like/compiled/programs").iterdir():
        file.write_bytes(file.read_bytes()[:-1])
    again, seconds = train("damaged", "arch.seed=1")
    assert again == traced
    assert seconds > 0.0
