"""Weights & Biases logger."""

from __future__ import annotations

import configparser
import contextlib
import dataclasses
import netrc
import os
import pathlib
import secrets
import urllib.parse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from stoix_like.errors import ConfigError
from stoix_like.loggers.base import LoggerSettings, RunInfo, kind_of, scalars
from stoix_like.schema import one_of
from stoix_like.storage.files import check_directory, plain, read_bytes, write_text

if TYPE_CHECKING:
    import wandb


# Without an end, W&B would wait for a connection that was lost; `wandb sync` uploads what is left.
_SECONDS_TO_FINISH = 120.0


@dataclasses.dataclass(frozen=True)
class WandbConfig(LoggerSettings):
    """Configuration of `logger.wandb`."""

    package: ClassVar[str | None] = "wandb"
    project: str = "stoix_like"
    entity: str | None = None
    group: str | None = None
    name: str | None = None
    tags: tuple[str, ...] = ()
    mode: Annotated[str, one_of("online", "offline", "disabled")] = "online"

    @property
    def sends_data(self) -> bool:
        return self.enabled and self.mode == "online"

    def check(self) -> None:
        """Without credentials, W&B would ask for them, or fail after compilation."""
        if self.mode != "online" or os.environ.get("WANDB_MODE", "online") not in ("online", "shared"):
            return
        if not (os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or _logged_in()):
            raise ConfigError(
                "logger.wandb.mode=online needs the credentials of W&B: run `wandb login`, set WANDB_API_KEY, or use"
                " logger.wandb.mode=offline"
            )

    def make(self, run_dir: pathlib.Path) -> WandbLogger:
        return WandbLogger(self, run_dir)


def _logged_in() -> bool:
    """Return whether the settings of W&B or the netrc file of the user hold a key; True where that cannot be known."""
    try:
        home = pathlib.Path.home()
    except RuntimeError:  # neither HOME nor an entry of the user
        return True
    stored = _stored(home)
    if stored.get("api_key"):
        return True
    url = os.environ.get("WANDB_BASE_URL") or stored.get("base_url") or "https://api.wandb.ai"
    named = os.environ.get("NETRC")
    for path in [pathlib.Path(named)] if named else [home / ".netrc", home / "_netrc"]:
        try:
            if netrc.netrc(str(path)).authenticators(urllib.parse.urlsplit(url).hostname or url):
                return True
        except FileNotFoundError:
            continue
        except (OSError, netrc.NetrcParseError):
            return True
    return False


def _stored(home: pathlib.Path) -> dict[str, str]:
    """Return the settings of W&B of the user, such as the server that `wandb login --host` stored."""
    directory = os.environ.get("WANDB_CONFIG_DIR") or home / ".config/wandb"
    parser = configparser.ConfigParser(interpolation=None)
    with contextlib.suppress(configparser.Error, OSError):
        parser.read(pathlib.Path(directory) / "settings")
    return dict(parser["default"]) if "default" in parser else {}


class WandbLogger:
    """W&B logger: curves over `env_steps`, the configuration, and the final summary."""

    name = "wandb"

    def __init__(self, config: WandbConfig, directory: pathlib.Path) -> None:
        self._config = config
        self._directory = directory
        self._run: wandb.Run | None = None
        self._exit_code = 1  # until `finish`
        self._logged = -1  # environment steps before which the W&B run has all records

    def start(self, info: RunInfo) -> None:
        """Start a W&B run, or continue the one of a resumed run.

        A process that was killed may have logged records and videos after its last checkpoint, which W&B cannot delete:
        they stay, and are not logged again, except for the last step that it logged, where some may be missing.
        Offline, W&B does not know them.
        """
        self._check_directory()
        import wandb

        config = self._config
        # "online" is also the default of W&B: leaving it out lets WANDB_MODE take effect.
        mode: Any = None if config.mode == "online" else config.mode
        self._run = wandb.init(
            id=self._run_id(),
            resume="allow",
            project=config.project,
            entity=config.entity,
            group=config.group,
            name=config.name or f"{info.system} {info.environment} seed {info.seed}",
            tags=list(config.tags),
            mode=mode,
            dir=str(self._directory),
            config=info.config,
            # Every training in a process is a separate run, even if an earlier one was not closed.
            reinit="create_new",
            # Capturing the terminal would fill the W&B log with redrawn progress bars.
            settings=wandb.Settings(console="off", **_limit(wandb.Settings)),
        )
        self._run.define_metric("env_steps")
        self._run.define_metric("*", step_metric="env_steps")
        logged = self._run.summary.get("env_steps")
        # Up to the checkpoint, this process logs what the one before left.
        if isinstance(logged, int | float) and logged > (info.env_steps if info.history else -1):
            self._logged = int(logged)

    def _check_directory(self) -> None:
        """Refuse what a run directory from elsewhere may contain to redirect W&B, which writes neither by itself."""
        check_directory(self._directory / "wandb")
        here = pathlib.Path.cwd()
        for place in (self._directory, *([here] if here.is_relative_to(self._directory.resolve()) else [])):
            if os.path.lexists(path := place / "wandb" / "settings"):
                raise OSError(f"{path} could send your API key elsewhere: remove it")

    def _run_id(self) -> str:
        """Return the id of the W&B run, stored in a file so that a resumed run continues its own curves."""
        path = self._directory / "wandb_run_id"
        try:
            return read_bytes(path, limit=64).decode()
        except FileNotFoundError:
            run_id = secrets.token_hex(4)
            write_text(path, run_id)
            return run_id

    def log(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of a record."""
        self._log(scalars(record))

    log_updates = log

    def log_video(self, path: pathlib.Path, env_steps: int) -> None:
        """Upload a video."""
        import wandb

        self._log({kind_of(path): wandb.Video(str(path)), "env_steps": env_steps})

    def _log(self, row: dict[str, Any]) -> None:
        # A video that was being drawn when later updates were logged is only in the run directory.
        if self._run is not None and row["env_steps"] >= self._logged:
            self._run.log(row)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the results to the W&B summary."""
        if self._run is not None:
            self._run.summary.update(plain(summary))
            self._exit_code = 0

    def close(self) -> None:
        """Finish the W&B run, as failed unless `finish` was called."""
        if self._run is not None:
            run, self._run = self._run, None
            run.finish(exit_code=self._exit_code)


def _limit(settings: Any) -> dict[str, Any]:
    """Limit the wait for the last upload, where W&B has that setting and its environment variable does not set it."""
    known = "finish_timeout" in settings.model_fields and "WANDB_FINISH_TIMEOUT" not in os.environ
    return {"finish_timeout": _SECONDS_TO_FINISH} if known else {}
