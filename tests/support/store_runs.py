"""Runs and their copies on a store."""

from stoix_like.storage import mirror

ADDRESS = "faulty://bucket/run"


def write_checkpoint(directory, step, text="state"):
    for name in ("host_state/metadata", "best/d/0", "local/d/0"):
        path = directory / "checkpoints" / str(step) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text} {step} {name}")


def files(directory):
    return {path.relative_to(directory).as_posix(): path.read_text() for path in directory.rglob("*") if path.is_file()}


def copy(directory, address=ADDRESS, seconds=20.0):
    one = mirror.Mirror(directory, address)
    one.start()
    one.close(seconds)
    return one


def names(store):
    return {name.removeprefix("/bucket/run/") for name in store}
