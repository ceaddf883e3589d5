"""Runs on object stores: mirrors of stores that wait and fail, copies from them, and addresses that cannot work."""

import shutil

import pytest

import stoix_like
from stoix_like.errors import ConfigError
from stoix_like.storage import mirror, recorded_runs, remote
from stoix_like.storage.store import Store
from support.commands import wait_until
from support.comparisons import without_times
from support.faulty_store import FaultyFileSystem
from support.store_runs import ADDRESS, copy, names, write_checkpoint
from support.trained_runs import SMALL

pytestmark = pytest.mark.usefixtures("store")
RUN = [*SMALL, "env=probe/policy", "arch.total_timesteps=128", "arch.num_evaluation=2"]


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
    # The store comes back while the run trains.
    FaultyFileSystem.puts_until_error = 0
    one = mirror.Mirror(run, ADDRESS)
    one.start()
    wait_until(lambda: "no route" in capsys.readouterr().err)
    FaultyFileSystem.puts_until_error = None
    wait_until(lambda: "checkpoints/64.complete" in names(store))
    one.close(20.0)
    assert "faulty://bucket/run is up to date again" in capsys.readouterr().err


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


def test_checkpoints_stay_on_the_store_until_a_later_one_is_complete_there(run, store):
    copy(run)
    for step in (64, 128):
        shutil.rmtree(run / f"checkpoints/{step}")
    write_checkpoint(run, 256)
    FaultyFileSystem.puts_until_error = 0
    copy(run, seconds=0.3)
    assert {"checkpoints/64.complete", "checkpoints/128.complete"} <= names(store)
    FaultyFileSystem.puts_until_error = None
    copy(run)
    assert [name for name in names(store) if name.endswith(".complete")] == ["checkpoints/256.complete"]


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
    assert recorded_runs.read_run(found).last["env_steps"] == 256
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


def test_a_run_that_starts_again_without_a_checkpoint_is_still_copied(run, store):
    """Its first record has another time, and is there before the store answers."""
    shutil.rmtree(run / "checkpoints")
    copy(run)
    (run / "metrics.jsonl").write_text("")
    FaultyFileSystem.open_gate.clear()
    one = mirror.Mirror(run, ADDRESS)
    one.start()
    (run / "metrics.jsonl").write_text("of the second start\n")
    write_checkpoint(run, 64)
    FaultyFileSystem.open_gate.set()
    one.close(20.0)
    assert store["/bucket/run/metrics.jsonl"].getvalue() == b"of the second start\n"
    assert "checkpoints/64.complete" in names(store)


def test_a_directory_that_cannot_be_read_for_a_while_is_copied_later(run, store, capsys, monkeypatch):
    files, failures = mirror._files, [OSError("stale file handle")]

    def read(path):
        if failures:
            raise failures.pop()
        return files(path)

    monkeypatch.setattr(mirror, "_files", read)
    one = mirror.Mirror(run, ADDRESS)
    one.start()
    wait_until(lambda: "checkpoints/128.complete" in names(store))
    one.close(20.0)
    printed = capsys.readouterr().err
    assert "stale file handle; training continues" in printed
    assert printed.endswith(f"{ADDRESS} is up to date again\n")
