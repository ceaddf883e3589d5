"""Copies of runs from stores: complete, safe, and never behind what is there."""

import json

import filelock
import fsspec
import pytest

from stoix_like.errors import ConfigError
from stoix_like.storage import remote
from stoix_like.storage.run_files import is_locked
from stoix_like.storage.store import Store
from support.faulty_store import FaultyFileSystem
from support.store_runs import ADDRESS, copy, files, names, write_checkpoint

pytestmark = pytest.mark.usefixtures("store")


def test_a_copy_of_the_copy_is_the_run(tmp_path, run, store):
    (run / "metrics.jsonl").write_text('{"a": 1}\n{"a":')
    (run / "checkpoints/192.orbax-checkpoint-tmp").mkdir()
    (run / ".config.yaml.0123.tmp").touch()
    copy(run)
    remote.fetch(ADDRESS, tmp_path / "copy")
    # Without what belongs to this machine, what is not complete and the torn line.
    own = (".lock", ".config.yaml.0123.tmp")
    kept = {name: text for name, text in files(run).items() if name not in own}
    assert files(tmp_path / "copy") == kept | {"metrics.jsonl": '{"a": 1}\n'}
    # Another process copies no checkpoint again, and removes what the run removes.
    times = {name: file.created for name, file in store.items() if "checkpoints" in name}
    copy(run)
    assert times == {name: file.created for name, file in store.items() if "checkpoints" in name}
    for name in ("summary.json", "checkpoints/64/host_state/metadata", "checkpoints/64/best/d/0"):
        (run / name).unlink()
    (run / "checkpoints/64").rename(tmp_path / "removed")
    write_checkpoint(run, 128, "replaced")
    copy(run)
    remote.fetch(ADDRESS, tmp_path / "copy")
    assert names(store) >= set(files(tmp_path / "copy"))
    assert not any("/64" in name or "summary" in name for name in (*store, *files(tmp_path / "copy")))
    assert (tmp_path / "copy/checkpoints/128/best/d/0").read_text().startswith("replaced")


def test_a_checkpoint_that_is_replaced_while_it_is_copied_is_copied_again(tmp_path, run, store, monkeypatch):
    copy(run)
    download = Store.download_all

    def replacing(self, place, names, target):
        download(self, place, names, target)
        if place.endswith("/128") and not replaced:
            replaced.append(place)
            write_checkpoint(run, 128, "other")
            copy(run)

    replaced = []
    monkeypatch.setattr(Store, "download_all", replacing)
    remote.fetch(ADDRESS, tmp_path / "copy")
    assert {text.split()[0] for name, text in files(tmp_path / "copy").items() if "/128/" in name} == {"other"}
    assert not list((tmp_path / "copy").glob(".*partial"))


def test_a_copy_keeps_nothing_of_the_run_that_was_there_before(tmp_path, run, store):
    """A description of other environments would give policies other actions."""
    copy(run)
    target = tmp_path / "copy"
    target.mkdir()
    for name in ("environment.json", "updates.jsonl", "failure.txt"):
        (target / name).write_text("of another run")
    remote.fetch(ADDRESS, target)
    assert {name for name in files(target) if "/" not in name} == {"config.yaml", "metrics.jsonl", "summary.json"}
    # As of a run that was killed before its records were copied.
    del store["/bucket/run/metrics.jsonl"]
    remote.fetch(ADDRESS, target)
    assert {name for name in files(target) if "/" not in name} == {"config.yaml", "summary.json"}


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd"])
def test_a_store_cannot_write_outside_of_the_copy(tmp_path, run, store, name):
    copy(run)
    marker = json.loads(store["/bucket/run/checkpoints/128.complete"].getvalue())
    content = json.dumps({**marker, "files": {name: 1}}).encode()
    fsspec.filesystem("faulty").pipe_file("/bucket/run/checkpoints/128.complete", content)
    with pytest.raises(ConfigError, match="is not a valid run file name"):
        remote.fetch(ADDRESS, tmp_path / "copy")


def test_a_store_creates_no_directory_outside_of_the_copy(tmp_path, run, store):
    copy(run)
    fsspec.filesystem("faulty").pipe_file(f"/bucket/run/{tmp_path}/elsewhere/metrics.jsonl", b"{}")
    with pytest.raises(ConfigError, match="is not a valid run file name"):
        remote.fetch(ADDRESS, tmp_path / "copy")
    assert not (tmp_path / "elsewhere").exists()


def test_a_working_copy_that_is_ahead_of_its_store_stays(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy(run)
    directory = remote.working_copy(ADDRESS)
    write_checkpoint(directory, 256)
    assert remote.working_copy(ADDRESS) == directory
    assert (directory / "checkpoints/256").is_dir()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("nowhere://bucket/run", "the protocol nowhere:// is unknown: use gs://, s3://"),
        ("s3://bucket/../run", "is not the address of a directory"),
        ("s3://bucket/*/run", "is not the address of a directory"),
        ("runs/mirror", "is not the address of a directory"),
        ("memory://runs/mirror", "is not the address of a directory"),
        ("faulty://bucket/nothing", "faulty://bucket/nothing holds no run: config.yaml is missing"),
    ],
)
def test_addresses_that_cannot_work_are_refused(tmp_path, address, message):
    with pytest.raises(ConfigError, match=message):
        remote.fetch(address, tmp_path)


def test_local_addresses_are_absolute(run, tmp_path):
    for scheme in ("file", "local"):
        place = tmp_path / scheme
        copy(run, f"{scheme}://{place}")
        assert (place / "checkpoints/128.complete").is_file()


def test_a_mirror_that_cannot_work_is_refused_by_its_key():
    with pytest.raises(ConfigError, match=r"^checkpoint\.mirror: runs/mirror is not the address of a directory"):
        remote.check_new("runs/mirror")


def test_an_address_with_a_password_is_refused_without_showing_it():
    with pytest.raises(ConfigError, match="contains a password") as refused:
        remote.check_new("ftp://user:secret@host/run")
    assert "secret" not in str(refused.value)


DAMAGES = {
    "cut": b'{"identity": "0", "fi',
    "no JSON": b"\xff\x00",
    "files in a list": b'{"identity": "0", "files": ["host_state/metadata"]}',
    "no such file": b'{"identity": "0", "files": {"elsewhere": 1}}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_marker_leaves_the_older_checkpoints(tmp_path, run, store, monkeypatch, capsys, damage):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy(run)
    place = "/bucket/run/checkpoints/128.complete"
    fsspec.filesystem("faulty").pipe_file(place, DAMAGES[damage])
    found = remote.working_copy(ADDRESS)
    assert [path.name for path in (found / "checkpoints").iterdir()] == ["64"]
    assert "faulty://bucket/run holds a damaged checkpoint, 128" in capsys.readouterr().err
    # The run continues from there, and its mirror replaces what is damaged.
    write_checkpoint(found, 96)
    copy(found)
    assert "96" in {path.name for path in (remote.working_copy(ADDRESS) / "checkpoints").iterdir()}
    assert {name for name in names(store) if name.endswith("complete")} == {
        "checkpoints/64.complete",
        "checkpoints/96.complete",
    }


@pytest.mark.parametrize(
    ("name", "content"),
    [("host_state/metadata", b"state 128 host_state/METADATA"), ("best/d/0", None), ("best/d/0", b"cut")],
)
def test_a_damaged_file_of_a_checkpoint_leaves_the_older_ones(tmp_path, run, store, capsys, name, content):
    copy(run)
    path = f"/bucket/run/checkpoints/128/{name}"
    if content is None:
        del store[path]
    else:
        fsspec.filesystem("faulty").pipe_file(path, content)
    remote.fetch(ADDRESS, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy/checkpoints").iterdir()] == ["64"]
    assert "holds a damaged checkpoint, 128" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, b"cut"])
def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_again(tmp_path, run, store, content):
    """It would overwrite the store; its records can be read."""
    copy(run)
    for step in (64, 128):
        path = f"/bucket/run/checkpoints/{step}/best/d/0"
        if content is None:
            del store[path]
        else:
            fsspec.filesystem("faulty").pipe_file(path, content)
    before = files(run)
    for read in (
        remote.working_copy,
        lambda address: remote.local_copy(address, items=("best",)),
        lambda address: remote.fetch(address, run),
    ):
        with pytest.raises(ConfigError, match=f"every checkpoint of {ADDRESS} is damaged or keeps changing: 64, 128: "):
            read(ADDRESS)
    assert files(run) == before
    assert not list((tmp_path / "cache").rglob("config.yaml"))
    assert (remote.local_copy(ADDRESS) / "metrics.jsonl").is_file()


def test_a_working_copy_is_made_under_the_lock_of_its_run(run, monkeypatch):
    copy(run)
    download, locked = Store.download_all, []

    def watching(self, place, names, target):
        locked.append(is_locked(target.parents[1]))
        download(self, place, names, target)

    monkeypatch.setattr(Store, "download_all", watching)
    target = remote.working_copy(ADDRESS)
    assert locked == [True, True]
    (target / ".summary.json.0123.tmp").touch()  # of the process that trains there
    with (
        filelock.FileLock(target / ".lock"),
        pytest.raises(ConfigError, match=f"{ADDRESS} is in use: another process trains it in {target}"),
    ):
        remote.working_copy(ADDRESS)
    assert (target / ".summary.json.0123.tmp").exists()


def test_nothing_of_a_failed_copy_stays(tmp_path, run, store, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy(run)
    target = remote.working_copy(ADDRESS)
    (target / ".config.yaml.0123.tmp").touch()  # of a process that was killed
    (target / ".128.0123.partial/128").mkdir(parents=True)
    download = FaultyFileSystem.get_file

    def failing(self, source, target, **kwargs):
        download(self, source, target, **kwargs)
        raise ConnectionError("no route to the store")

    monkeypatch.setattr(FaultyFileSystem, "get_file", failing)
    with pytest.raises(ConfigError, match="no route to the store"):
        remote.working_copy(ADDRESS)
    assert not list(target.glob(".*.tmp"))
    assert not list(target.glob(".*.partial"))


def test_a_working_copy_of_another_run_is_replaced(run, store, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy(run)
    directory = remote.working_copy(ADDRESS)
    write_checkpoint(directory, 256)
    fsspec.filesystem("faulty").pipe_file("/bucket/run/metrics.jsonl", b"of another run\n")
    assert remote.working_copy(ADDRESS) == directory
    assert {path.name for path in (directory / "checkpoints").iterdir()} == {"64", "128"}
    assert (directory / "metrics.jsonl").read_text() == "of another run\n"


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_cache_has_no_copies_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert remote.address_of(tmp_path) == tmp_path
