"""Videos of the current policy, recorded during training."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import jax

from stoix_like.envs.scenes.base import Recording
from stoix_like.errors import ConfigError
from stoix_like.loggers import MultiLogger
from stoix_like.rendering.animation import write_animation
from stoix_like.rendering.episode import Recorder
from stoix_like.run.saved_state import of_member
from stoix_like.run.setup import RunSetup
from stoix_like.storage.files import check_directory

DIRECTORY = "videos"
# Folded into the key of the seed: training and evaluation never use the result.
_VIDEO_STREAM = 0x51DE0


class Video(NamedTuple):
    """A video: its file, and the environment steps of each member when it was recorded."""

    path: Path
    env_steps: int


class Videos:
    """Videos in the directory of a run; one that fails is reported, and no more are recorded.

    An episode is played between two intervals, with keys of its own. A thread draws it while training continues.

    Args:
        setup: the run; `logger.video.every_evals` is positive.
        run_dir: its directory.
    """

    def __init__(self, setup: RunSetup, run_dir: Path) -> None:
        assert setup.drawn_env is not None
        self._setup, self._env, self._directory = setup, setup.drawn_env, run_dir / DIRECTORY
        scene = self._env.scene()
        if scene is None:
            raise ConfigError(f"{setup.config.environment_name} has no drawing: use logger.video.every_evals=0")
        self._scene = scene
        self._recorder = Recorder(setup.build_system, self._env, setup.config.arch.max_eval_steps)
        self._thread = ThreadPoolExecutor(1, "video")
        self._stopped = threading.Event()
        self._drawing: Future[Video] | None = None
        self._failed = False

    def record(
        self,
        shared: Any,
        hyperparams: dict[str, float],
        evaluation: int,
        member: int,
        env_steps: int,
        logger: MultiLogger,
    ) -> None:
        """Record an episode.

        Args:
            shared: the shared state of all members.
            hyperparams: those of the member to record.
            evaluation: number of the evaluation, 0 before training.
            member: the member to record; 0 without a population.
            env_steps: environment steps of each member so far.
            logger: receives the last video, which is waited for.
        """
        # At most one episode waits, whatever the time that drawing takes.
        self.log(logger, wait=True)
        if self._failed:
            return
        population = self._setup.population
        key = jax.random.fold_in(jax.random.key(population.seeds[member]), _VIDEO_STREAM)
        try:
            one = of_member(shared, member) if population.num_members > 1 else shared
            one = jax.device_put(one, self._setup.mesh.local_devices[0])
            recording = self._recorder.record(one, hyperparams, jax.random.fold_in(key, evaluation))
        except Exception as error:
            self._report(error)
            return
        self._drawing = self._thread.submit(self._draw, recording, env_steps)

    def log(self, logger: MultiLogger, wait: bool = False) -> None:
        """Pass the video that was drawn to the loggers.

        Args:
            logger: receives it.
            wait: whether to wait for one that is being drawn.
        """
        if self._drawing is None or not (wait or self._drawing.done()):
            return
        drawing, self._drawing = self._drawing, None
        try:
            video = drawing.result()
        except Exception as error:
            self._report(error)
        else:
            logger.log_video(video.path, video.env_steps)

    def close(self) -> None:
        """Stop drawing, and close the environment."""
        self._stopped.set()
        self._thread.shutdown()
        self._env.close()

    def _draw(self, recording: Recording, env_steps: int) -> Video:
        check_directory(self._directory)
        self._directory.mkdir(exist_ok=True)
        path = self._directory / f"{env_steps}.{self._setup.config.logger.video.format}"
        write_animation(path, self._scene, recording, self._stopped.is_set)
        return Video(path, env_steps)

    def _report(self, error: Exception) -> None:
        self._failed = True
        reason = f"{type(error).__name__}: {error}"
        print(f"a video failed; the run continues without videos: {reason}", file=sys.stderr)
