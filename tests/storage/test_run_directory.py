import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from omegaconf import OmegaConf

from stoix_like.config import GROUPS, parse_config
from stoix_like.errors import ConfigError
from stoix_like.run.prepare import prepare
from stoix_like.storage import checkpoint, run_directory
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.storage.run_files import LAYOUT_NUMBER, is_locked, read_summary
from stoix_like.storage.store import Store
from support.composed import compose_config
from support.faulty_store import FaultyFileSystem
from support.store_runs import ADDRESS, copy, write_checkpoint
from support.toy_runs import TOY_RUN

RESOLVED = {group: {"a": 1} for group in GROUPS}


def test_a_configuration_is_written_where_nothing_else_lies(tmp_path):
    path = tmp_path / "config.yaml"
    path.symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b/config.yaml").touch()
    with pytest.raises(ConfigError, match=rf"already holds a run .* with: stoix-like resume '{tmp_path}/a b'$"):
        RunDirectory(tmp_path / "a b").check_new()
    with pytest.raises(ConfigError, match="already holds a run"):
        RunDirectory(tmp_path).check_new()
    with pytest.raises(ConfigError, match="holds a run already"):
        RunDirectory(tmp_path).write_config(RESOLVED)
    assert not (tmp_path / "elsewhere").exists()
    path.unlink()
    RunDirectory(tmp_path).write_config(RESOLVED)
    assert OmegaConf.load(path) == {"layout": LAYOUT_NUMBER, **RESOLVED}


def test_checkpoints_of_an_earlier_run_are_not_taken_for_those_of_a_new_one(tmp_path):
    (tmp_path / "checkpoints/320").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds checkpoints of another run, without its config.yaml: choose"):
        RunDirectory(tmp_path).check_new()
    (tmp_path / "checkpoints/320").rmdir()
    RunDirectory(tmp_path).check_new()
    (tmp_path / "checkpoints").rename(tmp_path / "elsewhere")
    (tmp_path / "checkpoints").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="checkpoints is a link, not a directory: choose another directory"):
        RunDirectory(tmp_path).check_new()


def test_a_link_in_place_of_the_lock_is_refused(tmp_path):
    (tmp_path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match=r"\.lock is not a regular file"), RunDirectory(tmp_path).locked():
        pass
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.usefixtures("store")
def test_a_run_that_went_on_elsewhere_continues_from_its_mirror(run, tmp_path, capsys):
    """A job comes back to a machine that it left after 128 steps."""
    other = shutil.copytree(run, tmp_path / "other")
    write_checkpoint(other, 256)
    copy(other)
    FaultyFileSystem.error = ConnectionError("no route to the store")
    assert RunDirectory(run).resumed(str(run), ADDRESS).path == run
    assert checkpoint.steps(run) == [64, 128]
    assert f"the run continues from what is in {run}" in capsys.readouterr().err
    FaultyFileSystem.error = None
    assert RunDirectory(run).resumed(str(run), ADDRESS).path == run
    assert checkpoint.steps(run) == [64, 128, 256]
    # A directory that is ahead stays as it is, and so does one of another run.
    write_checkpoint(run, 512)
    RunDirectory(run).resumed(str(run), ADDRESS)
    assert checkpoint.steps(run)[-1] == 512
    shutil.rmtree(run / "checkpoints/512")
    shutil.rmtree(run / "checkpoints/256")
    (run / "metrics.jsonl").write_text("of another run\n")
    RunDirectory(run).resumed(str(run), ADDRESS)
    assert checkpoint.steps(run) == [64, 128]


@pytest.mark.usefixtures("store")
def test_checkpoints_that_turn_over_on_the_store_remove_no_local_one(run, tmp_path, monkeypatch, capsys):
    other = shutil.copytree(run, tmp_path / "other")
    shutil.rmtree(other / "checkpoints")
    write_checkpoint(other, 256)
    copy(other)
    monkeypatch.setattr(Store, "download_all", Mock(side_effect=FileNotFoundError))
    assert RunDirectory(run).resumed(str(run), ADDRESS).path == run
    assert checkpoint.steps(run) == [64, 128]
    assert capsys.readouterr().err == (
        f"every checkpoint of {ADDRESS} is damaged or keeps changing: 256: try again when no process copies there, or"
        f" resume the run in its own directory; the run continues from what is in {run}\n"
    )


@pytest.mark.usefixtures("store")
def test_a_directory_is_locked_while_a_run_is_copied_to_it(run, tmp_path, monkeypatch):
    """The same command, started twice, does not remove the checkpoints of the first one."""
    copy(run)
    place, download, locked = tmp_path / "place", Store.download_all, []

    def watching(self, *args):
        locked.append(is_locked(place))
        download(self, *args)

    monkeypatch.setattr(Store, "download_all", watching)
    assert RunDirectory(place).resumed(str(place), ADDRESS).path == place
    shutil.rmtree(place / "checkpoints/128")
    assert RunDirectory(place).resumed(str(place), ADDRESS).path == place
    assert locked == [True, True, True]
    with RunDirectory(place).locked():
        write_checkpoint(place, 96)
        for _ in range(2):
            with pytest.raises(ConfigError, match=f"{place} is in use: another process is training there"):
                RunDirectory(place).resumed(str(place), ADDRESS)
            (place / "config.yaml").unlink(missing_ok=True)  # a new run has none yet
    assert checkpoint.steps(place) == [64, 96, 128]
    # A new run, of which the store has nothing, writes nothing before it starts.
    assert RunDirectory(tmp_path / "new").resumed(str(tmp_path / "new"), f"{ADDRESS}-new") is None
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["environment.json", "config.yaml"])
def test_a_run_that_cannot_be_resumed_keeps_its_results(tmp_path, name):
    for result in ("summary.json", "failure.txt"):
        (tmp_path / result).write_text("{}")
    (tmp_path / name).mkdir()
    with pytest.raises(ConfigError, match=f"cannot be written: .*{name}"):
        RunDirectory(tmp_path).write_config(RESOLVED, {"a": 1}, resumed=True)
    assert {"summary.json", "failure.txt"} <= {path.name for path in tmp_path.iterdir()}
    (tmp_path / name).rmdir()
    RunDirectory(tmp_path).write_config(RESOLVED, {"a": 1}, resumed=True)
    assert {path.name for path in tmp_path.iterdir()} == {"environment.json", "config.yaml"}


def test_a_run_whose_policies_need_more_keeps_no_description(tmp_path):
    for environment, expected in (({"a": 1}, True), (None, False)):
        RunDirectory(tmp_path).write_config(RESOLVED, environment, resumed=True)
        assert (tmp_path / "environment.json").exists() == expected


@pytest.mark.slow
def test_results_are_written_once_more_and_never_lost_in_silence(tmp_path, monkeypatch):
    (tmp_path / "summary.json").mkdir()
    assert RunDirectory(tmp_path).write_summary({"seed": 1}).startswith("the results were not written: ")
    (tmp_path / "summary.json").rmdir()
    write, errors = run_directory.write_json, [OSError("stale file handle")]

    def failing_once(path, values):
        if errors:
            raise errors.pop()
        write(path, values)

    monkeypatch.setattr(run_directory, "write_json", failing_once)
    assert RunDirectory(tmp_path).write_summary({"seed": 1}) is None
    assert read_summary(tmp_path) == {"seed": 1}


@pytest.mark.usefixtures("store")
def test_an_address_is_no_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config, address = parse_config(compose_config(TOY_RUN)), Path("s3://bucket/run")
    for refused in (RunDirectory(address).check_new, lambda: prepare(config, address)):
        with pytest.raises(ConfigError, match=r"hydra.run.dir=s3:/bucket/run is an address.*checkpoint.mirror"):
            refused()
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("store")
def test_what_to_resume_is_named_by_its_key(tmp_path):
    for place in (tmp_path / "nowhere", "faulty://bucket/nowhere"):
        with pytest.raises(ConfigError, match=f"^arch.resume_from: {place} holds no run: config.yaml is missing$"):
            prepare(parse_config(compose_config([*TOY_RUN, f"arch.resume_from={place}"])), tmp_path / "run")
