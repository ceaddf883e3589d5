"""The logger interface and its inputs."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple, Protocol, runtime_checkable

from stoix_like.schema import INT32_MAX, between, one_of

DREAM = "dream"
"""Suffix of the file name of a dream: `videos/640_dream.gif`."""


class RunInfo(NamedTuple):
    """Description of a run before its first step."""

    run_dir: pathlib.Path
    system: str  # ppo/ff_ppo
    environment: str  # gymnax/CartPole-v1
    seed: int
    num_updates: int
    total_timesteps: int  # budget in environment steps
    num_evaluations: int
    config: dict[str, Any]  # resolved, in plain Python values
    notes: tuple[str, ...] = ()  # messages to the user, such as a rounded budget
    devices: str = ""  # 2 x cpu
    num_members: int = 1  # size of the population
    num_seeds: int | None = None  # different seeds of its members, counted from `seed`; None: one for each
    history: Sequence[Mapping[str, Any]] = ()  # records up to the checkpoint of a resumed run
    env_steps: int = 0  # environment steps of each member at that checkpoint
    job: int | None = None  # number of the run among those that a launcher may run at the same time
    step_unit: str = "env steps"  # what the budget counts
    kept: str = "best"  # which parameters have the absolute metric, the best or the last ones
    absolute_episodes: int = 0  # episodes of the absolute metric


class Logger(Protocol):
    """Destination of the metrics of a run.

    A record is a flat mapping from names to Python numbers, None for a missing value (no episode has finished), or
    lists of per-member values for a population. `env_steps` is the x-axis of all curves.

    A logger that raises is reported once and dropped. Subclasses override what they need; a logger that also has the
    methods of `UpdateLogger` or `VideoLogger` receives these records, too.
    """

    name: str = ""  # for messages

    # Type checkers take a method of a protocol for abstract unless it returns.
    def start(self, info: RunInfo) -> None:
        """Start logging; called once, before the first record."""
        return

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of one evaluation interval."""
        return

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Log the results; called once at the end of a run, but not after an exception."""
        return

    def close(self) -> None:
        """Release all resources; always called last, even without `start`."""
        return


@runtime_checkable
class UpdateLogger(Protocol):
    """A logger that also takes metrics of training between evaluations."""

    def log_updates(self, record: Mapping[str, Any]) -> None:
        """Log the metrics of `logger.every_updates` updates.

        Args:
            record: `env_steps`, `updates`, and means over these updates as `updates/…`.
        """


@runtime_checkable
class VideoLogger(Protocol):
    """A logger that also takes videos."""

    def log_video(self, path: pathlib.Path, env_steps: int) -> None:
        """Log a video.

        Args:
            path: the file, a gif or an mp4.
            env_steps: environment steps of each member when it was recorded.
        """


@dataclasses.dataclass(frozen=True)
class LoggerSettings:
    """Configuration of one logger; each logger extends it."""

    package: ClassVar[str | None] = None  # the optional import package that the logger needs; None for none
    enabled: bool = False  # whether the logger is used

    @property
    def sends_data(self) -> bool:
        """True if the logger sends data to other machines."""
        return False

    def check(self) -> None:
        """Raise `ConfigError` where the logger lacks what it needs besides its package."""

    def make(self, run_dir: pathlib.Path) -> Logger:
        """Build the logger; it opens and writes nothing before `start`."""
        raise NotImplementedError


@dataclasses.dataclass(frozen=True)
class VideoConfig:
    """Configuration of `logger.video`."""

    every_evals: Annotated[int, between(0, INT32_MAX)] = 0
    format: Annotated[str, one_of("gif", "mp4")] = "gif"


def kind_of(path: pathlib.Path) -> str:
    """Return what an animation shows, `video` or `dream`, from the name of its file."""
    return DREAM if path.stem.endswith(f"_{DREAM}") else "video"


def scalars(record: Mapping[str, Any]) -> dict[str, float]:
    """Flatten a record of `Logger.log` to one number per curve.

    The entries of per-member values are named `name/0`, `name/1`, ..., and `population/failed` is the number of members
    that diverged. Other lists, and values that are not numbers, are omitted.
    """
    curves: dict[str, float] = {}
    for name, value in record.items():
        if name == "population/failed":
            curves[name] = len(value)
        elif isinstance(value, list | tuple):
            curves |= scalars({f"{name}/{member}": item for member, item in enumerate(value)})
        elif isinstance(value, int | float):
            curves[name] = value
    return curves
