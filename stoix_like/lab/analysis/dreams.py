"""Pictures of dreams: what a world model predicts of an episode, next to what happened."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure, SubFigure

from stoix_like.envs.factory import with_learned_rewards
from stoix_like.errors import ConfigError
from stoix_like.lab.analysis.plots import new_axes
from stoix_like.policies.load import load_member, open_run
from stoix_like.policies.visits import check_seed
from stoix_like.rendering.dreams import (
    CONTEXT,
    LENGTH,
    DreamedEpisode,
    DreamPlayer,
    Picture,
    draw_line,
    lines,
    pictures,
)

_COLUMNS, _MAX_FEATURES = 4, 10
_FRAMES = 12
# As many images in a row bound the image size of short episodes.
_MIN_COLUMNS = 8
_WIDTH, _LINE_HEIGHT = 14.0, 2.2  # inches of the figure, and of one row of panels


def draw_dream(episode: DreamedEpisode) -> Figure:
    """Draw an episode, and what the world model predicts of it from its first observations and all actions.

    Of images, these are truth, dream and difference in some steps; of other observations, one panel per feature;
    then the reward, and the probability that the episode continues.
    """
    shown, numbers = pictures(episode), lines(episode, _MAX_FEATURES)
    columns = min(len(numbers), _COLUMNS)
    rows = -(-len(numbers) // columns)
    frames = min(_FRAMES, len(episode.reward))
    heights = [3 * _WIDTH / max(frames, _MIN_COLUMNS) + 0.3] * len(shown) + [rows * _LINE_HEIGHT]
    figure = Figure(figsize=(_WIDTH, sum(heights) + 0.5), layout="constrained")
    *parts, below = figure.subfigures(len(heights), 1, squeeze=False, height_ratios=heights)[:, 0]
    for part, picture in zip(parts, shown, strict=True):
        _draw_frames(part, picture, episode.context, frames)
    for place, line in enumerate(numbers):
        axes = new_axes(below.add_subplot(rows, columns, place + 1))
        draw_line(axes, line, episode.context)
        axes.set_xlabel("step", fontsize=8)
        if place == 0:
            axes.legend(frameon=False, fontsize=8)
    figure.suptitle(
        f"{episode.name}: {len(episode.reward)} observations of an episode; the model saw {episode.context} and dreamed"
        " the others"
    )
    return figure


def dream_episode(
    run_dir: str | Path,
    which: str = "best",
    member: int | Any = "best",
    *,
    context: int = CONTEXT,
    length: int = LENGTH,
    seed: int = 0,
    trust: bool = False,
) -> DreamedEpisode:
    """Play an episode of evaluation, and let the world model of the run dream it.

    The model sees the first observations, and predicts the others from the actions alone.
    """
    check_seed(seed)
    if not 1 <= context < length:
        raise ConfigError(f"context={context} is out of range: it must be at least 1 and below length={length}")
    setup = (run := open_run(run_dir, trust)).setup
    if setup.build_system().dream is None:
        raise ConfigError(
            f"{setup.name}: the system has no world model with a decoder: use a run of system=dreamer/dreamer_v3"
        )
    chosen, config = load_member(run, which, member), setup.config
    with contextlib.closing(with_learned_rewards(setup.env, config.env)) as env:
        dreamer = DreamPlayer(setup.name, setup.build_system, env, config.arch.max_eval_steps, context, length)
        episode = dreamer.dream(jax.device_put(chosen.shared), chosen.hyperparams, jax.random.key(seed))
    if len(episode.reward) <= context:
        raise ConfigError(
            f"context={context} leaves nothing to predict of an episode with {len(episode.reward)} observations: use a"
            " smaller one, or another seed"
        )
    return episode


def has_world_model(run_dir: str | Path) -> bool:
    """Return whether the system of a run can dream; see `load_policy` for the arguments and errors."""
    return open_run(run_dir).setup.build_system().dream is not None


def _draw_frames(figure: SubFigure, picture: Picture, context: int, frames: int) -> None:
    """Draw truth, dream and difference, one column for each of some steps."""
    steps = np.unique(np.linspace(0, len(picture.truth) - 1, frames).round().astype(int))
    figure.suptitle(picture.name, fontsize=9)
    for row, label in enumerate(("truth", "dream", "difference")):
        for column, step in enumerate(steps):
            axes = figure.add_subplot(3, len(steps), row * len(steps) + column + 1)
            axes.imshow(getattr(picture, label)[step], interpolation="nearest", cmap="magma", vmin=0, vmax=1)
            axes.set_xticks([])
            axes.set_yticks([])
            if row == 0:
                axes.set_title(f"{step}{' (seen)' if step < context else ''}", fontsize=8)
            if column == 0:
                axes.set_ylabel(label, fontsize=9)
