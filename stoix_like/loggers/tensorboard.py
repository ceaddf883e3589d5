"""TensorBoard logger."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import struct
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from stoix_like.loggers.base import LoggerSettings, RunInfo, kind_of, scalars
from stoix_like.storage.files import check_directory, plain

if TYPE_CHECKING:
    from tensorboardX.event_file_writer import EventsWriter
    from tensorboardX.proto.summary_pb2 import Summary


@dataclasses.dataclass(frozen=True)
class TensorBoardConfig(LoggerSettings):
    """Configuration of `logger.tensorboard`."""

    package: ClassVar[str | None] = "tensorboardX"

    def make(self, run_dir: pathlib.Path) -> TensorBoardLogger:
        return TensorBoardLogger(run_dir / "tensorboard")


class TensorBoardLogger:
    """TensorBoard logger: curves over `env_steps`, and the configuration as text."""

    name = "tensorboard"

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._writer: EventsWriter | None = None

    def start(self, info: RunInfo) -> None:
        """Open an event file and write the configuration; TensorBoard then discards what follows the checkpoint."""
        # Not `SummaryWriter`: a failed write kills its thread, and later calls then block forever.
        from tensorboardX.event_file_writer import EventsWriter
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.summary import text

        check_directory(self._directory)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._writer = EventsWriter(str(self._directory / "events"))
        last = max(info.env_steps, int(info.history[-1]["env_steps"])) if info.history else -1
        # From this step on; TensorBoard takes no notice of the first start of a run.
        start = SessionLog(status=SessionLog.START)
        self._writer.write_event(Event(wall_time=time.time(), step=last + 1, session_log=start))
        listing = json.dumps(plain(info.config), indent=2, default=str)
        # Markdown renders lines indented by four spaces verbatim.
        self._write(text("config", "    " + listing.replace("\n", "\n    ")), step=0)

    def log(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record at its `env_steps`."""
        self._write_scalars(scalars(record))

    def log_updates(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a record between evaluations."""
        # The number of updates is a curve of `log`.
        self._write_scalars(scalars({name: value for name, value in record.items() if name != "updates"}))

    def log_video(self, path: pathlib.Path, env_steps: int) -> None:
        """Write a gif as an image, which TensorBoard animates; it shows no other videos."""
        if path.suffix != ".gif":
            return
        from tensorboardX.proto.summary_pb2 import Summary

        content = path.read_bytes()
        # After the signature, in the header of every gif.
        width, height = struct.unpack("<HH", content[6:10])
        image = Summary.Image(encoded_image_string=content, width=width, height=height, colorspace=3)
        self._write(Summary(value=[Summary.Value(tag=kind_of(path), image=image)]), env_steps)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the absolute metric, the only result that no record contains."""
        absolute = {name: value for name, value in scalars(summary).items() if name.startswith("absolute/")}
        self._write_scalars({"env_steps": summary.get("env_steps", 0), **absolute})

    def close(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()

    def _write_scalars(self, curves: dict[str, float]) -> None:
        from tensorboardX.proto.summary_pb2 import Summary

        step = int(curves.pop("env_steps"))
        values = [Summary.Value(tag=name, simple_value=value) for name, value in curves.items()]
        self._write(Summary(value=values), step)

    def _write(self, summary: Summary, step: int) -> None:
        from tensorboardX.proto.event_pb2 import Event

        if self._writer is not None:
            self._writer.write_event(Event(wall_time=time.time(), step=step, summary=summary))
            self._writer.flush()
