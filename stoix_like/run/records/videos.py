"""Videos of the current policy, recorded during training, and dreams of systems with a world model."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax

from stoix_like.envs.factory import with_learned_rewards
from stoix_like.envs.scenes.base import RecordedEpisode
from stoix_like.errors import raised_at
from stoix_like.loggers import MultiLogger
from stoix_like.loggers.base import DREAM
from stoix_like.rendering.animation import write_animation
from stoix_like.rendering.dreams import DreamedEpisode, DreamPlayer, write_dream
from stoix_like.rendering.episode import Recorder
from stoix_like.run.set_up.setup import RunSetup
from stoix_like.storage.files import check_directory
from stoix_like.user_code import user_errors
from stoix_like.utils.jax_utils import take_member

DIRECTORY = "videos"
# Folded into the key of the seed: training and evaluation never use the result.
_VIDEO_STREAM, _DREAM_STREAM = 0x51DE0, 0xD7EA


class Videos:
    """Videos in the directory of a run; one that fails is reported, and no more are recorded.

    An episode is played between two intervals, with keys of its own. A thread draws it while training continues. Where
    the system has a world model, a dream of another episode is recorded with each video, and may fail by itself.
    """

    def __init__(self, setup: RunSetup, run_dir: Path) -> None:
        assert setup.drawn_env is not None
        self._setup, self._env, self._directory = setup, setup.drawn_env, run_dir / DIRECTORY
        scene = self._env.scene()
        assert scene is not None  # an environment to draw
        self._scene = scene
        max_steps = setup.config.arch.max_eval_steps
        self._recorder = Recorder(setup.build_system, self._env, max_steps)
        self._dreamer: DreamPlayer | None = None
        if setup.build_system().dream is not None:
            env = with_learned_rewards(setup.eval_env, setup.config.env)
            self._dreamer = DreamPlayer(setup.parts.name, setup.build_system, env, max_steps)
        self._thread = ThreadPoolExecutor(1, "video")
        self._stopped = threading.Event()
        # The files of a video and of a dream, if there is one, and the environment steps when they were recorded.
        self._drawing: Future[tuple[list[Path], int]] | None = None
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
        """Record an episode."""
        # At most one episode waits, whatever the time that drawing takes.
        self.log(logger, wait=True)
        if self._failed:
            return
        population = self._setup.population
        key = jax.random.fold_in(jax.random.key(population.seeds[member]), _VIDEO_STREAM)
        try:
            one = take_member(shared, member) if population.num_members > 1 else shared
            one = jax.device_put(one, self._setup.mesh.local_devices[0])
            recording = self._recorder.record(one, hyperparams, jax.random.fold_in(key, evaluation))
        except user_errors() as error:
            self._report(error)
            return
        dream = self._dream(one, hyperparams, jax.random.fold_in(jax.random.fold_in(key, _DREAM_STREAM), evaluation))
        self._drawing = self._thread.submit(self._draw, recording, dream, env_steps)

    def log(self, logger: MultiLogger, wait: bool = False) -> None:
        """Pass the video that was drawn to the loggers."""
        if self._drawing is None or not (wait or self._drawing.done()):
            return
        drawing, self._drawing = self._drawing, None
        try:
            paths, env_steps = drawing.result()
        except user_errors() as error:
            self._report(error)
            return
        for path in paths:
            logger.log_video(path, env_steps)

    def close(self) -> None:
        """Stop drawing, and close the environment."""
        self._stopped.set()
        self._thread.shutdown()
        self._env.close()

    def _dream(self, shared: Any, hyperparams: dict[str, float], key: jax.Array) -> DreamedEpisode | None:
        if self._dreamer is None:
            return None
        try:
            return self._dreamer.dream(shared, hyperparams, key)
        except Exception as error:
            self._drop_dreams(error)
            return None

    def _draw(self, recording: RecordedEpisode, dream: DreamedEpisode | None, env_steps: int) -> tuple[list[Path], int]:
        check_directory(self._directory)
        self._directory.mkdir(exist_ok=True)
        paths = [self._directory / f"{env_steps}.{self._setup.config.logger.video.format}"]
        write_animation(paths[0], self._scene, recording, self._stopped.is_set)
        if dream is not None:
            path = paths[0].with_stem(f"{env_steps}_{DREAM}")
            try:
                write_dream(path, dream, self._stopped.is_set)
                paths.append(path)
            except Exception as error:
                if self._stopped.is_set():
                    raise
                self._drop_dreams(error)
        return paths, env_steps

    def _drop_dreams(self, error: Exception) -> None:
        self._dreamer = None
        print(f"a dream failed; the run continues without dreams: {type(error).__name__}: {error}", file=sys.stderr)

    def _report(self, error: BaseException) -> None:
        self._failed = True
        reason = f"{type(error).__name__}: {error}{raised_at(error)}"
        print(f"a video failed; the run continues without videos: {reason}", file=sys.stderr)
