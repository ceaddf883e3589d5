"""Runs on object stores: mirrors of stores that wait and fail, copies from them, and addresses that cannot work."""

import json
import shutil
import time

import fsspec
import pytest
from comparisons import without_times
from faulty_store import FaultyFileSystem
from trained_runs import SMALL

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.storage import mirror, recorded_runs, remote
from stoix_like.storage.run_directory import RunDirectory
from stoix_like.storage.store import Store

ADDRESS = "faulty://bucket/run"
RUN = [*SMALL, "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch):
    """The files of an empty store by name, and a user without a cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(mirror, "SECONDS_BETWEEN_PASSES", 0.01)
    FaultyFileSystem.reset()
    yield FaultyFileSystem.store
    FaultyFileSystem.reset()


@pytest.fixture
def run(tmp_path):
    """A directory with the files of a run and two checkpoints."""
    directory = tmp_path / "run"
    for name in ("config.yaml", "metrics.jsonl", "summary.json", ".hydra/overrides.yaml", ".lock"):
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(f"of {name}\n")
    for step in (64, 128):
        write_checkpoint(directory, step)
    return directory


def write_checkpoint(directory, step, text="state"):
    for name in ("host_state/metadata", "best/d/0", "local/d/0"):
        path = directory / "checkpoints" / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} {step} {name}")


def files(directory):
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def copy(directory, seconds=20.0):
    """Copy a run directory once."""
    one = mirror.Mirror(directory, ADDRESS)
    one.start()
    one.close(seconds)
    return one


def wait_until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def names(store):
    return {name.removeprefix("/bucket/run/") for name in store}


def test_a_copy_of_the_copy_is_the_run(tmp_path, run, store):
    (run / "metrics.jsonl").write_text('{"a": 1}\n{"a":')
    (run / "checkpoints/192.orbax-checkpoint-tmp").mkdir()
    (run / ".config.yaml.0123.tmp").touch()
    copy(run)
    remote.fetch(ADDRESS, tmp_path / "copy")
    # Without what belongs to this machine, what is not complete and the torn line.
    kept = {name: text for name, text in files(run).items() if name not in (".lock", ".config.yaml.0123.tmp")}
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


def test_a_checkpoint_that_is_not_complete_is_never_read(tmp_path, run, store, capsys):
    # Three plain files, checkpoint 128, and one file of checkpoint 64.
    FaultyFileSystem.puts_until_error = 7
    copy(run, seconds=0.3)
    assert "checkpoints/64/best/d/0" in names(store)
    remote.fetch(ADDRESS, tmp_path / "copy")
    assert [path.name for path in (tmp_path / "copy/checkpoints").iterdir()] == ["128"]
    printed = capsys.readouterr().err
    assert printed.count("cannot copy the run to faulty://bucket/run: ConnectionError: no route") == 1
    assert f"lacks the latest files of the run after 0.3 s of waiting (checkpoint.mirror_wait); {run} has" in printed
    # The directory cannot be read for a while, and the store comes back while the run trains.
    (run / "checkpoints").rename(tmp_path / "elsewhere")
    (run / "checkpoints").touch()
    one = mirror.Mirror(run, ADDRESS)
    one.start()
    wait_until(lambda: "not a directory" in capsys.readouterr().err)
    (run / "checkpoints").unlink()
    (tmp_path / "elsewhere").rename(run / "checkpoints")
    FaultyFileSystem.puts_until_error = None
    wait_until(lambda: "checkpoints/64.complete" in names(store))
    one.close(20.0)
    assert "faulty://bucket/run is up to date again" in capsys.readouterr().err


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


@pytest.mark.parametrize("links", [True, False])
def test_a_store_slower_than_the_run_always_has_a_checkpoint(run, store, monkeypatch, links):
    """The run replaces its checkpoints during every copy, which succeeds with hard links alone."""
    upload, complete = Store.upload_all, []

    def removing(self, source, names, place):
        complete.append([name for name in store if name.endswith(".complete")])
        if len(complete) < 5:
            shutil.rmtree(run / "checkpoints")
            write_checkpoint(run, 128 + 64 * len(complete))
        upload(self, source, names, place)

    def refused(source, target):
        raise OSError("no hard links here")

    monkeypatch.setattr(Store, "upload_all", removing)
    if not links:
        monkeypatch.setattr(mirror.os, "link", refused)
    one = mirror.Mirror(run, ADDRESS)
    one.start()
    wait_until(lambda: len(complete) == 5)
    one.close(20.0)
    assert [len(found) for found in complete] == ([0, 1, 1, 1, 1] if links else [0] * 5)
    assert {name for name in names(store) if name.endswith(".complete")} == {"checkpoints/384.complete"}
    assert not list(run.glob(".mirror*"))


@pytest.mark.parametrize("name", ["../../.bashrc", "/etc/passwd"])
def test_a_store_cannot_write_outside_of_the_copy(tmp_path, run, store, name):
    copy(run)
    marker = json.loads(store["/bucket/run/checkpoints/128.complete"].getvalue())
    content = json.dumps({**marker, "files": {name: 1}}).encode()
    fsspec.filesystem("faulty").pipe_file("/bucket/run/checkpoints/128.complete", content)
    with pytest.raises(ConfigError, match="is no name of a file in a run directory"):
        remote.fetch(ADDRESS, tmp_path / "copy")


@pytest.mark.slow
def test_a_store_that_hangs_or_fails_changes_nothing_in_training(tmp_path, capsys):
    expected = without_times(stoix_like.train("ppo/ff_ppo", RUN, run_dir=tmp_path / "reference").history)
    given = [*RUN, f"checkpoint.mirror={ADDRESS}", "checkpoint.mirror_wait=0.2"]

    class Hanging(stoix_like.callbacks.Callback):
        def on_evaluation(self, record, policy):
            FaultyFileSystem.open_gate.clear()

    result = stoix_like.train("ppo/ff_ppo", given, run_dir=tmp_path / "run", callbacks=[Hanging()])
    assert without_times(result.history) == expected
    assert f"copy them with: stoix-like resume {tmp_path / 'run'}" in capsys.readouterr().err
    # While the store fails, the run resumes from its own directory.
    FaultyFileSystem.open_gate.set()
    FaultyFileSystem.error = PermissionError("access denied")
    stoix_like.resume(tmp_path / "run", ["arch.total_timesteps=256"])
    assert "PermissionError: access denied; training continues" in capsys.readouterr().err
    # It is complete: resuming it copies what is missing, which every command can read.
    FaultyFileSystem.error = None
    stoix_like.resume(tmp_path / "run")
    (found,) = recorded_runs.find_runs([ADDRESS])
    assert recorded_runs.read_run(found).history[-1]["env_steps"] == 256
    assert not (found / "checkpoints").exists()
    assert remote.address_of(found) == ADDRESS
    assert stoix_like.evaluate(ADDRESS, episodes=2)["env_steps"] in (0, 64, 128, 192, 256)
    with pytest.raises(ConfigError, match=f"checkpoint.mirror={ADDRESS} already holds a run"):
        stoix_like.train("ppo/ff_ppo", given, run_dir=tmp_path / "other")
    # On another machine, the same command finds the run.
    again = [*given, "arch.total_timesteps=256", f"arch.resume_from={tmp_path / 'third'}"]
    assert stoix_like.train("ppo/ff_ppo", again, run_dir=tmp_path / "third").history[-1]["env_steps"] == 256


def test_a_run_is_not_copied_into_itself(run):
    with pytest.raises(ConfigError, match=f"checkpoint.mirror=file://{run}/copy is in the run directory"):
        mirror.Mirror(run, f"file://{run}/copy")


def test_an_address_is_no_run_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"hydra.run.dir=s3:/bucket/run is an address.*checkpoint.mirror"):
        RunDirectory(tmp_path.__class__("s3://bucket/run")).check_new()


@pytest.mark.parametrize("other", [False, True])
def test_a_store_with_later_checkpoints_or_another_run_is_left_alone(run, store, capsys, other):
    """Also when it can be read only after the run has trained beyond them; the end of the run does not wait for it."""
    write_checkpoint(run, 256)
    copy(run)
    before = dict(store)
    one = mirror.Mirror(run, ADDRESS)
    if other:
        (run / "metrics.jsonl").write_text("of another run\n")
        one.start()
    else:
        shutil.rmtree(run / "checkpoints/256")
        FaultyFileSystem.error = ConnectionError("no route to the store")
        one.start()
        wait_until(lambda: "it is tried again" in capsys.readouterr().err)
    write_checkpoint(run, 512)
    FaultyFileSystem.error = None
    wait_until(lambda: not one._thread.is_alive())
    one.close(20.0)
    assert store == before
    what = "another run than" if other else "the checkpoint 256, which is later than those of"
    printed = capsys.readouterr().err
    assert f"checkpoint.mirror={ADDRESS} holds {what}" in printed
    assert printed.endswith("; training continues, and nothing is copied\n")


def test_a_working_copy_that_is_ahead_of_its_store_stays(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy(run)
    directory = remote.working_copy(ADDRESS)
    write_checkpoint(directory, 256)
    assert remote.working_copy(ADDRESS) == directory
    assert (directory / "checkpoints/256").is_dir()
