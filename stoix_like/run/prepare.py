"""A run before it starts: where it is written, its parts, and the parameters that it starts from."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from stoix_like.config import RunConfig
from stoix_like.errors import naming
from stoix_like.run.set_up import warm_start
from stoix_like.run.set_up.setup import RunSetup, set_up
from stoix_like.storage.run_directory import RunDirectory


class Prepared(NamedTuple):
    """A run that may start: it fits its place, and nothing is written yet."""

    setup: RunSetup  # its parts
    directory: RunDirectory  # where a new run is written, or the directory of the run to resume
    resumes: bool = False  # whether the directory holds a run, which is resumed
    source: warm_start.Source | None = None  # the parameters that a new run starts from; None for those that it draws


def prepare(config: RunConfig, run_dir: Path, started: float | None = None) -> Prepared:
    """Set up a run, and refuse what cannot work before anything compiles or is written."""
    setup = set_up(config, started)
    place, mirror = RunDirectory(run_dir, setup.processes), setup.config.checkpoint.mirror
    if (resumed := place.resumed(config.arch.resume_from, mirror)) is not None:
        with naming("arch.resume_from"):
            resumed.check_is_run()
        return Prepared(setup, resumed, resumes=True)
    place.check_new(mirror)
    return Prepared(setup, place, source=find_source(setup))


def mirror_job(config: RunConfig, job: str) -> RunConfig:
    """Return the configuration of one job of several, which is copied to a place of its own below a mirror."""
    mirror = config.checkpoint.mirror
    # Two slashes would be a directory without a name.
    return config if mirror is None else config.with_mirror(f"{mirror.rstrip('/')}/{job}")


def find_source(setup: RunSetup) -> warm_start.Source | None:
    """Find the parameters that a new run starts from, in all of its processes."""
    return setup.processes.together(lambda: warm_start.find(setup))
